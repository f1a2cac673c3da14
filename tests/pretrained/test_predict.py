import functools
import json

import numpy as np
import pytest
import small_networks as small

import bertzoo_jax
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import predict
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.hf import verify
from bertzoo_jax.runs import step_folders
from tests import tuned
from tests.export import test_export_row_heads as rows
from tests.pretrained import test_loading as made

LABELS = ('bad', 'good', 'odd')
TAGS = ('O', 'B-PER', 'I-PER')
TABLE = dict(files={'train': 'train.csv'})
TEXT = parts.table(text_a='text', **TABLE), parts.texts()
PAIR = parts.table(text_a='a', text_b='b', **TABLE), parts.texts()
ROWS = 'ForSequenceClassification'
CLASSES = dict(name='classification', labels=LABELS, head='tanh', **rows.RATES)
RUNS = {  # kind of class, length, objective, source, features
  'classes': (ROWS, 24, CLASSES, *TEXT),
  'pairs': (ROWS, 24, CLASSES, *PAIR),
  'marks': (ROWS, 24, {**CLASSES, 'name': 'multilabel'}, *TEXT),
  'strict': (ROWS, 24, {**CLASSES, 'name': 'multilabel', 'threshold': 0.9}, *TEXT),
  'score': (ROWS, 24, dict(name='regression', head='tanh', **rows.RATES), *TEXT),
  'tags': (
    *('ForTokenClassification', 24, dict(name='tagging', labels=TAGS, dropout=0.1, head='linear')),
    *(parts.conll(**TABLE), parts.words()),
  ),
  'choice': (
    *('ForMultipleChoice', 32, dict(name='choice', head='tanh', **rows.RATES)),
    *(parts.choices(**TABLE), parts.choice_rows()),
  ),
  'answers': (
    *('ForQuestionAnswering', 32, dict(name='span', head='linear'), parts.question_table(**TABLE)),
    parts.question_windows(doc_stride=7),
  ),
}
TEXTS = ['The time machine stood there.', 'I looked at the traveller ' * 9, 'Yes', 'weena']
PAIRS = [(a, b) for a, b in zip(TEXTS, TEXTS[1:])]


@pytest.fixture(scope='module')
def places(tmp_path_factory):
  """name of RUNS → (run, its export), each made once."""
  section = rows.RUNS['bert'][1]
  tokenizer = tokenizers.train(section.to_dict(), lambda: iter(rows.SAMPLE))

  @functools.cache
  def built(name):
    kind, length, objective, source, features = RUNS[name]
    folder = tmp_path_factory.mktemp(name)
    (folder / 'run').mkdir()
    tokenizer.save(folder / 'run' / 'tokenizer')
    config = rows.config(
      *(f'Bert{kind}', section, rows.BERT, objective),
      **dict(length=length, metrics=('accuracy',), source=source, features=features),
    )
    of_config = objectives.build(config, tokenizer.vocab_size)
    rows.write(folder / 'run', config, small.parameters(of_config, scale=0.4, seed=len(name)))
    return folder / 'run', made.written(folder / 'run', folder / 'hf')

  return built


def both(places, name, inputs):
  """The predictions of a run; those of its export are the same."""
  run, directory = places(name)
  found = bertzoo_jax.load(run).predict(inputs)
  again = bertzoo_jax.load(f'hf:{directory}').predict(inputs)
  assert found == again and len(found) == len(inputs)
  return found, directory


def pipeline(task, directory):
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  pytest.importorskip('torch', reason='parity needs torch')
  transformers.utils.logging.set_verbosity_error()
  return transformers.pipeline(task, str(directory), tokenizer=str(directory))


@pytest.mark.parametrize('name', ['classes', 'pairs', 'marks', 'score'])
def test_labels_and_scores_are_those_of_the_pipeline(places, name):
  inputs = PAIRS if name == 'pairs' else TEXTS
  found, directory = both(places, name, inputs)
  pipe = pipeline('text-classification', directory)
  for x, line in zip(inputs, found):
    x = x if isinstance(x, str) else dict(text=x[0], text_pair=x[1])
    theirs = {one['label']: one['score'] for one in pipe(x, top_k=None, truncation=True)}
    ours = line['probabilities'] if name != 'score' else {'LABEL_0': line['score']}
    assert ours == pytest.approx(theirs, abs=1e-5)
    if name == 'marks':
      assert line['labels'] == [label for label in LABELS if theirs[label] > 0.5]
    elif name != 'score':
      assert line['label'] == max(theirs, key=theirs.get)
  assert len({json.dumps(line) for line in found}) == len(found)


