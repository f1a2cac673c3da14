"""`make test` has one family of each tool, in the transformers that is installed. `make test-tools`
runs the whole table, in 4.57.6 and in the newest.
"""

import copy
import functools
import pathlib
import re
import unicodedata

import numpy as np
import pytest
import small_networks as small

import bertzoo_jax
from bertzoo_jax import fill_mask
from bertzoo_jax import hf
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import verify
from configs import ernie
from tests import tuned
from tests.export import test_export_row_heads as rows
from tests.pretrained import test_loading as made
from tests.pretrained import test_predict as predictions

transformers = pytest.importorskip('transformers', reason='the tools need transformers')
torch = pytest.importorskip('torch', reason='the tools need torch')

LENGTH = 130
SIZES = {**made.SIZES, 'max_positions': LENGTH}


def _euro():
  config = made.FAMILIES['modern'][0].get_config('tiny')
  config.encoder.update(activation='silu', norm='rms', window=0, embedding_norm=False)
  config.hf = 'EuroBertModel'
  return config


tiny = lambda name: lambda: made.FAMILIES[name][0].get_config('tiny')
FAMILIES = {  # model type of transformers: (→ config of a pretraining, sizes of the encoder)
  **{x: (tiny(x), SIZES) for x in ('bert', 'roberta', 'electra', 'albert')},
  'ernie': (lambda: ernie.get_config('tiny'), SIZES),
  'deberta': (tiny('deberta'), {**SIZES, 'max_distance': 16}),
  'deberta-v2': (tiny('deberta_v3'), {**SIZES, 'max_distance': LENGTH, 'buckets': 8}),
  'xlnet': (tiny('xlnet'), {**made.SIZES, 'memory_length': 0, 'reuse_length': 8}),
  'modernbert': (tiny('modern'), SIZES),
  'eurobert': (_euro, SIZES),
}
HEAD = {'pairs': task_heads.ROW, 'tags': task_heads.TAG, 'answers': task_heads.SPAN, 'texts': ''}
TABLE = parts.text_tuples(files={}, text_a='a', text_b='b', label='score')
PROMPTS = parts.text_rows(prompt_a='query: ', prompt_b='passage: ')
# Families whose vectors of texts are of the token that classifies; and those of length 1.
FIRST, OF_ONE = ('roberta', 'deberta-v2', 'xlnet'), ('roberta', 'bert', 'albert')
# Byte-level BPE for which run_ner asks for no blank: words are read as the releases read them.
ALONE, WITH_BLANK = ('modernbert', 'eurobert'), ('bloom', 'gpt2', 'roberta', 'deberta')
NEW = int(transformers.__version__.split('.')[0]) > 4


def config_of(family, kind):
  """The config of a pretraining ('masks'), or of a fine-tuning by its name in test_predict."""
  get, sizes = FAMILIES[family]
  config = get().unlock()
  config.encoder.update(sizes)
  config.phases, config.tokenizer.vocab_size = ((10, {}),), 600
  if 'num_offsets' in config.objective:
    config.objective.num_offsets = 8
  if kind == 'masks':
    return config
  pooling = 'first' if family in FIRST else 'mean'
  vectors = parts.cosent(pooling=pooling, normalize=family in OF_ONE, widths=(8,))
  texts = '', 24, vectors.to_dict(), TABLE, PROMPTS
  _, length, objective, source, features = texts if kind == 'texts' else predictions.RUNS[kind]
  wished, form = hf.task_class_of(config.hf, HEAD[kind])
  objective = objective if kind == 'texts' else {**objective, 'head': form}
  sections = dict(length=length, metrics=('accuracy',), source=source, features=features)
  return rows.config(wished, config.tokenizer, config.encoder, objective, **sections)


@functools.cache
def tokenizer_of(family):
  section = config_of(family, 'masks').tokenizer.to_dict()
  return tokenizers.train(section, lambda: iter(rows.SAMPLE))


