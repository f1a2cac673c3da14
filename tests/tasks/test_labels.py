import made
import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import labels
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Record
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.examples import Text
from bertzoo_jax.tasks.reading import columns as column_names

CLASSES = kinds.BY_NAME['classification']
NUMBERS = tuple(f'{i}.5' for i in range(50))
BOTH = dict(kind='multilabel', columns=('mad', 'sad'), train=(('0', '1'),))


def examples(*given, texts=None):
  given = [g if isinstance(g, tuple) else (g,) for g in given]
  texts = texts or [f'text {i}' for i in range(len(given))]
  values = [Text(text, None, label) for text, label in zip(texts, given)]
  return Examples([Record(v.a, str(i), v) for i, v in enumerate(values)])


def numbered(kind='classification', columns=('label',), dev=('a',), train=('a', 'b'), **fields):
  splits = dict(train=examples(*train), dev=examples(*dev))
  return labels.numbered(Source(splits, label_columns=columns, **fields), kinds.BY_NAME[kind])


def test_labels_are_those_of_train_sorted_by_number_if_all_are_numbers():
  known = {'baca': ('a', 'b', 'c'), ('10', '9', '-1', '9'): ('-1', '9', '10')}
  known['10', '9', 'x'] = '10', '9', 'x'
  for train, names in known.items():
    found, splits, _ = numbered(train=train, dev=train[:1])
    assert found == names and splits['train'][1].dtype == np.int32
    assert [names[i] for i in splits['train'][1]] == list(train)


def test_given_labels_have_their_order_and_spellings():
  names, splits, _ = numbered(train=('yes', 'no', 'nope'), dev=('no',), labels=('yes', 'no|nope'))
  assert names == ('yes', 'no') and list(splits['train'][1]) == [0, 1, 1]


@pytest.mark.parametrize(
  'given, problem',
  [
    (dict(dev=('z',)), "text 0 has the label 'z', and the labels are 'a', 'b'"),
    (dict(labels=('a',)), "text 1 has the label 'b', and the labels are 'a':"),
    (dict(train=('a', '', 'b')), 'text 1 has no label'),
    (dict(train=('a', 'a')), "All 2 train examples have the label 'a'"),
    (dict(train=NUMBERS, dev=('1.5',)), '50 different values in 50 examples'),
    *(
      (dict(kind='regression', dev=(x,), train=('1', '2')), 'which is no number')
      for x in ('nan', 'inf', '', 'good', '1,5')
    ),
    (dict(BOTH, dev=(('0', '2'),)), "'2' in the column 'sad'"),
    (dict(BOTH, dev=(('0', '1'),), kind='classification'), 'own.py:multilabel'),
    (dict(kind='multilabel'), 'several columns of 0 and 1'),
    (dict(kind='regression', train=('1', '2'), dev=('1',), stratified=True), 'task has scores'),
  ],
)
def test_a_label_that_does_not_fit_is_refused_and_the_labels_are_listed(given, problem):
  with pytest.raises(errors.UserError, match=problem):
    numbered(**given)


def test_no_label_at_all_and_a_label_named_twice_are_refused():
  with pytest.raises(errors.UserError, match='label is empty'):
    labels.numbered(Source({'train': made.examples(Text('x'))}), CLASSES)
  with pytest.raises(errors.UserError, match="config.source.label names 'a' twice"):
    column_names.label_names('a, b,a')


def test_examples_of_labels_to_leave_out_are_counted():
  _, splits, notes = numbered(train=('a', '-', 'b'), dev=('-', 'a'), leave_out=('-',))
  train, array = splits['train']
  assert train.column('a') == ['text 0', 'text 2'] and list(array) == [0, 1]
  said = "1 examples with the label '-' left out."
  assert notes == [f'train: {said}', f'dev: {said}']


def test_a_test_split_with_unknown_labels_has_none():
  splits = dict(train=examples('a', 'b'), dev=examples('a'), test=examples('', ''))
  source = Source(splits, label_columns=('label',))
  assert labels.numbered(source, CLASSES)[1]['test'][1] is None
  splits['test'] = examples('b', 'a')
  assert list(labels.numbered(source, CLASSES)[1]['test'][1]) == [1, 0]
  # what is left out of train must not empty a test file whose labels are hidden by the same mark
  splits['test'] = examples('-', '-')
  source = Source(splits, label_columns=('label',), leave_out=('-',))
  assert len(labels.numbered(source, CLASSES)[1]['test'][0]) == 2