def test_tags_are_those_of_the_pipeline_at_the_first_token_of_each_word(places):
  sentences = ['the time machine stood there', 'weena']
  found, directory = both(places, 'tags', sentences)
  assert found == bertzoo_jax.load(places('tags')[0]).predict([x.split() for x in sentences])
  pipe = pipeline('token-classification', directory)
  for sentence, line in zip(sentences, found):
    theirs = {one['start']: one for one in pipe(sentence, ignore_labels=[])}
    words, at = sentence.split(), 0
    assert line['words'] == words
    for word, tag, share in zip(words, line['tags'], line['probabilities']):
      assert theirs[at]['entity'] == tag and abs(theirs[at]['score'] - share) < 1e-5
      at += len(word) + 1
  words = ['time', 'machine', 'weena', 'stood'] * 20  # longer than a row
  (line,) = both(places, 'tags', [words])[0]
  assert line['words'] == words and len(line['tags']) == len(line['probabilities']) == 80


def test_options_are_those_of_transformers(places):
  asked = [('', 'Yes', ['a', 'I'])]
  asked += [('The time machine.', 'who _ there', ['stood', 'the traveller'])]
  asked += [(x, 'the _', [x, f'the {x}']) for x in verify.PROBES if x.strip()]
  directory = places('choice')[1]
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
  asked = [
    x for x in asked if len(tokenizer(x[0], f'the the {x[0]}')['input_ids']) <= 32
  ]  # not cut
  found = both(places, 'choice', asked)[0]
  assert len(asked) > len(verify.PROBES) / 2
  model = transformers.AutoModelForMultipleChoice.from_pretrained(directory).eval()
  for (text, question, options), line in zip(asked, found):
    second = [question.replace('_', o) for o in options] if text else options
    batch = tokenizer([text or question] * 2, second, padding=True, return_tensors='pt')
    scores = model(**{key: x[None] for key, x in batch.items()}).logits[0]
    assert line['probabilities'] == pytest.approx(scores.softmax(-1).tolist(), abs=1e-5)
    assert line['option'] == options[int(scores.argmax())]


def test_answers_over_long_passages_are_those_of_all_windows_of_transformers(places):
  """The best sum of a start and an end, over windows that tokenizer and model of transformers make;
  a start counts in the window where it has most context.
  """
  passage = ' '.join(('I looked at the traveller and the time machine ' * 6).split()[:-3])
  run, directory = places('answers')
  (line,) = bertzoo_jax.load(run).predict([('who stood there', passage)])
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
  model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory).eval()
  question = len(tokenizer('who stood there')['input_ids'])
  form = dict(max_length=32, truncation='only_second', padding=True, return_tensors='pt')
  form |= dict(stride=32 - question - 1 - 7, return_overflowing_tokens=True)
  batch = tokenizer('who stood there', passage, return_offsets_mapping=True, **form)
  offsets = batch.pop('offset_mapping')
  del batch['overflow_to_sample_mapping']
  logits = model(**batch)
  assert len(offsets) > 4
  windows = []
  for n, own in enumerate(offsets.tolist()):
    at = [i for i, s in enumerate(batch.sequence_ids(n)) if s == 1]
    windows.append([(own[i], *(x[n, i].item() for x in logits.to_tuple())) for i in at])
  context = lambda w, i: min(i, len(w) - 1 - i) + 0.01 * len(w)
  most = {}
  for w in windows:
    for i, (place, *_) in enumerate(w):
      most[tuple(place)] = max(most.get(tuple(place), 0), context(w, i))
  scores = {}
  for w in windows:
    starts = [i for i, (place, *_) in enumerate(w) if context(w, i) == most[tuple(place)]]
    starts = sorted(starts, key=lambda i: -w[i][1])[:20]
    for i in starts:
      for j in sorted(range(len(w)), key=lambda j: -w[j][2])[:20]:
        if i <= j < i + 30:
          text = passage[w[i][0][0] : w[j][0][1]]
          score = w[i][1] + w[j][2]
          if score > scores.get(text, (-np.inf,))[0]:
            scores[text] = score, w[i][0][0]
  best = sorted(scores, key=lambda text: -scores[text][0])[:20]
  assert line['answer'] == best[0]
  assert passage[line['start'] :].startswith(best[0])
  shares = np.exp([scores[text][0] for text in best])
  others = [x['probability'] for x in line['others']]
  assert others == pytest.approx(list(shares / shares.sum())[:5], abs=1e-5)


