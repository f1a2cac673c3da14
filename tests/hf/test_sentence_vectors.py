"""Directories of sentence-transformers: what is read of them, and what is refused."""

import json

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.hf import sentence_vectors

OLD = 'sentence_transformers.models.'
NEW = 'sentence_transformers.base.modules.transformer.'
THEIRS = 'sentence_transformers.sentence_transformer.modules.pooling.'
CLS = {'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}
PROMPTS = {'query': 'query: ', 'passage': 'passage: '}


def written(folder, *types, **files):
  """files: modules, pooling, rows, texts: the contents, where they are not the usual ones."""
  names = types or (f'{OLD}Transformer', f'{OLD}Pooling')
  modules = [
    {'path': f'{i}_{x.rpartition(".")[2]}' * (i > 0), 'type': x} for i, x in enumerate(names)
  ]
  usual = dict(modules=modules, pooling={'pooling_mode_mean_tokens': True}, rows={}, texts={})
  places = dict(zip(('modules', 'rows', 'texts', 'pooling'), sentence_vectors.FILES))
  (folder / '1_Pooling').mkdir()
  for name, content in {**usual, **files}.items():
    (folder / places[name]).write_text(json.dumps(content))
  return folder


@pytest.mark.parametrize(
  'types, files, read',
  [
    ((), {}, dict(pooling='mean')),
    ((), dict(pooling=CLS), dict(pooling='first')),
    ((), dict(pooling={'pooling_mode': 'cls'}), dict(pooling='first')),
    ((f'{NEW}Transformer', f'{THEIRS}Pooling', f'{NEW}Normalize'), {}, dict(normalize=True)),
    ((), dict(rows=dict(max_seq_length=7, do_lower_case=True)), dict(max_length=7, lower=True)),
    ((), dict(texts=dict(prompts=PROMPTS)), dict(prompts=PROMPTS)),
    (
      (),
      dict(texts=dict(prompts=PROMPTS, default_prompt_name='query')),
      dict(prompts=PROMPTS, prompt='query'),
    ),
  ],
)
def test_both_forms_of_a_directory_are_read(tmp_path, types, files, read):
  found = sentence_vectors.read(written(tmp_path, *types, **files))
  assert found == sentence_vectors.Vectors(**read)


REFUSED = [  # modules, contents, words of the sentence
  ((f'{OLD}Transformer', f'{OLD}Pooling', f'{OLD}Dense'), {}, 'sentence_transformers.models.Dense'),
  (('evil.Transformer', f'{OLD}Pooling'), {}, "'evil.Transformer'"),
  ((f'{OLD}Pooling', f'{OLD}Transformer'), {}, 'in another order'),
  ((), dict(pooling={'pooling_mode': ['mean', 'max']}), 'has the pooling mean, max'),
  ((), dict(pooling={'pooling_mode_lasttoken': True}), 'has the pooling lasttoken'),
  ((), dict(pooling={'include_prompt': False}, texts=dict(prompts=PROMPTS)), 'out of the pooling'),
  ((), dict(texts=dict(model_type='SparseEncoder')), 'of the kind SparseEncoder'),
  ((), dict(modules=[{'type': f'{OLD}Transformer', 'path': 'x'}] * 2), 'other modules'),
  ((), dict(modules={'0': 1}), 'not as sentence-transformers writes it'),
  ((), dict(pooling={'pooling_mode': [['mean']]}), 'not as sentence-transformers writes it'),
  *(
    (
      (),
      dict(
        modules=[
          {'type': f'{OLD}{x}', 'path': p} for x, p in (('Transformer', ''), ('Pooling', path))
        ]
      ),
      'not a name inside this folder',
    )
    for path in ('../1_Pooling', '/1_Pooling', '1_Pooling/../..')
  ),
]


@pytest.mark.parametrize('types, files, words', REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_is_not_computed_is_refused_where_it_is_needed(tmp_path, types, files, words):
  found = sentence_vectors.read(written(tmp_path, *types, **files))
  assert (
    words in found.refused and found._replace(refused='', prompts={}) == sentence_vectors.Vectors()
  )


@pytest.mark.parametrize(
  'files',
  [
    dict(texts=dict(prompts=['query'])),
    dict(texts=dict(prompts={'query': 1})),
    dict(texts=dict(default_prompt_name='query')),
    dict(texts=dict(prompts=PROMPTS, default_prompt_name=['query'])),
    dict(rows=dict(max_seq_length='long')),
  ],
)
def test_damaged_files_are_refused(tmp_path, files):
  with pytest.raises(errors.UserError, match='not as sentence-transformers writes it'):
    sentence_vectors.read(written(tmp_path, **files))


def test_a_written_directory_is_read_as_it_was(tmp_path):
  for n, padding in enumerate(('right', 'left')):
    vectors = sentence_vectors.Vectors('first', True, (), PROMPTS, 'query', 9)
    for name, text in sentence_vectors.files(vectors, 4, padding).items():
      (tmp_path / str(n) / name).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / str(n) / name).write_text(text)
    assert sentence_vectors.read(tmp_path / str(n), padding) == vectors
  assert json.loads((tmp_path / '1/1_Pooling/config.json').read_text())['pooling_mode_lasttoken']
