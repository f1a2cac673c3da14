import functools

import huggingface_hub
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import parts
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import card
from bertzoo_jax.hf import weights

OBJECTIVES = [*parts.SECTIONS['objective']]
OWN = 'of another package'
MASKINGS = {
  **{n: parts.section(x) for n, x in parts.SECTIONS['masking'].items()},
  'similar words': parts.ngram(weights=(4, 3, 2, 1), substitute='similar', corrupted='units'),
  'all masked': parts.token(corruption=(1.0, 0.0, 0.0)),
  OWN: {'name': 'mine:masking', 'corruption': 'some', 'odd': [1, 'a|b']},
}
WISHED = {'mlm_pair': 'BertForPreTraining', 'mlm': 'BertForMaskedLM'}
CROSSED = [*((x, 'token') for x in OBJECTIVES), *(('mlm_pair', x) for x in MASKINGS)]
HOSTILE = 'dev_x"}]\n---\n# <b>*head*</b>'


@functools.lru_cache
def exported(name):
  """[(architecture, encoder, tensors)] of an objective's networks."""
  objective = small.objective(name)
  params, out = small.parameters(objective), []
  for network in objective.networks:
    wished = WISHED.get(name, 'ElectraForPreTraining')
    flat = weights.flatten(network.extract(params))
    a = architectures.choose(architectures.fitting(wished, network.encoder.activation, flat))
    held = architecture.placed(a, flat)
    tensors, _ = export.convert(a, held, network.encoder, small.BERT_IDS)
    out.append((a, network.encoder, tensors))
  return out


def read(
  a, encoder, tensors, *, step=1500, corpus=(), init=None, metrics=(), base=(), average='', **config
):
  phases = (1000, {}), (1000, {'length': 24}), (1000, {'length': 40})
  made = parts.experiment(
    **dict(tokenizer=parts.wordpiece(), corpus=parts.corpus(), format=parts.full_sentences()),
    **dict(masking=parts.token(), encoder=parts.transformer(), objective=parts.mlm()),
    **dict(optimizer=parts.adamw(), schedule=parts.linear_from_start(), run=parts.run()),
    **dict(length=16, batch_size=8, phases=phases, hf=''),
  ).to_dict()
  made = {**made, **{k: dict(v) if hasattr(v, 'items') else v for k, v in config.items()}}
  sizes = a.sizes(encoder, small.BERT_IDS)
  told = card.Run(
    *(a, encoder, sizes, made, step, tensors, dict(corpus), dict(metrics), [], init),
    checked='Compared.',
    average=average,
    base_models=base,
  )
  return card.text(told)


@pytest.mark.parametrize('objective, masking', CROSSED)
def test_a_card_tells_each_masking_as_its_config_has_it(objective, masking):
  section = MASKINGS[masking]
  pairs = parts.segment_pairs() if objective == 'mlm_pair' else parts.full_sentences()
  for a, encoder, tensors in exported(objective):
    sections = dict(masking=section, objective=getattr(parts, objective)(), format=pairs)
    said = read(a, encoder, tensors, **sections)
    row = next(line for line in said.splitlines() if line.startswith('| masking |'))
    assert row.startswith(f'| masking | {section["name"]}')
    shown = ('permutation', 'in_order', OWN)  # no token is replaced, or nobody knows
    assert ('mask token' in row) == (masking not in (*shown, 'similar words'))
    assert ('similar word' in row) == (masking == 'similar words')
    assert ('replaced 80%' in row) == (masking not in (*shown, 'all masked'))
    for field in ('rate', 'weights', 'context', 'scan', 'odd'):
      assert (f'{field} ' in row.partition('(')[2]) == (field in section), field
    assert row.replace('\\|', '').count('|') == 3
    assert f'| objective | {objective}' in said
    assert ('Its labels in training' in said) == (a.name == 'BertForPreTraining')
    if a.name != 'BertForPreTraining':
      assert ('- masked-language-modeling' in said) == a.name.endswith('MaskedLM')


def test_a_network_that_saw_no_mask_is_not_called_one_that_fills_masks():
  a = architectures.choose('ModernBertForMaskedLM')
  for learned in (('left to right',), ('left to right', 'masked'), ('masked',)):
    said, fills = card.with_learned(a, learned), 'masked' in learned
    assert said.heads.startswith(a.heads) == fills
    assert ('does not fill masks' in said.heads) != fills
    assert bool(said.pipeline) == (learned == ('masked',))


def test_batches_of_unlike_phases_are_told_with_their_steps():
  config = {'batch_size': 384, 'phases': [(10, {'batch_size': 2560}), (20, {}), (5, {})]}
  assert card._batch(config, 15) == '2,560 rows for 10 steps, 384 rows for 5 steps'
  assert card._batch(config, 10) == '2,560 rows'
  config['phases'] = [(10, {'length': 8}), (20, {})]
  assert card._batch(config, 15) == '384 rows'


