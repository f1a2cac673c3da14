"""evaluate --minimal_pairs: log-likelihoods beside a direct computation, files and refusals."""

import json

import jax
import numpy as np
import pytest
import test_evaluate as evaluated

from bertzoo_jax import export
from bertzoo_jax import parts
from bertzoo_jax import pretrained
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import likelihoods
from bertzoo_jax.evaluate import minimal_pairs
from bertzoo_jax.evaluate import pair_files
from bertzoo_jax.objectives import networks
from configs import bert
from configs import xlnet
from tests.export import test_export as exports
from tests.pretrained import test_loading as loading

SENTENCES = (
  'The travellers talk of it in the laboratory.',
  'Unintelligibility: xylophones!',
  'I saw',
  'He sat there in the quiet evening and thought of all that he had seen in the years to come.',
)


def make_run(path, config):
  """(address, weights) of a run with perturbed weights."""
  config.phases = ((1000, {}),)
  config.tokenizer = parts.wordpiece(vocab_size=600)
  sizes = {k: v for k, v in exports.SIZES.items() if k in config.encoder}
  return f'{path}@7', exports.make_workdir(path, config, sizes)


def masked_config(objective='mlm'):
  config = bert.get_config(f'tiny,objective={objective},format=full_sentences')
  config.hf = 'BertForMaskedLM'
  return config


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return make_run(tmp_path_factory.mktemp('run'), masked_config())


@pytest.fixture(scope='module')
def exported(run, tmp_path_factory):
  """A Hugging Face directory of the run."""
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  return loading.written(run[0], tmp_path_factory.mktemp('hf') / 'out')


def scores_of(address, texts, by=None):
  subject, tokenizer = minimal_pairs.opened(address, by)
  ids = [x.tolist() for x in tokenizer.encode_as_transformers(list(texts))]
  words = dict(zip(map(tuple, ids), tokenizer.words_of(list(texts))))
  return likelihoods.log_likelihoods(subject._replace(words=words), ids), ids


def hidden(coded, places, mask):
  """A row with masks at places."""
  row = coded['input_ids'].clone()
  row[0, places] = mask
  return row


def of_one_word(coded, place):
  """The later tokens of a word, and itself."""
  words = coded.word_ids()
  return [i for i in range(place, len(words)) if words[i] == words[place]]


def by_transformers(folder, name, logits, texts=SENTENCES, **given):
  """Log-likelihoods of texts, token by token. logits: of (network, encoded row, place, mask id)."""
  torch, transformers = map(pytest.importorskip, ('torch', 'transformers'))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  network = getattr(transformers, name).from_pretrained(folder, **given).eval()
  out = []
  for text in texts:
    coded, total = tokenizer(text, return_tensors='pt'), 0.0
    for place, word in enumerate(coded.word_ids()):
      if word is not None:
        with torch.no_grad():
          found = logits(network, coded, place, tokenizer.mask_token_id).log_softmax(-1)
        total += found[coded['input_ids'][0, place]].item()
    out.append(total)
  return out


@pytest.mark.parametrize('by', [None, 'words'])
def test_a_pseudo_log_likelihood_is_that_of_transformers_on_the_export(run, exported, by):
  places = of_one_word if by == 'words' else lambda coded, place: [place]
  logits = lambda n, coded, at, mask: n(hidden(coded, places(coded, at), mask)).logits[0, at]
  expected = by_transformers(exported, 'BertForMaskedLM', logits)
  for address in (run[0], f'hf:{exported}'):
    found, ids = scores_of(address, SENTENCES, by)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
  assert len(ids[1]) > len(SENTENCES[1].split()) + 4  # words of several tokens
  assert by is None or np.abs(found - scores_of(run[0], SENTENCES)[0]).max() > 1e-2


