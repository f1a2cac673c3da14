import json

import numpy as np
import pytest
import tokenizers as hf

from bertzoo_jax import export
from bertzoo_jax import parts
from bertzoo_jax import prepare
from bertzoo_jax import pretrain
from bertzoo_jax import pretrained
from bertzoo_jax.cli import config_file
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import gaps
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
SPECIAL = dict(pad_token_id=3, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)


def directory(folder, family, vocab_size=64, positions=64):
  """A directory of transformers with random weights; its path."""
  transformers = pytest.importorskip('transformers')
  sizes = {**SMALL, 'vocab_size': vocab_size, 'max_position_embeddings': positions}
  config = getattr(transformers, f'{family}Config')(**sizes, **SPECIAL)
  getattr(transformers, f'{family}ForMaskedLM')(config).save_pretrained(folder)
  return f'hf:{folder}'


@pytest.mark.parametrize('family', ['Bert', 'Roberta', 'DebertaV2', 'ModernBert'])
def test_the_config_has_the_encoder_of_the_directory(family, tmp_path):
  address = directory(tmp_path, family)
  config = config_file.load(f'configs/continued.py:{address},steps=100')
  assert config.encoder.to_dict() == pretrained.open(address).section
  assert config.hf == f'{family}ForMaskedLM' and config.phases == ((100, {}),)
  assert config.length == {'Roberta': 60}.get(family, 64)
  check.config(resolve.run(config))


def test_without_a_directory_it_says_what_to_write():
  with pytest.raises(errors.UserError, match='write configs/continued.py:hf:DIR'):
    config_file.load('configs/continued.py:base')


def test_it_goes_on_with_more_words_and_its_export_opens_in_transformers(tmp_path):
  transformers = pytest.importorskip('transformers')
  text = 'the heron waits by the river and the heron sees the trout in the reeds\n' * 3
  (tmp_path / 'text.txt').write_text('\n\n'.join(f'{text}{n} reeds' for n in range(60)))
  built = hf.Tokenizer(hf.models.WordPiece(unk_token='[UNK]'))
  built.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  special = ['[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]']
  trainer = hf.trainers.WordPieceTrainer(vocab_size=64, special_tokens=special, show_progress=False)
  built.train_from_iterator(['a river of other words, and a trout'] * 3 + [text.lower()], trainer)
  theirs = tmp_path / 'theirs'
  address = directory(theirs, 'Bert', built.get_vocab_size())
  built.save(str(theirs / 'tokenizer.json'))
  names = {f'{x[1:-1].lower()}_token': x for x in special}
  says = {'tokenizer_class': 'PreTrainedTokenizerFast', **names}
  (theirs / 'tokenizer_config.json').write_text(json.dumps(says))

  config = config_file.load(f'configs/continued.py:{address},steps=2')
  config = config.copy_and_resolve_references().unlock()
  config.batch_size, config.length = 8, 16
  config.corpus = parts.corpus(held_out=0.2, duplicates='keep')
  corpus, run, out = (str(tmp_path / name) for name in ('corpus', 'run', 'out'))
  prepare.prepare(config.lock(), [str(tmp_path / 'text.txt')], corpus, address, add='3')
  pretrain.pretrain(config, run, corpus=corpus, init=address, vocabulary='carry')
  first = gaps._first_weights(pretrained.open_run(run), corpora.open(corpus))
  words = first['encoder']['embeddings']['word']['embedding']
  theirs_words = pretrained.open(address).params['encoder']['embeddings']['word']['embedding']
  assert len(words) == len(theirs_words) + 3
  np.testing.assert_array_equal(words[: len(theirs_words)], theirs_words)
  assert all(row.holds for row in export.export(run, out))
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  model = transformers.AutoModelForMaskedLM.from_pretrained(out)
  assert len(tokenizer) == built.get_vocab_size() + 3 == model.config.vocab_size
  assert len(tokenizer.tokenize(text)) < len(built.encode(text).tokens)