def test_a_tokenizer_can_be_called(places):
  run, directory = places('classes')
  transformers = pytest.importorskip('transformers', reason='parity needs transformers')
  theirs = transformers.AutoTokenizer.from_pretrained(directory)
  for address in (run, f'hf:{directory}'):
    ours = bertzoo_jax.load(address).tokenizer
    assert ours(TEXTS[0]).tolist() == theirs(TEXTS[0])['input_ids']
    assert [x.tolist() for x in ours(TEXTS)] == theirs(TEXTS)['input_ids']


class Frame:
  """As a DataFrame: it yields the names of its columns."""

  columns = ['text']

  def __iter__(self):
    return iter(self.columns)


REFUSED = [  # network, inputs, words
  *(('classes', x, 'takes a list') for x in ('Yes', {'text': 'Yes'}, Frame(), np.array('Yes'), 3)),
  ('classes', [3], 'a text, or a pair of texts .* number 0 is .3. of type int'),
  ('classes', ['a', ('a', 'b')], 'all of one form; number 1'),
  ('classes', [('a', 'b')], 'single texts: give one text for each'),
  ('pairs', ['a'], r'pairs of texts: give a pair \(a, b\)'),
  ('tags', [[1]], 'a list of words'),
  ('answers', ['a'], r'\(question, passage\)'),
  ('choice', [('a', 'b', ['c'])], 'text, question'),
]


def test_inputs_of_another_form_are_one_sentence(places, tmp_path):
  for name, inputs, words in REFUSED:
    model = bertzoo_jax.load(places(name)[0])
    for ask in (model.predict, model.encode)[: 1 + (words == 'takes a list')]:
      with pytest.raises(errors.UserError, match=words):
        ask(inputs)
  wrong = ('pairs', 'b'), ('pairs', 'b,b'), ('answers', 'context'), ('choice', 'a,b')
  for name, columns in wrong:
    predictor = bertzoo_jax.load(places(name)[0]).predictor
    with pytest.raises(errors.UserError, match='give as many names, each once'):
      predictor.read(tmp_path / 'new.csv', tuple(columns.split(',')))


def test_nothing_is_predicted_for_nothing_and_a_text_alone_as_among_others(places):
  model = bertzoo_jax.load(places('classes')[0])
  assert model.predict([]) == []
  lone, first = (model.predict(texts)[0]['probabilities'] for texts in (TEXTS[:1], TEXTS))
  assert lone == pytest.approx(first, abs=2e-6)


def test_a_network_that_learned_no_task_is_one_sentence(tmp_path):
  (tmp_path / 'run').mkdir()
  made.make_run(tmp_path / 'run', 'bert')
  for address in (tmp_path / 'run', f'hf:{made.written(tmp_path / "run", tmp_path / "hf")}'):
    with pytest.raises(errors.UserError, match='not trained for a task.*finetune --init'):
      bertzoo_jax.load(address).predict(['a'])


def test_code_that_a_run_names_does_not_run(places, tmp_path, monkeypatch):
  made.shutil.copytree(places('classes')[0], tmp_path / 'run')
  file = tmp_path / 'run' / 'config.json'
  (tmp_path / 'evil.py').write_text('raise SystemExit("it ran")')
  monkeypatch.syspath_prepend(tmp_path)
  trust.set_allowed((frozenset(), False))
  for section in ('source', 'features', 'encoder'):
    content = json.loads((places('classes')[0] / 'config.json').read_text())
    content[section]['name'] = 'evil:part'
    file.write_text(json.dumps(content))
    with pytest.raises(errors.UserError, match='evil:part'):
      predict.predict(tmp_path / 'run', table(tmp_path), tmp_path / 'out.jsonl')


def table(folder, name='new.csv', columns='text,label'):
  lines = [f'"{text}",?' for text in TEXTS]
  (folder / name).write_text('\n'.join([columns, *lines]) + '\n')
  return folder / name


@pytest.mark.parametrize('form', ['run', 'hf', 'other columns', 'no header'])
def test_a_file_is_predicted_as_in_python_and_its_labels_are_not_read(places, tmp_path, form):
  run, directory = places('classes')
  columns = {'other columns': 'comment,label', 'no header': 'text here,?'}.get(form, 'text,label')
  more = {'other columns': dict(columns=('comment',)), 'no header': dict(columns=('0',))}
  more = more.get(form, {}) | ({'header': False} if form == 'no header' else {})
  model, file = f'hf:{directory}' if form == 'hf' else run, table(tmp_path, columns=columns)
  predict.predict(model, file, tmp_path / 'x' / 'out.jsonl', **more)
  lines = tuned.said(tmp_path / 'x' / 'out.jsonl')[form == 'no header' :]
  wanted = bertzoo_jax.load(run).predict(TEXTS)
  assert [line['text_a'] for line in lines] == TEXTS
  for line, one in zip(lines, wanted, strict=True):
    assert line['label'] == one['label']
    assert line['probabilities'] == pytest.approx(one['probabilities'], abs=2e-6)
  predict.predict(model, file, tmp_path / 'out.tsv', **more)
  first, *rest = (tmp_path / 'out.tsv').read_text().splitlines()
  assert first.split('\t')[:3] == ['example', 'text_a', 'label']
  assert first.split('\t')[3:] == [f'probability of {label}' for label in LABELS]
  labels = [line.split('\t')[2] for line in rest][form == 'no header' :]
  assert labels == [line['label'] for line in lines]