def test_a_network_of_both_kinds_of_rows_is_scored_both_ways_and_read_so_by_transformers(
  tmp_path, capsys
):
  address, _ = make_run(tmp_path / 'run', masked_config('causal_masked'))
  out, texts = str(tmp_path / 'hf'), SENTENCES[:3]
  export.export(address, out)
  before = lambda n, coded, at, mask: n(hidden(coded, [at], mask)).logits[0, at - 1]
  alone = lambda n, coded, at, _: n(coded['input_ids']).logits[0, at - 1]
  expected = {
    'masked': by_transformers(out, 'BertForMaskedLM', before, texts),
    'left to right': by_transformers(out, 'BertLMHeadModel', alone, texts, is_decoder=True),
  }
  for way, values in expected.items():
    for where in (address, f'hf:{out}'):
      np.testing.assert_allclose(scores_of(where, texts, way)[0], values, atol=2e-4)
  np.testing.assert_array_equal(
    scores_of(address, texts[:1])[0], scores_of(address, texts[:1], 'masked')[0]
  )
  said = (tmp_path / 'hf/README.md').read_text()
  assert 'one token before it' in said and 'BertLMHeadModel.from_pretrained' in said
  assert 'pipeline_tag' not in said


def test_a_query_stream_predicts_each_token_from_all_others(tmp_path):
  torch = pytest.importorskip('torch')
  address, _ = make_run(tmp_path / 'run', xlnet.get_config('tiny'))
  loading.written(address, tmp_path / 'hf')

  def logits(network, coded, place, _):
    length = coded['input_ids'].shape[1]
    unseen, asked = torch.zeros(1, length, length), torch.zeros(1, 1, length)
    unseen[:, :, place], asked[:, :, place] = 1.0, 1.0
    return network(**coded, perm_mask=unseen, target_mapping=asked).logits[0, 0]

  expected = by_transformers(tmp_path / 'hf', 'XLNetLMHeadModel', logits, SENTENCES[:3])
  found, _ = scores_of(address, SENTENCES[:3])
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
  assert minimal_pairs.opened(address)[0].how == likelihoods.QUERIES


def test_a_network_from_left_to_right_has_its_own_log_likelihood(tmp_path):
  config = xlnet.get_config('tiny,masking=in_order')
  config.encoder.memory_length = 0
  subject, tokenizer = minimal_pairs.opened(make_run(tmp_path, config)[0])
  assert subject.how == likelihoods.LEFT_TO_RIGHT

  @jax.jit
  def logits_of(params, batch):
    states = networks.predictions(subject.encoder, params['encoder'], batch, None)[0]
    return networks.vocabulary_logits(subject.encoder, params, states)[:, 0]

  texts = [x.tolist() for x in tokenizer.encode_as_transformers(list(SENTENCES[1:3]))]
  for text, total in zip(texts, likelihoods.log_likelihoods(subject, texts), strict=True):
    row = np.array([*text, subject.special['sep'], subject.special['cls']])
    at, place = np.arange(len(text)), np.arange(len(row))
    ids = np.where(place > at[:, None], subject.special['unk'], row)  # later ones have no effect
    batch = dict(input_ids=ids, order=place + 0 * ids, segment_ids=1 + 0 * ids)
    batch |= dict(token_type_ids=2 * (place == place[-1]) + 0 * ids, masked_positions=at[:, None])
    nats = jax.nn.log_softmax(logits_of(subject.params, batch))
    np.testing.assert_allclose(total, np.asarray(nats)[at, row[at]].sum(), atol=2e-4)


def test_a_sentence_scores_the_same_beside_others_and_in_small_batches(run, monkeypatch):
  together, ids = scores_of(run[0], SENTENCES)
  assert len({likelihoods._length(minimal_pairs.opened(run[0])[0], text) for text in ids}) > 1
  monkeypatch.setattr(likelihoods, '_TOKENS', 100)  # the last batch is not full
  alone = [scores_of(run[0], [text])[0][0] for text in SENTENCES]
  np.testing.assert_allclose(together, alone, atol=1e-4)


ROW = dict(sentence_good='a', sentence_bad='b', term='t', UID='x')


def write_pairs(path, pairs, **fields):
  rows = [dict(sentence_good=g, sentence_bad=b, **fields, UID=uid) for g, b, uid in pairs]
  path.write_text('\n'.join(map(json.dumps, rows)))
  return str(path)


