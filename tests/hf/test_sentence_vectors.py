import json

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.hf import sentence_vectors

OLD = 'sentence_transformers.models.'
NEW = 'sentence_transformers.base.modules.transformer.'
THEIRS = 'sentence_transformers.sentence_transformer.modules.pooling.'
CLS = {'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False}
PROMPTS = {'query': 'query: ', 'passage': 'passage: '}
ASKED = dict(prompts=PROMPTS, default_prompt_name='query')
ALONE = {'include_prompt': False}


def located(pooling='1_Pooling', network=''):
  places = zip(('Transformer', 'Pooling'), (network, pooling))
  return [{'type': f'{OLD}{name}', 'path': path} for name, path in places]


def written(folder, *types, **files):
  """files: modules, pooling, rows, texts: the contents, where they are not the usual ones."""
  names = types or (f'{OLD}Transformer', f'{OLD}Pooling')
  place = lambda i, x: f'{i}_{x.rpartition(".")[2]}' * (i > 0)
  modules = [{'path': place(i, x), 'type': x} for i, x in enumerate(names)]
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
    ((), dict(texts=ASKED), dict(prompts=PROMPTS, prompt='query')),
  ],
)
def test_both_forms_of_a_directory_are_read(tmp_path, types, files, read):
  found = sentence_vectors.read(written(tmp_path, *types, **files))
  assert found == sentence_vectors.Vectors(**read)


REFUSED = [  # modules, contents, words of the sentence
  ((f'{OLD}Transformer', f'{OLD}Pooling', f'{OLD}Dense'), {}, 'sentence_transformers.models.Dense'),
  (('evil.Transformer', f'{OLD}Pooling'), {}, "'evil.Transformer'"),
  ((f'{OLD}Pooling', f'{OLD}Transformer'), {}, 'in another order'),
  ((f'{OLD}Transformer',), {}, 'other modules'),
  ((), dict(pooling={'pooling_mode': ['mean', 'max']}), 'the pooling is mean, max;'),
  ((), dict(pooling={'pooling_mode_lasttoken': True}), 'the pooling is lasttoken;'),
  ((), dict(pooling=ALONE, texts=dict(prompts=PROMPTS)), 'is mean without the prompts'),
  ((), dict(texts=dict(model_type='SparseEncoder')), 'of another kind, SparseEncoder'),
  ((), dict(modules=located('2_Pooling')), '2_Pooling/config.json is missing'),
  ((), dict(modules=located(network='0_Transformer')), "the network in '0_Transformer'"),
]


@pytest.mark.parametrize('types, files, words', REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_is_not_computed_is_refused_where_it_is_needed(tmp_path, types, files, words):
  found = sentence_vectors.read(written(tmp_path, *types, **files))
  assert words in found.refused
  assert found._replace(refused='', prompts={}) == sentence_vectors.Vectors()


NOT_WRITTEN = 'not as sentence-transformers writes them'
DAMAGED = [
  (dict(texts=dict(prompts=['query'])), NOT_WRITTEN),
  (dict(texts=dict(prompts={'query': 1})), NOT_WRITTEN),
  (dict(texts=dict(default_prompt_name='query')), NOT_WRITTEN),
  (dict(texts=dict(ASKED, default_prompt_name=['query'])), NOT_WRITTEN),
  (dict(rows=dict(max_seq_length='long')), NOT_WRITTEN),
  (dict(modules={'0': 1}), NOT_WRITTEN),
  (dict(pooling={'pooling_mode': [['mean']]}), NOT_WRITTEN),
  (dict(modules=located('../1_Pooling')), 'not a name inside this folder'),
  (dict(modules=located('/1_Pooling')), 'not a name inside this folder'),
  (dict(modules=located('1_Pooling/../..')), 'not a name inside this folder'),
]


@pytest.mark.parametrize('files, words', DAMAGED, ids=[str(n) for n in range(len(DAMAGED))])
def test_damaged_files_and_names_that_lead_out_of_the_folder_are_refused(tmp_path, files, words):
  with pytest.raises(errors.UserError, match=words):
    sentence_vectors.read(written(tmp_path, **files))


def test_a_written_directory_is_read_as_it_was(tmp_path):
  for n, padding in enumerate(('right', 'left')):
    vectors = sentence_vectors.Vectors('first', True, (), PROMPTS, 'query', 9)
    for name, text in sentence_vectors.files(vectors, 4, padding).items():
      (tmp_path / str(n) / name).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / str(n) / name).write_text(text)
    assert sentence_vectors.read(tmp_path / str(n), padding) == vectors
  assert json.loads((tmp_path / '1/1_Pooling/config.json').read_text())['pooling_mode_lasttoken']