@pytest.mark.parametrize(
  'name, file, content, said',
  [
    ('tags', 'new.txt', 'time\nmachine\n\nweena\n', ['time machine', 'weena']),
    ('choice', 'new.jsonl', json.dumps(dict(text='a', question='b', options=['c', 'd'])), ['b']),
    ('answers', 'new.tsv', 'question\tcontext\nwho\tthe traveller\n', ['who']),
    ('answers', 'new.json', tuned.articles(2, 3), ['who stood there'] * 2),
  ],
)
def test_files_of_every_task_are_read_as_the_run_or_a_directory_reads_them(
  places, tmp_path, name, file, content, said
):
  run, directory = places(name)
  (tmp_path / file).write_text(content)
  for n, address in enumerate((run, f'hf:{directory}')):
    if file.endswith('.json') and not n:
      continue  # the run learned from a table
    out = tmp_path / f'{n}.tsv'
    assert predict.predict(address, tmp_path / file, out) == len(said)
    lines = [line.split('\t') for line in out.read_text().splitlines()]
    assert [line[1] for line in lines[1:]] == said and 'probabilit' in ' '.join(lines[0])


@pytest.mark.parametrize(
  'out, columns, text, said',
  [
    ('out.txt', '', '', 'ends with .jsonl or .tsv'),
    ('new.tsv', '', '', 'exists and is not overwritten'),
    ('out.tsv', 'b', '', "names the column 'b', and .* has the columns 'text', 'label'"),
    ('out.tsv', 'a b c', '', 'give as many names, each once'),
    ('out.tsv', 'text label', '', 'trained on single texts'),
    # no remedy is a flag that predict lacks
    ('out.tsv', '', 'sep=;\ntext;label\n', 'set config.source.separator=.*stay as they are'),
  ],
)
def test_a_wrong_line_is_one_sentence(places, tmp_path, out, columns, text, said):
  (tmp_path / 'new.tsv').write_text(text or 'text\tlabel\nYes\tgood\n')
  files = tmp_path / 'new.tsv', tmp_path / out
  with pytest.raises(errors.UserError, match=said):
    predict.predict(places('classes')[0], *files, columns=tuple(columns.split()))


def test_the_workdir_of_a_fine_tuning_stands_for_its_best_run(tmp_path):
  world = tuned.world(tmp_path, 'bert')
  tuned.finetune(world, tmp_path / 'f', tuned.config('tag', steps=3))
  model = bertzoo_jax.load(tmp_path / 'f')
  assert model.pretrained.address.endswith('f/tag/run@3')
  assert len(step_folders.below(tmp_path / 'f')) == 1
  predict.predict(tmp_path / 'f', world / 'test.txt', tmp_path / 'out.jsonl')
  assert tuned.said(tmp_path / 'out.jsonl') == tuned.said(tmp_path / 'f/tag/test.jsonl')
  corpus = json.loads((tmp_path / 'f/tag/run/corpus.json').read_text())
  assert corpus['task'] == {'usual': 'O'}


def test_an_export_gives_the_labels_above_the_threshold_of_its_run(places):
  for line in both(places, 'strict', TEXTS)[0]:
    above = [label for label, share in line['probabilities'].items() if share > 0.9]
    assert line['labels'] == above


def test_a_lone_surrogate_is_read_as_in_a_file(places):
  model = bertzoo_jax.load(places('classes')[0])
  assert model.predict(['a \ud800 b'])[0]['text_a'] == 'a ? b'
  np.testing.assert_array_equal(*(model.encode([x]) for x in ('a \ud800', 'a ?')))
  pairs = [[(x, 'c')] for x in ('a \udfff', 'a ?')]
  np.testing.assert_array_equal(*map(model.encode, pairs))
  words = [bertzoo_jax.load(places('tags')[0]).predict([[x]]) for x in ('\udc80', '?')]
  assert words[0] == words[1]