def test_scores_are_numbers_and_nothing_else():
  names, splits, _ = numbered('regression', train=('1', '2.5', '-3e1'), dev=('0',))
  assert names == () and splits['train'][1].tolist() == [1, 2.5, -30]
  assert splits['train'][1].dtype == np.float32


def test_several_labels_are_columns_of_0_and_1():
  columns = ('mad', 'sad')
  train = ('1', '0'), ('true', 'Yes'), ('', '0.0')
  names, splits, notes = numbered('multilabel', columns, dev=(('0', '1'),), train=train)
  assert names == columns and splits['train'][1].tolist() == [[1, 0], [1, 1], [0, 0]]
  assert notes == ['train: 1 empty labels are read as 0.']


def test_without_a_dev_file_a_share_is_held_out_whatever_the_order_and_equal_texts_stay_together():
  texts = [f'text {i % 90}' for i in range(100)]
  rest, dev = labels.held_out(examples(*'ab' * 50, texts=texts), 0.2)
  assert len(rest) + len(dev) == 100 and 20 <= len(dev) <= 30
  assert not set(rest.column('a')) & set(dev.column('a'))
  again = labels.held_out(examples(*'ab' * 50, texts=texts[::-1]), 0.2)
  assert set(again[1].column('a')) == set(dev.column('a'))
  fewer = labels.held_out(examples(*'ab' * 45, texts=texts[:90]), 0.2)[1]
  assert set(fewer.keys) <= set(dev.keys)
  with pytest.raises(errors.UserError, match='too few'):
    labels.held_out(examples('a', 'b', texts=['x', 'x']), 0.2)
  with pytest.raises(errors.UserError, match='between 0 and 1'):
    labels.held_out(examples('a', 'b'), 0)


def test_a_stratified_share_is_of_each_label():
  texts = [f'text {i}' for i in range(100)]
  given = examples(*['a'] * 70, *['b'] * 25, *['c'] * 5, texts=texts)
  rest, dev = labels.held_out(given, 0.2, stratified=True)
  count = lambda part: {label: part.labels.count((label,)) for label in 'abc'}
  assert count(dev) == dict(a=14, b=5, c=1) and count(rest) == dict(a=56, b=20, c=4)
  assert labels.held_out(given.take(range(99, -1, -1)), 0.2, True)[1].keys[::-1] == dev.keys
  with pytest.raises(errors.UserError, match='too few'):
    labels.held_out(examples('a', 'b', 'c', texts=texts[:3]), 0.2, stratified=True)


def test_so_many_examples_are_taken_by_their_texts_and_all_labels_stay_known(tmp_path):
  lines = ''.join(f'text {i}\t{"abcd"[min(i % 9, 3)]}\n' for i in range(40))
  made.write(tmp_path, train_tsv='text\tlabel\n' + lines, dev_tsv='text\tlabel\n' + lines)
  config = made.config('classify', dict(train='train.tsv', dev='dev.tsv'))
  config = config.copy_and_resolve_references().unlock()
  config.max_train, config.max_dev = 5, 7
  task = made.task(config, tmp_path)
  taken = {name: split.source.column('a') for name, split in task.splits.items()}
  assert [len(taken[name]) for name in ('train', 'dev')] == [5, 7]
  assert set(taken['train']) <= set(taken['dev'])
  assert task.labels == tuple('abcd') and '5 of 40 are taken (max_train)' in task.report()
  config.max_train = config.max_dev = 40
  assert len(made.task(config, tmp_path).splits['train']) == 40


def test_balanced_weights_are_those_of_scikit_learn():
  sklearn = pytest.importorskip('sklearn.utils.class_weight')
  numbers = np.array([0] * 7 + [1] * 2 + [2])
  wanted = sklearn.compute_class_weight('balanced', classes=np.arange(3), y=numbers)
  assert labels.balanced(numbers, 3) == pytest.approx(tuple(wanted))


def test_a_task_without_a_dev_file_says_how_it_was_split(tmp_path):
  lines = ''.join(f'text {i}\t{"ab"[i % 2]}\n' for i in range(40))
  made.write(tmp_path, train_tsv='text\tlabel\n' + lines)
  task = made.opened(tmp_path, files=dict(train='train.tsv'))
  assert len(task.splits['dev']) == 4 and len(task.splits['train']) == 36
  assert 'No dev file: 4 of the 40 train examples are dev' in task.report()