@pytest.mark.parametrize(
  'format,says,never',
  [
    (parts.segment_pairs(), '1: it was drawn at random.', 'swapped'),
    (parts.sentence_pairs(), '1: it was drawn at random.', 'swapped'),
    (parts.segment_pairs(negatives='pool'), '1: it belongs to another row.', 'swapped'),
    (parts.segment_pairs(pairs='sop', lone_sentences='skip'), '1: they are swapped.', 'random one'),
    (parts.segment_pairs(pairs='sop'), 'a single sentence got a random one behind it', 'drawn'),
  ],
)
def test_a_card_tells_the_labels_of_pairs_as_the_format_made_them(format, says, never):
  labels = read(*exported('mlm_pair')[0], format=format).partition('Its labels in training')[2]
  assert says in labels.split('\n')[0] and never not in labels.split('\n')[0]


def test_a_card_tells_the_longest_row_that_was_trained_and_no_phase_to_come():
  a, encoder, tensors = exported('mlm')[0]
  assert encoder.max_positions == 40
  said = read(a, encoder, tensors, step=1500)
  assert 'trained on rows of at most 24 tokens' in said and 'did not train those from 24 on' in said
  assert '| lengths | 16 tokens for 1,000 steps, 24 tokens for 500 steps |' in said
  assert 'It reads at most 40 tokens.' in read(a, encoder, tensors, step=3000)
  assert '40 tokens for' not in said and 'at most 40' not in said


@pytest.mark.parametrize('absolute', ['input', 'decoder', 'none'])
def test_a_card_speaks_of_rows_of_a_position_table_only_where_there_is_one(absolute):
  objective = small.objective('mlm', **{**small.DISENTANGLED, 'absolute_positions': absolute})
  network, params = objective.networks[0], small.parameters(objective)
  a = architectures.choose('DebertaV2ForMaskedLM')
  tensors, _ = export.convert(a, weights.flatten(params), network.encoder, small.BERT_IDS)
  said = read(a, network.encoder, tensors, step=1500)
  assert 'trained on rows of at most 24 tokens: cut texts there.' in said
  assert ('did not train those from 24 on' in said) == (absolute != 'none')
  assert ('It takes 40, and has no position table.' in said) == (absolute == 'none')


def test_a_card_tells_where_the_text_is_from_and_what_is_not_recorded():
  network = exported('mlm')[0]
  corpus = dict(hash='c0ffee', language='et', license='cc-by-sa-4.0')
  corpus['sources'] = ['/home/me/wiki.xml', 'tfds:x']
  said = read(*network, corpus=corpus, init='hf:org/name,/home/me/runs/W@best')
  rows = dict(language='et', licence='cc-by-sa-4.0', sources='wiki.xml, tfds:x')
  for fact in ('- "et"', *(f'| {name} of the text | {fact} |' for name, fact in rows.items())):
    assert fact in said, fact
  assert '| began with | hf:org/name, W@best |' in said and '/home/me' not in said
  bare = read(*network)
  assert all(f'| {name} of the text | not recorded |' in bare for name in rows)
  assert '| began with | random weights |' in bare and 'language:' not in bare


def test_the_hub_reads_the_scores_and_base_models_of_a_card():
  metrics = dict(loss=4.25, held_out_loss=4.5, held_out_mlm_accuracy=0.123456, dev_nan=float('nan'))
  base = ('org/na-me', 'gpt2', 'a/b/c', '../x', 'a"\nb')
  said = read(*exported('mlm')[0], metrics={**metrics, HOSTILE: 1}, base=base, name=HOSTILE)
  data = huggingface_hub.ModelCard(said).data
  assert data.base_model == ['org/na-me', 'gpt2']
  assert data.to_dict()['library_name'] == 'transformers'
  found = {x.metric_type: x.metric_value for x in data.eval_results}
  assert (found.pop('held_out_loss'), found.pop('held_out_mlm_accuracy')) == (4.5, 0.12346)
  assert [*found.values()] == [1] and said.count('\n---\n') == 1
  (x,) = {(x.task_type, x.dataset_name) for x in data.eval_results}
  assert x == ('fill-mask', 'text kept out of training')
  bare = huggingface_hub.ModelCard(read(*exported('mlm')[0])).data
  assert bare.base_model is None and bare.eval_results is None


@pytest.mark.parametrize(
  'features, usual, texts, own, most',
  [
    ({}, False, 'question, passage', 1, 30),
    ({}, True, 'passage, question', 0, 30),
    ({'order': 'auto', 'max_answer': 15}, True, 'passage, question', 0, 15),
    ({'order': 'passage_first', 'max_answer': 50}, False, 'passage, question', 0, 50),
    ({'order': 'question_first', 'max_answer': 8}, True, 'question, passage', 1, 8),
  ],
)
def test_a_card_reads_answers_in_the_order_and_length_of_the_run(features, usual, texts, own, most):
  code = card._filled('answers', card._answers(features, usual))
  assert f'texts = {texts}' in code and f'[s == {own} for s' in code
  assert f'.triu({most}).bool()' in code