def test_a_pair_is_right_if_its_good_sentence_is_likelier_and_a_tie_is_wrong(run, tmp_path):
  texts = [*SENTENCES, 'It was here.', 'The evening came.']
  score, _ = scores_of(run[0], texts)
  worse_first = [texts[i] for i in np.argsort(score)]
  pairs = [(b, a, 'right') for a, b in zip(worse_first, worse_first[1:])]
  pairs += [(a, b, 'wrong') for a, b in zip(worse_first, worse_first[1:])]
  pairs += [(texts[0], texts[0], 'tie'), (texts[1], texts[1].upper(), 'tie')]
  found = minimal_pairs.evaluate(run[0], write_pairs(tmp_path / 'pairs.jsonl', pairs))
  groups = [(g.group, g.accuracy, g.ties) for g in found.groups]
  assert groups == [('right', 1.0, 0), ('wrong', 0.0, 0), ('tie', 0.0, 2)]
  assert (found.total.pairs, found.total.ties) == (12, 2)
  assert found.total.accuracy == pytest.approx(5 / 12)
  assert found.total.standard_error == pytest.approx(np.sqrt(5 / 12 * 7 / 12 / 12))


def test_the_command_prints_groups_and_writes_json(run, tmp_path, capsys):
  pairs = [(SENTENCES[0], SENTENCES[1], 'one'), (SENTENCES[2], SENTENCES[2], 'two')]
  file = write_pairs(tmp_path / 'pairs.jsonl', pairs)
  written = tmp_path / 'out.json'
  asked = dict(workdir=run[0], minimal_pairs=file, json=written)
  evaluated.run_command(**asked)
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].endswith('at step 7 on ' + file + ', tokens: masked')
  assert [line.split()[0] for line in lines[2:5]] == ['one', 'two', 'all']
  assert lines[5] == 'note: 1 ties are counted as wrong.'
  written = json.loads(written.read_text())
  assert [g['group'] for g in written['groups']] == ['one', 'two']
  assert written['total']['pairs'] == 2 and written['how'] == 'masked'
  with pytest.raises(errors.UserError, match='not overwritten'):
    evaluated.run_command(**asked)


def test_files_are_read_in_both_layouts(tmp_path):
  pairs = [('A b.', 'A c.'), ('D\u2028e.', 'D f.')]
  names = 'sentence_good', 'sentence_bad', 'field', 'UID', 'pair_id'
  rows = [dict(zip(names, (*pair, 'syntax', 'xy'[i], i))) for i, pair in enumerate(pairs)]
  blimp = tmp_path / 'a.jsonl'
  text = '\r\n'.join(json.dumps(row, ensure_ascii=False) for row in rows) + '\r\n'
  blimp.write_bytes(('\ufeff' + text).encode())
  assert pair_files.read(str(blimp)) == [(p, (0, 0), 0, g) for p, g in zip(pairs, 'xy')]
  assert pair_files.read(str(blimp), 'field') == [(p, (0, 0), 0, 'syntax') for p in pairs]
  table = tmp_path / 'b.tsv'
  table.write_text('sentence_good\tsentence_bad\nA "b.\tA c.\n\n')
  assert pair_files.read(str(table)) == [(('A "b.', 'A c.'), (0, 0), 0, '')]
  several = dict(context='In it,', options=[' a', ' b.', ' c'], label=2, UID='z')
  (tmp_path / 'c.jsonl').write_text(json.dumps(several))
  [item] = pair_files.read(str(tmp_path / 'c.jsonl'))
  assert item == (('In it, a', 'In it, b.', 'In it, c'), (6, 6, 6), 2, 'z')
  (tmp_path / 'c.jsonl').unlink()
  both = pair_files.read(str(tmp_path))
  assert [p.group for p in both] == ['x', 'y', 'b']


