import math
import types

import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import table
from bertzoo_jax.tasks import kinds
from configs.tasks import own

WEIGHTS = types.SimpleNamespace(
  address='W@7',
  step=7,
  section=parts.transformer(
    num_layers=2, hidden_size=8, num_heads=2, intermediate_size=8, max_positions=32
  ).to_dict(),
  vocab_size=50,
  hf='BertForPreTraining',
  tokenizer_section={'name': 'wordpiece', 'vocab_size': 50},
)
TASK = types.SimpleNamespace(splits={'train': range(96)}, labels=('a', 'b'))
TASK.kind = kinds.BY_NAME['classification']
RATE = 'schedule.learning_rate'


def config(**changes):
  changes = {'length': 16, 'batch_size': 16, 'name': 'task', **changes}
  source = parts.table(files={'train': 'x.tsv'}, text_a='text')
  return parts.fine_tuning(source=source, metrics=('accuracy',), **changes).lock()


def runs(made, weights=WEIGHTS):
  plan.check(made, weights)
  return plan.runs('task', made, TASK, [weights], 'F')


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(length=64), '--config.length=32 or less'),
    (dict(grid=(('seed', (1, 2)),)), 'give config.seeds'),
    (dict(grid=(('length', (16, 8)),)), "'length', which must be the same in all runs"),
    (dict(grid=(('source.text_a', ('a', 'b')),)), 'the same in all runs'),
    (dict(grid=(('metrics', (('f1',),)),)), 'the same in all runs'),
    (dict(grid=((RATE, ()),)), 'a field and a tuple of values'),
    (dict(grid=((RATE, 1e-5),)), 'a field and a tuple'),
    (dict(grid=(RATE, (1e-5,))), 'a field and a tuple'),
    (dict(grid=((RATE, ('much',)),)), 'it is a float'),
    (dict(grid=(('batch_size', (0,)),)), 'config.batch_size is 0'),
    (dict(seeds=(1, 1)), 'name each once'),
    (dict(seeds=(1.5,)), 'seeds are whole numbers'),
    (dict(batch_size=0), 'config.batch_size is 0'),
    (dict(grid=(('objective.sift.loss', ('kl', 'mea')),)), 'objective.sift.loss'),
    (dict(grid=((RATE, (1e-5, 0.00001)),)), 'has schedule.learning_rate=1e-05 twice'),
    (dict(grid=(('optimizer.name', ('adamw', 'lamp')),)), "'lamb'"),
    (dict(grid=(('optimizer.name', ('adamw', 'lamb')),)), 'no_adaptation'),
    (dict(epochs=float('inf')), 'config.epochs is inf'),
    (dict(epochs=0.0), 'raise config.epochs'),
    (dict(steps=-3), 'config.steps is -3'),
    (dict(warmup=-1.0), 'config.warmup is -1'),
    (dict(warmup=100, steps=20), 'config.warmup=100 leaves none of 20 steps'),
    (dict(schedule=parts.linear_from_start(learning_rate=1e-5, warmup=9)), '--config.warmup=9'),
  ],
)
def test_a_mistake_of_a_plan_is_one_sentence_that_names_the_field(changes, words):
  with pytest.raises(errors.UserError, match=words) as e:
    runs(config(**changes))
  assert '\n' not in str(e.value)


def test_every_run_of_a_grid_has_its_own_values_and_folder():
  made = runs(config(grid=((RATE, (1e-5, 3e-5)), ('batch_size', (8, 16))), seeds=(0, 1)))
  assert len({str(run.folder) for run in made}) == len(made) == 8
  own = [run.experiment for run in made]
  found = {(x.schedule.learning_rate, x.batch_size, x.seed) for x in own}
  assert len(found) == 8
  assert {(r.experiment.batch_size, r.experiment.phases[0][0]) for r in made} == {(8, 36), (16, 18)}