class Place:
  """A run and its export: directory of the network to fine-tune, fills of the one for masks."""

  def __init__(self, folder, family, kind):
    config, tokenizer = config_of(family, kind), tokenizer_of(family)
    self.family, self.out, run = family, folder / 'out', folder / 'run'
    run.mkdir()
    tokenizer.save(run / 'tokenizer')
    params = small.parameters(objectives.build(config, tokenizer.vocab_size), seed=3, scale=0.3)
    rows.write(run, config, params)
    exported = made.written(run, folder / 'hf')
    pair = (exported / 'generator').is_dir()
    self.directory = str(exported / 'discriminator' if pair else exported)
    self.fills = str(exported / 'generator' if pair else exported)
    self.network, self.tokenizer = bertzoo_jax.load(str(run)), tokenizer

  def load(self, name, **given):
    """A network of transformers, all whose parameters but those of heads are in the file."""
    auto = getattr(transformers, name)
    model, info = auto.from_pretrained(self.directory, output_loading_info=True, **given)
    missing = [x for x in info['missing_keys'] if x.startswith(f'{model.base_model_prefix}.')]
    assert all('pooler' in x for x in missing), missing
    assert not info['mismatched_keys']
    return model.eval()

  def framed(self, words, alone=False):
    """The ids of a sentence of words. alone: each as a text, without a blank before it."""
    ids = self.tokenizer.encode_words([words])[0][0].tolist()
    if alone:
      ids = [i for x in self.tokenizer.encode_as_transformers(words) for i in x.tolist()]
    around = {role: [i] for role, i in self.tokenizer.special.items()}
    return hf_tokenizer.framed(self.network.pretrained.shape.single, A=ids, **around)


@pytest.fixture(scope='module')
def places(tmp_path_factory):
  """(family, kind) → Place, each made once."""
  return functools.cache(lambda family, kind: Place(tmp_path_factory.mktemp(kind), family, kind))


TEXTS = [text for text in verify.PROBES if text.strip() and len(text.encode()) <= 40]
PAIRS = list(zip(TEXTS, TEXTS[1:]))
WORDS = [[*text.split(), 'traveller'] for text in TEXTS]
PASSAGES = ['The time machine stood there, and I looked at the traveller. ' * 3, TEXTS[0] + ' who']


def fill(place):
  """pipeline('fill-mask')"""
  pipe = transformers.pipeline('fill-mask', place.fills, top_k=3)
  text = f'The time {pipe.tokenizer.mask_token} stood there.'
  found = [(one['token_str'].strip(), one['score']) for one in pipe(text)]
  ours = fill_mask.fill(place.fills, text, 3)[0]
  assert [word for word, _ in found] == [word for word, _ in ours]
  assert [p for _, p in found] == pytest.approx([p for _, p in ours], abs=1e-5)


def classify(place):
  """pipeline('text-classification'), of pairs"""
  pipe = transformers.pipeline('text-classification', place.directory, top_k=None)
  for (a, b), line in zip(PAIRS, place.network.predict(PAIRS), strict=True):
    found = {x['label']: x['score'] for x in pipe({'text': a, 'text_pair': b}, truncation=True)}
    assert found == pytest.approx(line['probabilities'], abs=1e-5), (a, b)


def tag(place):
  """pre-split words, and pipeline('token-classification') of their text"""
  tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory)
  model = transformers.AutoModelForTokenClassification.from_pretrained(place.directory).eval()
  whole = [words for words in WORDS if len(place.framed(words)) <= tokenizer.model_max_length]
  assert len(whole) > len(WORDS) / 2
  for words, line in zip(whole, place.network.predict(whole), strict=True):
    row = tokenizer(words, is_split_into_words=True, return_tensors='pt')
    assert row['input_ids'][0].tolist() == place.framed(words), words
    of_word = row.word_ids()
    shares = model(**row).logits[0].softmax(-1).detach().numpy()
    for i, (said, share) in enumerate(zip(line['tags'], line['probabilities'], strict=True)):
      if i in of_word:
        theirs = shares[of_word.index(i)]
        assert model.config.id2label[int(theirs.argmax())] == said, words
        assert theirs.max() == pytest.approx(share, abs=1e-5), words
  pipe = transformers.pipeline('token-classification', place.directory, ignore_labels=[])
  text = 'the time machine stood'
  (line,) = place.network.predict([text])
  assert line['words'] == text.split()
  for word, said in zip(line['words'], line['tags']):
    # a piece of SentencePiece begins with a blank
    first = next(x for x in pipe(text) if x['start'] >= max(0, text.index(word) - 1))
    assert first['entity'] == said and text[first['start'] : first['end']].strip() in word