@pytest.mark.parametrize(
  'name, content, words',
  [
    ('a.jsonl', '{"sentence_good": "a"}', "a.jsonl:1 has no 'sentence_bad'; it has sentence_good"),
    ('a.jsonl', '{"sentence_good": "a", "sentence_bad": ""}', 'none of them empty'),
    ('a.jsonl', '{"sentence_good": "a", "sentence_bad": 3}', 'none of them empty'),
    ('a.jsonl', '{"options": ["a", "b"], "label": 2}', 'a.jsonl:1 .*no number from 0 to 1'),
    ('a.jsonl', '{"options": ["a", "b"], "context": 1}', 'a context is no text'),
    ('a.jsonl', '[1]', 'it has no fields'),
    ('a.jsonl', json.dumps(ROW), "no 'trem'; it has .*term, UID. Give another --group"),
    ('a.jsonl', '\n{', 'a.jsonl:2 is no JSON'),
    ('a.jsonl', '\n', 'has no pair'),
    ('a.tsv', 'a\tb\tc', 'a.tsv:1 has 3 columns'),
    ('a.csv', 'a,b', 'ends in .jsonl or .tsv'),
    ('a.tsv', b'\xff\tb', 'no UTF-8'),
  ],
)
def test_a_file_of_another_form_is_refused(name, content, words, tmp_path):
  (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  group = ['trem'] if 'trem' in words else []
  with pytest.raises(errors.UserError, match=words):
    pair_files.read(str(tmp_path / name), *group)


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match='does not exist'):
    pair_files.read(str(tmp_path / 'b.jsonl'))


@pytest.mark.parametrize(
  'objective, masking, by, words',
  [
    ('mlm', dict(substitute='similar', corrupted='units'), None, 'ngram of .* never shows .MASK'),
    ('mlm', dict(corruption=(0.0, 1.0, 0.0)), None, 'masking=token of .* never shows .MASK'),
    ('corruption_detection', {}, None, 'trains no network that gives the probability'),
    ('mlm', {}, 'left to right', 'is scored by masked, words, as it learned'),
    ('causal_lm', {}, 'masked', 'is scored by left to right, as it learned'),
    ('causal_lm', {}, None, likelihoods.LEFT_TO_RIGHT),
    ('replaced_token', {}, None, likelihoods.MASKED),
  ],
)
def test_a_way_that_a_network_did_not_learn_is_refused(tmp_path, objective, masking, by, words):
  config = masked_config(objective)
  if masking:
    config.masking = (parts.ngram if 'substitute' in masking else parts.token)(**masking)
  address, params = make_run(tmp_path, config)
  if words not in (likelihoods.LEFT_TO_RIGHT, likelihoods.MASKED):
    with pytest.raises(errors.UserError, match=words):
      minimal_pairs.opened(address, by)
    return
  subject, _ = minimal_pairs.opened(address)
  assert subject.how == words
  if objective == 'replaced_token':
    [note] = subject.notes
    assert note.startswith('the generator is scored; the discriminator is not')
    kernel = params['generator']['mlm_head']['transform']['kernel']
    np.testing.assert_array_equal(subject.params['mlm_head']['transform']['kernel'], kernel)


def test_a_frame_is_that_of_the_runs_class_and_a_sentence_may_be_too_long(run):
  subject, _ = minimal_pairs.opened(run[0])
  rows, text = likelihoods._framed(subject, [([7, 8], 0, 2)], 6)
  cls, sep, pad = (subject.special[name] for name in ('cls', 'sep', 'pad'))
  assert rows['input_ids'].tolist() == [[cls, 7, 8, sep, pad, pad]]
  assert text.tolist() == [[False, True, True, False, False, False]]
  assert rows['segment_ids'].tolist() == [[1, 1, 1, 1, 0, 0]]
  ahead = likelihoods._one_place(subject._replace(ahead=True), rows, np.array([0]))
  assert ahead['masked_weights'].tolist() == [[0.0]]  # no output predicts the first token of a row
  with pytest.raises(errors.UserError, match='A sentence has 62 tokens.*the network takes 32'):
    likelihoods.log_likelihoods(subject, [[7] * 60])


def test_a_directory_without_a_vocabulary_head_is_refused(exported, monkeypatch):
  whole = pretrained.open(f'hf:{exported}')
  bare = whole._replace(params={'encoder': whole.params['encoder']})
  monkeypatch.setattr(pretrained, 'open', lambda address: bare)
  with pytest.raises(errors.UserError, match='gives no probability of a token.*the generator'):
    minimal_pairs.opened(f'hf:{exported}')
