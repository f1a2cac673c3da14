"""evaluate --babylm: rows of each form, ties, the file to submit, and regressions by their formula.

The network of most tests finds a text likelier the fewer letters it has.
"""

import json
import re
import types

import numpy as np
import pytest
import test_minimal_pairs as pairs
from scipy import stats

from bertzoo_jax.common import amounts
from bertzoo_jax.common import errors
from bertzoo_jax.evaluate import babylm
from bertzoo_jax.evaluate import human_data
from bertzoo_jax.evaluate import minimal_pairs

_ENTITY = dict(input_prefix='Box 0 has', numops=2)
_COMPS = dict(prefix_acceptable='A dog', prefix_unacceptable='A tree', property_phrase='can bark.')
_PIQA = dict(example_id='e1', prompt='To open,', solution0='push', solution1='pull it')
# {task: (file, row, texts, starts, index of the right one, subset)}
FORMS = {
  'blimp': (
    *('x.jsonl', dict(sentence_good='a', sentence_bad='b c', UID='wh_island')),
    *(('a', 'b c'), (0, 0), 0, 'wh_island'),
  ),
  'blimp_supplement': (
    *('hypernym.jsonl', dict(sentence_good='a', sentence_bad='b c')),
    *(('a', 'b c'), (0, 0), 0, 'hypernym'),
  ),
  'ewok': (
    *('x.jsonl', dict(Domain='social', Context1='I sit.', Context2='I go.', Target1='So.')),
    *(('I sit. So.', 'I go. So.'), (6, 5), 0, 'social'),
  ),
  'entity_tracking_filtered': (
    *('move_contents.jsonl', dict(_ENTITY, options=[' a cup', ' a pen', ' tea'])),
    *(('Box 0 has a cup', 'Box 0 has a pen', 'Box 0 has tea'), (9,) * 3, 0, 'move_contents_2_ops'),
  ),
  'comps': (
    *('comps_wugs_dist-in-between.jsonl', _COMPS),
    *(('A dog can bark.', 'A tree can bark.'), (6, 7), 0, 'wugs_dist_in_between'),
  ),
  'global_piqa_nonparallel': (
    *('eng_latn.jsonl', dict(_PIQA, label=1)),
    *(('To open, push', 'To open, pull it'), (8, 8), 1, 'e1'),
  ),
  'global_piqa_parallel': (
    *('eng_latn.jsonl', dict(_PIQA, solution2='x', solution3='yz', label=3)),
    *(('To open, push', 'To open, pull it', 'To open, x', 'To open, yz'), (8,) * 4, 3, 'e1'),
  ),
}
TASKS = {task.key: task for task in babylm.TASKS}


def write(folder, name, *rows):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / name).write_text('\n'.join(map(json.dumps, rows)) + '\n')


def by_letters(subject, tokenizer, items):
  """−1 nat per letter of a text, whose option has as many tokens as words."""
  nats = [np.array([-len(text.replace(' ', '')) for text in item.texts]) for item in items]
  cut = [[text[at:] for text, at in zip(item.texts, item.starts)] for item in items]
  return nats, [np.array([len(text.split()) for text in texts]) for texts in cut], 0


@pytest.fixture
def letters(monkeypatch):
  monkeypatch.setattr(minimal_pairs, 'scored', by_letters)


def choose(task, folder):
  return babylm._choices(TASKS[task], (None, None), folder)


@pytest.mark.parametrize('task', FORMS)
def test_a_row_of_each_form_is_options_after_contexts(task, tmp_path):
  file, row, texts, starts, right, group = FORMS[task]
  write(tmp_path, file, row)
  [item] = babylm._item(TASKS[task], row, file.removesuffix('.jsonl'))
  assert item == (texts, starts, right, group)
  assert {*FORMS} == {*TASKS}


