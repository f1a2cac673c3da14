"""Exported models that find answers and choose options predict the same in transformers for texts
that tokenizers disagree about.

The heads are hardly trained, so answers begin and end at any token.
"""

import json

import pytest

from bertzoo_jax import export
from bertzoo_jax.hf import verify
from tests import tuned
from tests.pretrained import test_loading as made

torch = pytest.importorskip('torch', reason='the comparison needs torch')
transformers = pytest.importorskip('transformers', reason='the comparison needs transformers')

LENGTH = 32
# A text of many tokens would be cut in rows of this length.
TRAPS = [text for text in verify.PROBES if text.strip() and len(text.encode()) <= 30]


def of_answers():
  """Questions about passages that begin with a trap, in SQuAD's layout."""
  paragraphs = [
    {'context': f'{trap} the traveller', 'qas': [{'id': str(n), 'question': 'who', 'answers': []}]}
    for n, trap in enumerate(TRAPS)
  ]
  return json.dumps({'version': '2.0', 'data': [{'paragraphs': paragraphs}]})


def of_choices():
  """A question per trap: as its text, and as one of its options."""
  options = lambda trap: [trap, 'traveller', f'the {trap}']
  lines = (dict(text=t, question='the _', options=options(t), label='traveller') for t in TRAPS)
  return '\n'.join(map(json.dumps, lines))


MADE = {'qa': of_answers, 'choice': of_choices}


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A folder with pretrained runs and, of each task, plain text to learn and traps to predict."""
  folder = tmp_path_factory.mktemp('world')
  for family in ('bert', 'roberta'):
    (folder / family).mkdir()
    made.make_run(folder / family, family)
  train = {'qa': tuned.articles, 'choice': tuned.options}
  for task, text in train.items():
    ending = tuned.ENDINGS[task]
    (folder / f'train.{ending}').write_text(text(32, 1))
    (folder / f'test.{ending}').write_text(MADE[task](), encoding='utf-8')
  return folder


def predicted(world, folder, family, task):
  """(lines of predictions of the traps, folder of the exported model)."""
  changes = dict(source__files__dev='', source__dev_share=0.25, length=LENGTH, batch_size=8)
  if task == 'qa':
    changes['features__doc_stride'] = 128
  config = tuned.config(task, steps=3, schedule__learning_rate=3e-3, **changes)
  tuned.finetune(world, folder / 'f', config, family)
  rows = export.export(str(folder / 'f' / task / 'run'), folder / 'out')
  assert rows and all(row.holds for row in rows)
  return tuned.said(folder / 'f' / task / 'test.jsonl'), folder / 'out'


FAMILIES = ['bert', pytest.param('roberta', marks=pytest.mark.slow)]


@pytest.mark.parametrize('family', FAMILIES)
def test_an_exported_answerer_cuts_the_same_answers_from_difficult_passages(
  world, tmp_path, family
):
  said, out = predicted(world, tmp_path, family, 'qa')
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  found, wanted = [], []
  for trap, line in zip(TRAPS, said, strict=True):
    row = 'who', f'{trap} the traveller'
    if len(tokenizer(*row)['input_ids']) > LENGTH:
      continue  # several windows, which the card's code does not make
    wanted.append(line['answer'])
    found.append(tuned.answer_of_card(out, *row))
  assert wanted == found and len(found) > len(TRAPS) / 2
  assert len(set(found)) > 4


@pytest.mark.parametrize('family', FAMILIES)
def test_an_exported_chooser_says_the_same_of_difficult_options(world, tmp_path, family):
  said, out = predicted(world, tmp_path, family, 'choice')
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  model = transformers.AutoModelForMultipleChoice.from_pretrained(out)
  compared = 0
  for trap, line in zip(TRAPS, said, strict=True):
    asked = [f'the {option}' for option in (trap, 'traveller', f'the {trap}')]
    rows = tokenizer([trap] * len(asked), asked, padding=True, return_tensors='pt')
    if rows['input_ids'].shape[1] > LENGTH:
      continue  # it is cut
    compared += 1
    scores = model(**{name: x[None] for name, x in rows.items()}).logits[0]
    shares = scores.softmax(-1).tolist()
    assert shares == pytest.approx(line['probabilities'], abs=1e-5), trap
  assert compared > len(TRAPS) / 2
