import itertools

import pytest

from bertzoo_jax import parts
from bertzoo_jax.parts import experiments
from bertzoo_jax.parts import fields
from bertzoo_jax.parts import named as part_table
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from configs.tasks import chinese
from configs.tasks import choices
from configs.tasks import glue
from configs.tasks import question_recipes
from configs.tasks import questions as question_tasks
from configs.tasks import recipes
from configs.tasks import tags
from tests.refused import refused

GLUE = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte', 'wnli')
CHINESE = ('chnsenticorp', 'lcqmc', 'bq', 'xnli', 'afqmc', 'tnews', 'ocnli', 'thucnews', 'dbqa')
OTHERS = ('yelp5', 'imdb')
# tasks whose objective their own file names
NOT_ROWS = ('race', 'race_middle', 'race_high', 'conll2003', 'msra_ner', 'wikiann', 'ud_pos', 'tag')
PATHS = {'encoder/norm/scale': (4,), 'encoder/dense/kernel': (4, 4), 'encoder/dense/bias': (4,)}

QUESTIONS = ('squad', 'squad2', 'cmrc2018', 'drcd', 'cjrc', 'mrqa', 'qa')


def config(name, task):
  if task in QUESTIONS:
    source = parts.squad(files={'train': 'train.json'})
    recipe = recipes.recipe(name, task, parts.answer_span)
    return parts.fine_tuning(source=source, metrics=('f1',), **recipe)
  source = parts.table(files={'train': 'train.tsv'}, text_a='text')
  return parts.fine_tuning(source=source, metrics=('accuracy',), **recipes.recipe(name, task))


READ = {
  'rate': lambda made: made.schedule.learning_rate,
  'end': lambda made: made.schedule.end_share,
  'adam': lambda made: adam(made),
  'grid': lambda made: dict(made.grid)['schedule.learning_rate'] if made.grid else (),
  'encoder': lambda made: made.encoder.dropout,
  'dropout': lambda made: made.objective.dropout,
  'head': lambda made: made.objective.head,
  'sift': lambda made: made.objective.sift.weight,
  'objective': lambda made: made.objective.name,
  'hidden': lambda made: made.objective.hidden_size,
  'answerable': lambda made: made.objective.answerable_weight,
  'beam': lambda made: made.features.beam,
  'threshold': lambda made: made.features.no_answer_threshold,
  'answer': lambda made: made.features.max_answer,
  'order': lambda made: made.features.order,
}


def adam(made):
  return tuple(made.optimizer[f] for f in ('name', 'b2', 'eps', 'weight_decay', 'clip_norm'))


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_every_recipe_makes_a_whole_config_whose_parts_build(name):
  assert set(recipes.RECIPES[name]) <= {'default', *GLUE, *CHINESE, *OTHERS, *NOT_ROWS}
  known = set(fields.parameters(experiments.FineTuning))
  for task in (*GLUE, *CHINESE, *OTHERS, 'my_own'):
    made = config(name, task)
    assert set(made) == known
    assert set(made.encoder) == {'dropout', 'attention_dropout'}
    assert made.objective.name == ('regression' if task == 'stsb' else 'classification')
    steps = made.steps or 10_000
    warmup = made.warmup if made.warmup >= 1 else made.warmup * steps
    assert 0 <= warmup < steps and (made.steps or made.epochs) and made.init in ('', 'mnli')
    schedule = {**made.schedule, 'warmup': int(warmup)}
    rate = schedules.for_phase(schedule, 0, steps, steps)
    for key, values in made.grid:
      assert len(set(values)) == len(values) > 1
      assert key in ('schedule.learning_rate', 'batch_size')
    part_table.build(made.optimizer, optimizers.BY_NAME, 'optimizer', rate, PATHS)


def test_a_recipe_s_fields_go_to_the_objective_that_a_task_has():
  fields = recipes.recipe('electra_base', 'conll2003', parts.tagging)
  assert fields['objective'].name == 'tagging' and 'input_dropout' not in fields['objective']
  assert recipes.recipe('electra_base', 'race', parts.choice)['objective'].head == 'linear'
  race = choices.get_config('race,recipe=bert')
  assert race.steps == 0 and race.epochs == 3  # not XLNet's, which race has without a recipe