@pytest.mark.parametrize(
  'task, changes',
  [
    ('blimp', dict(sentence_bad=' ')),
    ('blimp', dict(sentence_good=3)),
    ('blimp', dict(UID='\ud800')),  # not printed, not encoded
    ('ewok', dict(Context2=None)),
    ('entity_tracking_filtered', dict(options=[' a cup'])),
    ('entity_tracking_filtered', dict(options=' a cup')),
    ('comps', dict(property_phrase='')),
    ('global_piqa_nonparallel', dict(label=2)),
    ('global_piqa_nonparallel', dict(label='1')),
  ],
)
def test_a_row_of_another_form_is_refused_by_file_and_line(task, changes, tmp_path):
  file, row, *_ = FORMS[task]
  write(tmp_path, file, row, {**row, **changes})
  with pytest.raises(errors.UserError, match=f'{file}:2 is no row of {task}'):
    choose(task, tmp_path)


def test_a_tie_is_drawn_and_counted_and_the_same_text_is_right(letters, tmp_path):
  row = FORMS['blimp'][1]
  even = [dict(row, sentence_good='ab', sentence_bad='cd', UID='even') for _ in range(200)]
  write(tmp_path, 'x.jsonl', row, *even, dict(row, sentence_good='same', sentence_bad='same'))
  predictions, shares, rows, ties = choose('blimp', tmp_path)
  assert (rows, ties, shares['wh_island']) == (202, 201, 1.0)
  assert 0.4 < shares['even'] < 0.6
  assert predictions['even']['predictions'][199]['id'] == 'even_199'
  assert choose('blimp', tmp_path)[0] == predictions  # the same draw


@pytest.mark.parametrize(
  'task, expected, share',
  [
    ('ewok', 'I go. So.', 0.0),
    ('entity_tracking_filtered', ' tea', 0.0),
    ('comps', 'A dog can bark.', 1.0),
    ('global_piqa_nonparallel', ' pull it', 1.0),  # fewer letters per token
  ],
)
def test_a_prediction_is_a_text_as_the_task_has_it(letters, task, expected, share, tmp_path):
  file, row, *_, group = FORMS[task]
  without = [dict(row, options=[' nothing', ' a pen'])] * task.startswith('entity')
  write(tmp_path, file, row, *without)
  predictions, shares, rows, _ = choose(task, tmp_path)
  [first] = predictions[group]['predictions']
  assert (first['pred'], [*shares.values()], rows) == (expected, [share], 1)


def folder_of_all(root, which):
  for task in babylm.TASKS:
    if place := getattr(task, which):
      file, row, *_ = FORMS[task.key]
      write(root / which / place, file, row)