def answer(place):
  """the code of the card, and before transformers 5 pipeline('question-answering')"""
  # of marks and invisible characters predict makes whole answers
  plain = [x for x in TEXTS if x.isprintable() and unicodedata.is_normalized('NFKD', x)]
  texts = 'The time machine', ' two  blanks', 'I looked, at me.', *(f'{x} here' for x in plain)
  asked, out = [('who stood', text) for text in texts], place.directory
  # the card's code makes one window
  asked = [pair for pair, row in zip(asked, place.network.rows(asked)) if len(row.ids) < 32]
  lines = place.network.predict(asked)
  assert len(asked) > len(texts) / 2
  for (question, passage), line in zip(asked, lines, strict=True):
    assert tuned.answer_of_card(pathlib.Path(out), question, passage) == line['answer'], passage
    if not NEW and 'Simple' not in place.network.config['hf']:
      how = dict(max_answer_len=30, align_to_words=False)
      pipe = transformers.pipeline('question-answering', out, **how)
      assert pipe(question=question, context=passage)['answer'].strip() == line['answer']


def vectors(place):
  """pipeline('feature-extraction')"""
  pipe = transformers.pipeline('feature-extraction', place.directory)
  for text, ours in zip(TEXTS, place.network.encode(TEXTS, 'none'), strict=True):
    np.testing.assert_allclose(pipe(text)[0], ours, atol=1e-4, err_msg=text)


def step(place, model, tokenizer, batch, **labels):
  """A step of training; the saved network and tokenizer are read again, unchanged."""
  batch = {name: torch.as_tensor(np.asarray(x)) for name, x in batch.items()}
  labels = {name: torch.as_tensor(x) for name, x in labels.items()}
  before = model.get_input_embeddings().weight.detach().clone()
  model.train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
  model(**batch, **labels).loss.backward()
  optimizer.step()
  assert not torch.equal(before, model.get_input_embeddings().weight)
  model.eval().save_pretrained(place.out)
  tokenizer.save_pretrained(place.out)
  again = type(model).from_pretrained(place.out).eval()
  for a, b in zip(model(**batch)[:2], again(**batch)[:2]):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
  texts = transformers.AutoTokenizer.from_pretrained(place.out)(TEXTS)['input_ids']
  assert texts == tokenizer(TEXTS)['input_ids']


def glue(place):
  """run_glue: a fresh head over pairs, padded to the longest row"""
  config = transformers.AutoConfig.from_pretrained(place.directory, num_labels=3)
  tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory, use_fast=True)
  model = place.load('AutoModelForSequenceClassification', config=config)
  length = min(24, tokenizer.model_max_length)
  batch = tokenizer(*zip(*PAIRS), padding='max_length', max_length=length, truncation=True)
  rows = zip(batch['input_ids'], batch['attention_mask'], place.network.rows(PAIRS))
  for row, real, ours in rows:
    found = [i for i, keep in zip(row, real) if keep]
    assert found == ours.ids.tolist() or len(ours.ids) > length
  step(place, model, tokenizer, batch, labels=np.arange(len(PAIRS)) % 3)


def ner(place):
  """run_ner: a fresh head over words, with a blank before each for byte-level BPE"""
  config = transformers.AutoConfig.from_pretrained(place.directory, num_labels=5)
  more = {'add_prefix_space': True} if config.model_type in WITH_BLANK else {}
  tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory, use_fast=True, **more)
  model = place.load('AutoModelForTokenClassification', config=config)
  batch = tokenizer(WORDS, is_split_into_words=True, truncation=True, padding=True)
  labels = []
  for n, words in enumerate(WORDS):
    ids = [i for i, keep in zip(batch['input_ids'][n], batch['attention_mask'][n]) if keep]
    assert ids == place.framed(words, alone=place.family in ALONE), words
    labels.append([-100 if i is None else i % 5 for i in batch.word_ids(n)])
  step(place, model, tokenizer, batch, labels=np.asarray(labels))