def test_a_recipe_s_usual_length_does_not_shorten_the_rows_of_a_task_with_its_own():
  for file, argument, length in (
    (choices, 'race,recipe=electra_base', 512),
    (chinese, 'thucnews,recipe=bert', 512),
    (chinese, 'lcqmc,recipe=bert', 128),
    (chinese, 'xnli,recipe=roberta', 512),  # the recipe's is longer
    (tags, 'conll2003,recipe=electra_base', 256),
    (question_tasks, 'cmrc2018,recipe=bert', 512),
    (glue, 'cola,recipe=deberta_v2_xxlarge', 64),  # of the recipe for this task
  ):
    assert file.get_config(argument).length == length, argument


@pytest.mark.parametrize(
  'name, task, figures',
  [
    ('bert', 'rte', dict(batch_size=32, epochs=3, grid=(5e-5, 4e-5, 3e-5, 2e-5), init='')),
    ('roberta', 'rte', dict(epochs=10, warmup=0.06, length=512, init='mnli')),
    ('roberta', 'sst2', dict(grid=(1e-5, 2e-5, 3e-5), seeds=(0, 1, 2, 3, 4), init='')),
    ('roberta_release', 'qqp', dict(steps=113272, warmup=28318, batch_size=32, rate=1e-5)),
    ('albert_xxlarge', 'rte', dict(steps=800, warmup=200, rate=3e-5, encoder=0.1, init='mnli')),
    ('albert_base', 'mnli', dict(steps=10000, batch_size=128, rate=3e-5, encoder=0.0, dropout=0.1)),
    ('electra_base', 'rte', dict(epochs=10, layer_decay=0.8, rate=1e-4, head='linear')),
    ('electra_large', 'mrpc', dict(epochs=3, layer_decay=0.9, rate=5e-5, length=128)),
    ('deberta_base', 'mnli', dict(epochs=3, warmup=1000, rate=3e-5, batch_size=64, dropout=0.1)),
    ('deberta_base', 'rte', dict(epochs=6, dropout=0.2, length=320, init='mnli')),
    ('deberta_v2_xxlarge', 'cola', dict(rate=2.5e-6, length=64, epochs=10)),
    ('albert_base', 'race', dict(steps=12000, warmup=1000, rate=2e-5, encoder=0.1)),
    ('albert_v2', 'race', dict(steps=12000, warmup=1000, rate=1e-5, encoder=0.0, batch_size=32)),
    ('roberta_release', 'race', dict(epochs=5, batch_size=16, rate=1e-5, warmup=0, end=1.0)),
    ('electra_large', 'conll2003', dict(length=256, epochs=3, rate=5e-5, dropout=0.0)),
    ('ernie', 'dbqa', dict(length=512, batch_size=64, rate=2e-5, epochs=3, warmup=0, end=1.0)),
    ('xlnet_large', 'imdb', dict(adam=('adamw', 0.999, 1e-8, 0.0, 1.0), end=0.0)),
    ('xlnet_large', 'race', dict(adam=('adamw_uncorrected', 0.999, 1e-6, 0.01, 1.0))),
    ('deberta_large', 'conll2003', dict(epochs=15, warmup=0.1, rate=1e-5, dropout=0.0, length=512)),
    ('deberta_v3_large', 'conll2003', dict(epochs=10, warmup=10, rate=9e-6, batch_size=16)),
    ('deberta_base_sift', 'mnli', dict(epochs=6, warmup=1000, rate=1.5e-5, dropout=0.1, sift=5)),
    ('deberta_v2_xxlarge_sift', 'mnli', dict(epochs=6, rate=3e-6, dropout=0.3, length=256)),
    ('deberta_v3_xsmall_sift', 'mnli', dict(epochs=10, warmup=1500, rate=5e-5, sift=3)),
    ('deberta_v3_base_sift', 'mnli', dict(epochs=6, rate=1.5e-5, warmup=1000, grid=(), sift=5)),
    ('deberta_v3_large', 'rte', dict(rate=1e-5, dropout=0.3, init='', warmup=50)),
    ('spanbert', 'rte', dict(epochs=10, grid=(5e-6, 1e-5, 2e-5, 3e-5, 5e-5))),
    ('xlnet_large', 'mnli', dict(steps=10000, batch_size=128, rate=2e-5, layer_decay=1.0)),
    ('macbert', 'xnli', dict(epochs=2, rate=3e-5, length=128)),
    ('bert_wwm', 'chnsenticorp', dict(epochs=3, rate=2e-5, length=256)),
    ('ernie', 'chnsenticorp', dict(batch_size=24, epochs=10, rate=5e-5, length=256, warmup=0)),
    # questions
    ('bert', 'squad', dict(rate=5e-5, batch_size=32, epochs=3, length=384, grid=())),
    ('roberta', 'squad2', dict(rate=1.5e-5, batch_size=48, epochs=2, warmup=0.06)),
    ('albert_xxlarge', 'squad2', dict(rate=3e-5, steps=8144, objective='span_conditional')),
    ('electra_small', 'squad', dict(epochs=2, length=512, answerable=0.0, beam=20, rate=1e-4)),
    ('electra_large', 'squad2', dict(answerable=0.5, threshold=-2.75, head='gelu', hidden=512)),
    ('spanbert', 'mrqa', dict(epochs=4, length=512, order='passage_first')),
    ('xlnet_large', 'squad', dict(steps=8000, layer_decay=0.75, answer=64, head='tanh')),
    ('xlnet_base', 'squad2', dict(steps=12000, rate=2e-5, batch_size=24, layer_decay=1.0)),
    ('macbert', 'cmrc2018', dict(rate=3e-5, epochs=2, length=512, objective='span')),
    ('ernie', 'drcd', dict(rate=5e-5, batch_size=64, warmup=0, end=1.0)),
  ],
)
def test_a_recipe_has_the_figures_of_its_source(name, task, figures):
  made = config(name, task)
  assert {x: READ[x](made) if x in READ else made[x] for x in figures} == figures


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_every_recipe_makes_a_whole_config_for_questions(name):
  plain = name.removesuffix('_sift')
  assert set(question_recipes.QUESTIONS[plain]) <= {'default', *QUESTIONS}
  for task in QUESTIONS:
    made = config(name, task)
    assert set(made) == set(fields.parameters(experiments.FineTuning))
    assert made.objective.name in ('span', 'span_conditional')
    assert made.features.name == 'question_windows' and made.length >= 384
    assert made.init == '' and (made.steps or made.epochs)
    assert (made.objective.sift.weight > 0) == (name != plain)