def test_warmup_is_a_share_below_1_and_a_number_of_steps_from_1_on():
  for warmup, steps in ((0.1, 5), (20, 20)):
    [made] = runs(config(warmup=warmup, steps=57))
    assert made.experiment.schedule.warmup == steps


def test_a_schedule_of_the_argument_has_the_warmup_of_the_config():
  made = own.get_config('classify,schedule=cosine')
  made.steps, made.length, made.source.files.train = 57, 16, 'x.tsv'
  [run] = runs(made)
  assert (run.experiment.schedule.name, run.experiment.schedule.warmup) == ('cosine', 5)


def test_the_folders_of_two_keys_that_end_alike_have_the_whole_keys():
  made = config(grid=(('encoder.dropout', (0.0, 0.1)), ('objective.dropout', (0.0,))))
  assert runs(made)[1].folder.name == 'encoder.dropout=0.1+objective.dropout=0.0+seed=0'


def test_a_run_gets_the_head_and_the_class_of_its_encoder():
  sizes = {k: WEIGHTS.section[k] for k in ('num_layers', 'hidden_size', 'num_heads')}
  section = parts.disentangled(**sizes, intermediate_size=8, max_positions=32).to_dict()
  known = {**vars(WEIGHTS), 'section': section, 'hf': 'DebertaV2ForMaskedLM'}
  [run] = runs(config(), types.SimpleNamespace(**known))
  assert run.experiment.hf == 'DebertaV2ForSequenceClassification'
  assert run.experiment.objective.head == 'gelu'
  assert runs(config())[0].experiment.objective.head == 'tanh'


def test_a_fine_tuning_may_set_no_field_of_the_encoder():
  assert 'dropout' in config().encoder and not len(config(encoder={}).encoder)


def results(*scores, point=()):
  dev = lambda x: {'dev': {'accuracy': x, 'f1': x}}
  return [{'init': 'W', 'point': point, 'score': x, 'scores': dev(x)} for x in scores]


def test_a_run_that_diverged_is_below_all_others_and_no_number_of_the_table():
  [line] = table.lines('t', ('accuracy', 'f1'), results(0.5, None, 0.75))
  assert (line.median, line.best, line.others) == (0.5, 0.75, {'dev f1': 0.5})
  assert math.isnan(line.worst) and line.seeds == 3
  [line] = table.lines('t', ('accuracy', 'f1'), results(None, None, 0.75))
  assert math.isnan(line.median) and line.best == 0.75
  assert '| 0.7500 | –' in table.markdown([line], {'t': 0.5})


def test_two_keys_of_a_grid_that_end_alike_are_told_apart():
  keys = ['encoder.dropout', 'objective.dropout', 'schedule.learning_rate']
  assert table.short(keys) == [*keys[:2], 'learning_rate']
  point = tuple(zip(keys, (0.1, 0.2, 1e-5)))
  [line] = table.lines('t', ('accuracy', 'f1'), results(0.5, point=point))
  assert line.point == 'encoder.dropout=0.1, objective.dropout=0.2, learning_rate=1e-05'


def test_a_point_that_diverged_is_not_chosen():
  found = results(None, None, point=(('rate', 1.0),)) + results(0.25, 0.5, point=(('rate', 0.1),))
  lines = table.lines('t', ('accuracy', 'f1'), found)
  assert [line.chosen for line in lines] == [False, True]


def test_a_table_has_no_column_that_says_nothing():
  line = table.Line('t', '', 'W', 'accuracy', 'dev', 1, 0.5, 0.5, 0.5, {}, True)
  head = lambda found: table.markdown(found, {'t': 0.4}).splitlines()[0].split()[1::2]
  assert head([line]) == ['task', 'score', 'seeds', 'median', 'majority', 'others']
  points = [line._replace(point='a=1', seeds=2), line._replace(point='a=2', seeds=2)]
  assert head(points)[:6] == ['task', 'point', 'score', 'seeds', 'median', 'best']