def questions(place):
  """run_qa: a fresh head over windows, answers by their characters"""
  tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory, use_fast=True)
  assert isinstance(tokenizer, transformers.PreTrainedTokenizerFast)
  model, right = place.load('AutoModelForQuestionAnswering'), tokenizer.padding_side == 'right'
  asked = ['who looked'] * len(PASSAGES)
  given = dict(truncation='only_second' if right else 'only_first', padding='max_length', stride=8)
  given |= dict(return_overflowing_tokens=True, return_offsets_mapping=True)
  length = min(40, tokenizer.model_max_length)
  texts = (asked, PASSAGES) if right else (PASSAGES, asked)
  batch = tokenizer(*texts, max_length=length, **given)
  assert len(batch['input_ids']) > len(PASSAGES)
  found, starts, ends, offsets = set(), [], [], batch.pop('offset_mapping')
  for n, of_passage in enumerate(batch.pop('overflow_to_sample_mapping')):
    passage = PASSAGES[of_passage]
    begin = passage.index('who' if of_passage else 'machine')
    end = begin + (3 if of_passage else 7)
    own = [t for t, s in enumerate(batch.sequence_ids(n)) if s == int(right)]
    at = {t: offsets[n][t] for t in own}
    none = batch['input_ids'][n].index(tokenizer.cls_token_id)
    first = [t for t in own if at[t][0] <= begin < at[t][1]]
    last = [t for t in own if at[t][0] < end <= at[t][1]]
    starts.append(first[0] if first and last else none)
    ends.append(last[-1] if first and last else none)
    if first and last:
      found.add(passage[at[first[0]][0] : at[last[-1]][1]].strip())
  assert found == {'machine', 'who'}
  step(place, model, tokenizer, batch, start_positions=starts, end_positions=ends)


def euroeval(place):
  """EuroEval: fresh heads of three classes, a row as long as tokenizer and config allow"""
  for name in ('SequenceClassification', 'TokenClassification', 'QuestionAnswering'):
    if place.family == 'eurobert' and name == 'QuestionAnswering':
      continue  # transformers has no such class
    labels = {i: f'label {i}' for i in range(2 if name == 'QuestionAnswering' else 7)}
    names = {x: i for i, x in labels.items()}
    given = dict(num_labels=len(labels), id2label=labels, label2id=names)
    config = transformers.AutoConfig.from_pretrained(place.directory, **given)
    model = place.load(f'AutoModelFor{name}', config=config)
    blank = any(x in type(model).__name__ for x in ('Roberta', 'GPT', 'Deberta'))
    given = dict(use_fast=True, verbose=False, padding_side='right', truncation_side='right')
    given |= {'add_prefix_space': True} if blank else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory, **given)
    lengths = [getattr(config, 'max_position_embeddings', None), tokenizer.model_max_length]
    length = min([x for x in lengths if x and 128 <= x < int(1e30)], default=512)
    ids = torch.full((1, length), 100)
    with torch.inference_mode():
      assert model(ids, attention_mask=torch.ones_like(ids))[0].isfinite().all()
    assert model.config.vocab_size >= len(tokenizer) and tokenizer.pad_token_id is not None
    words = tokenizer(['The', 'time'], is_split_into_words=True)['input_ids']
    (row,) = place.network.rows([' The time' if blank else 'The time'])
    assert tokenizer('The time')['input_ids'] == row.ids.tolist()
    assert place.family in ALONE or words == place.framed(['The', 'time'])
    tokenizer.model_max_length = length
    assert len(tokenizer('time ' * 900, truncation=True)['input_ids']) <= length


def sentences(place):
  """SentenceTransformer(directory) of a run that learned vectors, and what it saves itself"""
  library = pytest.importorskip('sentence_transformers')
  theirs, same = library.SentenceTransformer(place.directory, device='cpu'), dict(atol=1e-5, rtol=0)
  ours, vectors = bertzoo_jax.load(f'hf:{place.directory}'), {}
  for prompt in ('query', 'document', ''):
    vectors[prompt] = place.network.encode(TEXTS, prompt=prompt)
    found = theirs.encode(TEXTS, prompt_name=prompt or None)
    np.testing.assert_allclose(found, vectors[prompt], **same)
    np.testing.assert_allclose(ours.encode(TEXTS, prompt=prompt), vectors[prompt], **same)
  assert not np.allclose(vectors['query'], vectors[''], atol=1e-3)
  unit = np.linalg.norm(vectors[''], axis=1) == pytest.approx(1, abs=1e-5)
  assert unit == (place.family in OF_ONE)
  theirs.save(str(place.out))
  again = bertzoo_jax.load(f'hf:{place.out}').encode(TEXTS, prompt='query')
  np.testing.assert_allclose(again, vectors['query'], **same)
  card = (pathlib.Path(place.directory) / 'README.md').read_text()
  facts = "SentenceTransformer('THIS_DIRECTORY')", 'pipeline_tag: sentence-similarity'
  facts += '`query` puts `query: `', 'first 8 numbers', 'fine-tuned'
  assert not [fact for fact in facts if fact not in card]