def test_the_file_to_submit_has_every_part_and_what_is_missing_is_named(
  letters, tmp_path, monkeypatch
):
  opened, lines, data = [], [], tmp_path / 'data'
  network = types.SimpleNamespace(how='masked', notes=()), None
  monkeypatch.setattr(
    minimal_pairs, 'opened', lambda address, by: opened.append(address) or network
  )
  for name in ('main', 'chck_1M', 'chck_20M', 'chck_x', '20', 'chck_2M..4M', 'chck_1000k'):
    (tmp_path / 'hf' / name).mkdir(parents=True)
  for which in ('full_eval', 'fast_eval'):
    for task in babylm.TASKS:
      write(data / which / (getattr(task, which) or 'none'), *FORMS[task.key][:2])
  (data / 'full_eval/comps/comps_wugs_dist-in-between.jsonl').unlink()
  contexts = [dict(context=' A '), dict(context='b')]
  write(data / 'full_eval/aoa', 'cdi_childes.json', dict(dog=contexts, x=contexts))
  tuned = {'rte': {'predictions': [{'id': 'rte_0', 'pred': 1}]}}
  write(tmp_path / 'glue/rte', 'predictions.json', tuned)
  write(tmp_path / 'glue/mnli', 'predictions.json', {})
  (data / 'full_eval/reading/reading_data.csv').mkdir(parents=True)
  (tmp_path / 'glue/submission').mkdir()
  (tmp_path / 'glue/submission/wsc.tsv').write_text('index\tprediction\n7\t1\n8\t0\n')
  tuned['wsc'] = {'predictions': [{'id': 'wsc_0', 'pred': 1}, {'id': 'wsc_1', 'pred': 0}]}
  address, glue = f'hf:{tmp_path}/hf/main', str(tmp_path / 'glue')
  result, found = babylm.evaluate(address, str(data), None, glue, lines.append)
  assert [one.rpartition('/')[2] for one in opened] == ['main', 'chck_1M', 'chck_20M']
  assert {*found} == {*TASKS, 'reading', 'aoa', 'aoa_surprisals', 'glue', 'fast_eval_results'}
  assert found['blimp']['wh_island']['predictions'] == [dict(id='wh_island_0', pred='a')]
  assert found['comps'] is None is found['reading'] is found['aoa'] and found['glue'] == tuned
  fast = found['fast_eval_results']
  assert {*fast} == {*TASKS, 'reading'} - {'comps'} and {len(x) for x in fast.values()} == {19}
  assert [n for n, one in enumerate(fast['ewok']) if one] == [0, 10]  # 1M, 20M
  assert fast['blimp'][10] == {'wh_island': 1.0}
  assert fast['global_piqa_parallel'][0] == {'global_piqa_parallel': 0.0}
  rows = found['aoa_surprisals']['results']
  assert [row['step'] for row in rows] == ['chck_1M'] * 2 + ['chck_20M'] * 2
  word = dict(target_word='dog', context_id=1, context='b')
  assert rows[1] == dict(step='chck_1M', word_count=10**6, **word, surprisal=4.0)
  missing = '; '.join(result.missing)
  for part in (
    'main, comps: .*has no row',
    'main, reading: .*directory',
    'chck_2M, chck_3M',
    'qqp, ',
  ):
    assert re.search(part, missing), part
  assert re.search('mnli, .*has no predictions of mnli', missing)
  assert not re.search('rte, |wsc, ', missing) and missing.count('; ') == len(result.missing) - 1
  assert len(lines) == 1 + 6 + 2 * 6 and 'missing: qqp' in babylm.table(result)
  assert '1 of 59,875' in babylm.table(result)  # as published


def test_what_keeps_a_checkpoint_from_being_scored_is_named_and_the_rest_is_scored(
  letters, tmp_path, monkeypatch
):
  network = types.SimpleNamespace(how='masked', notes=()), None

  def opened(address, by):
    if address.endswith('chck_2M'):
      raise errors.UserError('It is damaged.')
    return network

  def scored(subject, tokenizer, items):
    if items[0].group == 'dog':
      raise errors.UserError('A sentence has 600 tokens.')
    return by_letters(subject, tokenizer, items)

  monkeypatch.setattr(minimal_pairs, 'opened', opened)
  monkeypatch.setattr(minimal_pairs, 'scored', scored)
  for name in ('main', 'chck_1M', 'chck_2M'):
    (tmp_path / 'hf' / name).mkdir(parents=True)
  write(tmp_path / 'fast_eval/blimp_fast', *FORMS['blimp'][:2])
  write(tmp_path / 'full_eval/aoa', 'cdi_childes.json', dict(dog=[dict(context='A')]))
  how = f'hf:{tmp_path}/hf/main', str(tmp_path), None
  result, found = babylm.evaluate(*how, say=print)
  assert found['fast_eval_results']['blimp'][:2] == [{'wh_island': 1.0}, None]
  assert found['aoa_surprisals'] is None and found['glue'] == {}
  missing = '; '.join(result.missing)
  for part in ('tasks: give --glue', 'chck_1M, aoa: .*600 tokens', 'chck_2M: It is damaged'):
    assert re.search(part, missing), part
  with pytest.raises(errors.UserError, match='--glue=.*/hf has no predictions. boolq, .*exist'):
    babylm.evaluate(*how, str(tmp_path / 'hf'))
  with pytest.raises(errors.UserError, match='no full_eval and no fast_eval'):
    babylm.evaluate(how[0], str(tmp_path / 'hf'))