def test_a_config_that_is_changed_leaves_the_recipe_as_it_is():
  for name, task in itertools.product(recipes.RECIPES, ('rte', 'squad2')):
    first, before = config(name, task), config(name, task).to_dict()
    first.schedule.learning_rate, first.objective.dropout, first.optimizer.b1 = 1.0, 0.9, 0.1
    assert config(name, task).to_dict() == before


def test_the_optimizers_are_those_of_the_releases():
  for name in ('bert', 'electra_base', 'deberta_large', 'spanbert', 'xlnet_large'):
    assert adam(config(name, 'mnli')) == ('adamw_uncorrected', 0.999, 1e-6, 0.01, 1.0)
    assert config(name, 'mnli').optimizer.no_decay == (r'norm/', r'bias$')
  assert adam(config('roberta', 'mnli'))[:2] == ('adamw', 0.98)
  decays = ('roberta', 'mnli', 0.1), ('ernie', 'lcqmc', 0.0), ('roberta_release', 'race', 0.01)
  for *recipe, decay in decays:
    assert config(*recipe).optimizer.weight_decay == decay


def test_several_labels_keep_the_dropout_and_a_misspelt_recipe_is_told_which_was_meant():
  many = recipes.recipe('deberta_base', 'rte', parts.multilabel)['objective']
  assert (many.name, many.dropout) == ('multilabel', 0.2)
  words = "'electra_bass'.*there is bert, .*mean 'electra_base'"
  refused(words, recipes.recipe, 'electra_bass', 'rte', kind=ValueError)