def onnx(place):
  """torch.onnx.export of the network without a head, read at another length"""
  pytest.importorskip('onnxscript')
  runtime = pytest.importorskip('onnxruntime')
  model = transformers.AutoModel.from_pretrained(place.directory).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(place.directory)
  batch = lambda texts: dict(tokenizer(texts, padding=True, return_tensors='pt'))
  given = batch(TEXTS[:2])
  axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in given}
  how = dict(dynamic_shapes=axes, dynamo=True, verbose=False)
  program = torch.onnx.export(model, (), kwargs=given, **how)
  other = batch(TEXTS[3:6])
  session = runtime.InferenceSession(program.model_proto.SerializeToString())
  out = session.run(None, {name: x.numpy() for name, x in other.items()})[0]
  real = other['attention_mask'].numpy() > 0
  np.testing.assert_allclose(out[real], model(**other)[0].detach()[real], atol=1e-4)


TOOLS = {  # the export that each one reads
  **dict.fromkeys((fill, vectors, glue, ner, questions, euroeval, onnx), 'masks'),
  **{classify: 'pairs', tag: 'tags', answer: 'answers', sentences: 'texts'},
}
# The card says that it does not go.
REFUSED = {
  (fill, 'deberta'): 'Do not fill masks with transformers.',
  (fill, 'deberta-v2'): 'Do not fill masks with transformers.',
  (fill, 'xlnet'): 'To predict a token, give `perm_mask` and `target_mapping`.',
  (fill, 'eurobert'): 'holds heads that transformers has no class for and does not read: mlm_head.',
  (answer, 'eurobert'): 'that transformers has no class for and does not read: span_head.',
}

# What a checkpoint that transformers made does, too: the error.
NOT_OURS = {
  (questions, 'eurobert'): 'for this kind of AutoModel: AutoModelForQuestionAnswering',
  (onnx, 'xlnet'): 'Failed to decompose the FX graph',
}


def by_transformers(place, folder):
  """A Place with a checkpoint of transformers' own making, of the same sizes and tokenizer."""
  config = transformers.AutoConfig.from_pretrained(place.directory)
  transformers.AutoModel.from_config(config).save_pretrained(folder)
  transformers.AutoTokenizer.from_pretrained(place.directory).save_pretrained(folder)
  theirs = copy.copy(place)
  theirs.directory = theirs.fills = str(folder)
  return theirs


ASKED = [
  pytest.param(
    *(x, family),
    id=f'{x.__name__}-{family}',
    # `make test-all` takes the family for which a tool has most to do
    marks=[pytest.mark.xdist_group(family), *[pytest.mark.slow] * (family != 'roberta')],
  )
  for x in TOOLS
  for family in FAMILIES
]


@pytest.mark.parametrize('tool, family', ASKED)
def test_a_tool_reads_what_is_exported(places, tool, family, tmp_path):
  if family == 'eurobert' and not NEW:
    pytest.skip('transformers 4 has no EuroBERT')
  place = places(family, TOOLS[tool])
  if said := REFUSED.get((tool, family)):
    card = (pathlib.Path(place.fills) / 'README.md').read_text()
    task = re.search(r"'(.+)'", tool.__doc__)[1]
    assert said in card and f"pipeline('{task}'" not in card and f'pipeline_tag: {task}' not in card
  elif error := NOT_OURS.get((tool, family)):
    for each in (place, by_transformers(place, tmp_path)):
      with pytest.raises(Exception, match=error):
        tool(each)
  else:
    tool(place)