COLUMNS = dict.fromkeys(('Subtlex_log10', 'length', 'context_length', 'prev_length', 'prev_pred'))


def r_squared(y, x):
  """By the normal equations."""
  x = np.stack(x, axis=1)
  rest = y - x @ np.linalg.solve(x.T @ x, x.T @ y)
  return 1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum()


def test_variance_explained_is_the_gain_of_a_regression_with_products_of_predictors():
  draw = np.random.default_rng(1)
  known = {name: draw.normal(size=90) for name in (*COLUMNS, 'pred', 'time')}
  known['time'] += known['pred'] + known['length'] * known['context_length']
  known['time'][7] = known['pred'][8] = known['length'][9] = np.nan
  f, a, b = (known[name] for name in ('Subtlex_log10', 'length', 'context_length'))
  columns = [np.ones(90), f, a, b, f * a, f * b, a * b]
  shares = []
  for rows, more in (
    (np.delete(range(90), [7, 9]), ()),
    (np.delete(range(90), [7, 8, 9]), ('pred',)),
  ):
    x = [column[rows] for column in (*columns, *(known[name] for name in more))]
    shares.append(r_squared(known['time'][rows], x))
  found = human_data.explained(known, 'time', ('Subtlex_log10', 'length', 'context_length'))
  assert found == pytest.approx((shares[1] - shares[0]) / (1 - shares[0]), abs=1e-9)
  assert 0.2 < found < 0.8


def test_a_table_of_reading_times_gives_surprisal_of_words_and_of_those_before(
  tmp_path, monkeypatch
):
  seen = []
  surprisal = lambda subject, tokenizer, contexts, words: (
    seen.append((contexts, words)) or np.arange(len(words), dtype=float) ** 2
  )
  monkeypatch.setattr(human_data, 'surprisal', surprisal)
  times = ['RTfirstfix', 'RTfirstpass', 'RTgopast', 'RTrightbound', 'self_paced_reading_time']
  names = ['item', 'word', 'prev_item', 'prev_word', *times, *COLUMNS]
  draw = np.random.default_rng(0)
  rows = [names[:-1]] + [
    [f'"a, {n}"' if n else '', f' w{n}', '' if n < 2 else f'p{n}', f'v{n}']
    + [f'{x:.3f}' for x in draw.normal(size=9)]
    for n in range(40)
  ]
  rows[3][4] = 'NA'
  file = tmp_path / 'reading_data.csv'
  file.write_text('\n'.join(map(','.join, rows)))
  columns, shares = human_data.read(None, None, file)
  [(contexts, words)] = seen
  assert contexts[:2] + contexts[40:41] == ['None', 'a, 1', 'p2'] and words[39:41] == [' w39', 'v2']
  assert columns['pred'].tolist() == [n**2 for n in range(40)]
  assert np.isnan(columns['prev_pred'][:2]).all() and columns['prev_pred'][2] == 40**2
  assert {*shares} == {'rt', 'spr'} and all(0 <= x < 1 for x in shares.values())
  file.write_text('\n'.join(map(','.join, rows)) + '\n1,2')
  with pytest.raises(errors.UserError, match='fewer fields.*line 42'):
    human_data.read(None, None, file)
  for few in (rows[:8], [*rows[:1], *(row[:4] + ['1'] * 9 for row in rows[1:])]):
    file.write_text('\n'.join(map(','.join, few)))
    with pytest.raises(errors.UserError, match='RTfirstfix has too few rows, or one value'):
      human_data.read(None, None, file)


run, exported = pairs.run, pairs.exported


def test_surprisal_after_a_context_is_that_of_the_first_of_three_masks(run, exported):
  torch, transformers = map(pytest.importorskip, ('torch', 'transformers'))
  texts, words = ['The travellers', 'He sat'], ['Xylophones', 'there']
  theirs = transformers.AutoTokenizer.from_pretrained(exported)
  network = transformers.AutoModelForMaskedLM.from_pretrained(exported).eval()
  expected = []
  for text, word in zip(texts, words):
    total = 0.0
    for n, piece in enumerate(theirs(word, add_special_tokens=False)['input_ids']):
      part = theirs.decode([piece])
      asked = theirs(part, add_special_tokens=False)['input_ids'][0] if n else piece
      coded = theirs(text + '[MASK][MASK][MASK]', return_tensors='pt')
      with torch.no_grad():
        total -= network(**coded).logits[0, -4].log_softmax(-1)[asked].item()
      text += part
    expected.append(total)
  found = human_data.surprisal(*minimal_pairs.opened(run[0]), texts, words)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  assert found[0] > 1.5 * found[1]  # of several pieces


def test_the_age_of_a_word_is_where_its_curve_crosses_half_and_is_correlated(tmp_path):
  ages, steps = np.arange(16, 31), [i * 10**6 for i in (*range(1, 10), *range(10, 101, 10))]
  child = np.linspace(17.5, 29, 9)
  learned = np.array([6.3, 6.2, 6.6, 6.5, 6.8, 7.0, 7.1, 6.9, 7.3])
  head, x = 'word,' + ','.join(map(str, ages)), np.log10(np.array(steps) + 1.0)
  words = [f'word{n}' for n in range(9)]
  shares = [1 / (1 + np.exp(-0.5 * (ages - at))) for at in child]
  rows = [','.join([word, *(f'{s:.6f}' for s in share)]) for word, share in zip(words, shares)]
  rows[0] = rows[0].replace(rows[0].split(',')[3], '')  # an age that nobody was asked at
  file = tmp_path / 'cdi_human.csv'
  again = rows[8].replace('word8', 'word0')  # the first row of a word counts
  file.write_text('\n'.join([head, *rows, again]))
  chance = np.log(1000)  # of one piece; the sigmoid goes from it to 1 nat
  curve = lambda at: chance - (chance - 1) / (1 + np.exp(-6 * (x - at)))
  nats = np.stack([curve(at) for at in learned])
  of = np.repeat(np.arange(9), 2)  # two contexts, around the mean
  values = nats[of] + np.where(np.arange(18) % 2, 0.25, -0.25)[:, None]
  tokenizer = types.SimpleNamespace(
    vocab_size=1000, encode_as_transformers=lambda texts: [text.split() for text in texts]
  )
  given = [words[n] for n in of], dict(zip(steps, values.T))
  level = (chance + nats.min(axis=1)) / 2  # the least surprisal is not quite 1
  crossed = learned - np.log((chance - 1) / (chance - level) - 1) / 6
  expected = stats.pearsonr(crossed, child)
  assert human_data.acquired(*given, tokenizer, file) == pytest.approx(expected[0], abs=1e-3)
  file.write_text('\n'.join([head, *rows[:2]]))
  assert human_data.acquired(*given, tokenizer, file) == 0.0  # of two words
  mixed = [words[n] for n in np.array([3, 7, 1, 8, 0, 5, 2, 6, 4])[of]]
  file.write_text('\n'.join([head, *rows]))
  assert human_data.acquired(mixed, given[1], tokenizer, file) == 0.0  # not significant
  file.write_text('word,age\nword0,1')
  with pytest.raises(errors.UserError, match='no table of words and ages'):
    human_data.acquired(*given, tokenizer, file)


def test_revisions_are_named_by_the_words_that_a_checkpoint_has_seen():
  names = [amounts.revision(n) for n in amounts.numbers('500,100k,1M..3M,1G')]
  assert names == ['chck_500', 'chck_100k', 'chck_1M', 'chck_2M', 'chck_3M', 'chck_1000M']
