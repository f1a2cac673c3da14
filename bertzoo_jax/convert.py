"""Converts pickled weights and TensorFlow checkpoints into directories that --init reads.

    python -m bertzoo_jax.convert --model DIR --out OUT

DIR, or OWNER/NAME of the Hugging Face hub, is a release of Microsoft's (needs torch) or Google's
(needs tensorflow); docs/commands.md lists the files. Of two networks the command writes
OUT/discriminator and OUT/generator.

No code in the pickles is run. Every tensor is written, floats as float32. The vocabulary head's
tensors get the names that transformers reads: lm_predictions.lm_head.dense becomes
cls.predictions.transform.dense. Tensors that no network here has are written and listed.
config.json keeps all its fields. A SentencePiece model without a tokenizer.json gets one.
"""

import json
import os
import pathlib
import pickle
import re
import tempfile

from bertzoo_jax import cli
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architectures import google
from bertzoo_jax.hf.architectures import released

_CONFIG, _WEIGHTS = 'config.json', 'pytorch_model.bin'
_GENERATOR = 'pytorch_model.generator.bin'
# Names of Google's TensorFlow checkpoints, and of the files beside them.
_CHECKPOINTS = ('bert_model.ckpt', 'model.ckpt-best')
_CHECKPOINTS += ('electra_small', 'electra_base', 'electra_large')
_BESIDE = ('bert_config.json', 'albert_config.json')
_MORE = ('bpe_encoder.bin', '30k-clean.model')  # tokenizer files with other names


def convert(model: str, out) -> list[str]:
  """Writes the directories. Returns the lines to print.

  model: folder, or OWNER/NAME of the Hugging Face hub. out: directory, local or gs://; it appears
  only when it is complete. Raises UserError: `out` is not empty, a file is missing, a pickle holds
  anything but tensors, torch is missing, or the weights and config.json do not fit each other.
  """
  out = storage.path(out)
  folders.check_free(out)
  name = os.fspath(model).removeprefix('hf:')
  if '/' not in name and not storage.path(name).is_dir():
    raise errors.UserError(
      f'There is no folder {name}: correct --model, or give OWNER/NAME of the Hugging Face hub.'
    )
  wanted = [_CONFIG, _WEIGHTS, f'{_WEIGHTS}.index.json', _GENERATOR, *_BESIDE]
  wanted += [*hub.TOKENIZER, *_MORE, *sentence_vectors.FILES]
  wanted += [x + end for x in _CHECKPOINTS for end in ('.index', '.data-00000-of-00001')]
  source = hub.folder(name, wanted)
  pickled = weights.parts(source, _WEIGHTS)
  source = hub.folder(name, [*wanted, *(file.name for file in pickled)])
  folders.check_links(source)
  if not pickled and weights.parts(source, weights.WEIGHTS):
    raise errors.UserError(
      f'{source} has model.safetensors, which needs no conversion: use --init hf:{source}.'
    )
  lines = []
  with folders.scratch(out) as folder:
    root = pathlib.Path(folder) / 'model'
    for name, tensors, content in _pickled(source, pickled) if pickled else _tensorflow(source):
      (root / name).mkdir(parents=True)
      lines += _write(root / name, out / name if name else out, tensors, content, source)
    folders.install(root, out)
  return lines


def _pickled(source, files):
  """Yields (name of the network or '', its tensors, its config.json)."""
  content, both = weights.read_json(source / _CONFIG), (source / _GENERATOR).exists()
  for name, paths in (('discriminator', files), ('generator', [source / _GENERATOR]))[: 1 + both]:
    tensors = {key: x for file in paths for key, x in _read(file).items()}
    fields = released.config(content, name)
    fields['model_type'] = fields.get('model_type') or released.model_type(tensors)
    fields['architectures'] = released.classes(fields, tensors)
    yield name if both else '', tensors, fields


def _tensorflow(source):
  """Like _pickled, for a TensorFlow checkpoint. TensorFlow is imported only here."""
  checkpoints = sorted(source.glob('*.index'))
  if len(checkpoints) != 1:
    names = ', '.join(p.name for p in checkpoints) or f'neither {_WEIGHTS} nor *.ckpt.index'
    raise errors.UserError(
      f'{source} has {names}: give a folder with the weights of one release and its {_CONFIG}.'
    )
  configs = [p for p in sorted(source.glob('*config.json')) if p.name != 'tokenizer_config.json']
  content = weights.read_json(configs[0]) if configs else {}
  cli.quiet_tensorflow()
  with errors.needing(
    f'Reading {checkpoints[0].name} needs TensorFlow: pip install tensorflow-cpu'
  ):
    import tensorflow as tf
  broken = f'{checkpoints[0]} and its data are damaged or incomplete: download them again'
  with errors.unreadable(broken, tf.errors.OpError, RuntimeError):
    reader = tf.train.load_checkpoint(str(checkpoints[0]).removesuffix('.index'))
    names = filter(google.is_weight, reader.get_variable_to_shape_map())
    variables = {name: reader.get_tensor(name) for name in names}
  yield from ((name, *network) for name, network in google.networks(variables, content).items())


def _write(folder, place, tensors, content, source) -> list[str]:
  """Writes a network into `folder`, which later becomes `place`. Returns the lines to print."""
  a = architectures.reader(content)
  depth = {
    int(m[1]) for m in (re.search(r'encoder\.layer\.(\d{1,9})\.', key) for key in tensors) if m
  }
  name = next((x for x in content['architectures'] if x in architectures.ARCHITECTURES), a.name)
  config = {**a.defaults, 'num_hidden_layers': len(depth), **content, 'architectures': [name]}
  config.pop('auto_map', None)  # names code in the directory
  if 'legacy' in config:
    config['legacy'] = True
  names = {key: a.rename_legacy(key) for key in tensors}
  names = {key: key if name in tensors else name for key, name in names.items()}
  weights.save(folder / 'model.safetensors', {names[key]: x for key, x in tensors.items()})
  (folder / _CONFIG).write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')
  _, report = weights.load(folder)
  _write_tokenizer(folder, source, a, config)
  for file in sentence_vectors.FILES:
    if (source / file).is_file():
      (folder / file).parent.mkdir(exist_ok=True)
      (folder / file).write_bytes((source / file).read_bytes())
  return [
    f'{place}: {name}, {config["num_hidden_layers"]} layers, {len(tensors)} tensors',
    *(f'  {key} is written as {name}' for key, name in names.items() if key != name),
    *(f'  {key} is written, but no network here has a place for it' for key in report.ignored),
  ]


def _read(path) -> dict:
  """{name: array} of a pickle, floats as float32. Raises UserError if it holds anything else."""
  with errors.needing(f'Reading {path.name} needs torch', 'hf'):
    torch = trust.torch()
  array = lambda x: (x.float() if x.is_floating_point() else x).detach().contiguous().numpy()
  try:
    state = torch.load(str(path), map_location='cpu', weights_only=True)
  except pickle.UnpicklingError as e:
    why = ' '.join(str(e).split('\n\n')[-2:][0].split())[:120]  # without torch's advice
    raise errors.UserError(
      f'{path} is not a pickle of tensors alone ({why}), so reading it can run code: download it '
      'again, or take another release.'
    ) from e
  except (RuntimeError, EOFError, *errors.UNREADABLE) as e:
    raise errors.UserError(
      f'{path} is damaged, or torch.save did not write it: download it again.'
    ) from e
  strange = [] if isinstance(state, dict) else [('an object', state)]
  plain = lambda k, x: isinstance(k, str) and isinstance(x, torch.Tensor)
  strange = strange or [(k, x) for k, x in state.items() if not plain(k, x)]
  for key, x in strange[:1]:
    raise errors.UserError(
      f'{path} holds {key!r} of type {type(x).__name__}, not only named tensors: save nothing but '
      'the state_dict() of the network.'
    )
  with errors.unreadable(f'{path} has a tensor that is no array of numbers', RuntimeError):
    return {k: array(x) for k, x in state.items()}


def _write_tokenizer(folder, source, a, config) -> None:
  """Writes the tokenizer's files. Adds the tokenizer.json that a SentencePiece model lacks, and the
  settings that a vocab.txt lacks.
  """
  files = hf_tokenizer.published(source)
  files |= {name: (source / name).read_bytes() for name in _MORE if (source / name).is_file()}
  for name, content in files.items():
    (folder / name).write_bytes(content)
  written = {path.name for path in folder.iterdir()}
  if 'tokenizer.json' in written:
    return
  if 'vocab.txt' in written and 'tokenizer_config.json' not in written:
    pieces = (folder / 'vocab.txt').read_text(encoding='utf-8').split()
    cased = any(p != p.lower() for p in pieces if p.isalpha())
    settings = {'do_lower_case': not cased, 'tokenizer_class': 'BertTokenizer'}
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings) + '\n', encoding='utf-8')
  section = google.tokenizer(config)
  wanted = '.model' if section else a.tokens.model
  models = [x for x in sorted(written) if x.endswith(wanted)]
  if not models:
    return
  with tempfile.TemporaryDirectory() as scratch:
    loaded = tokenizers.load(folder / models[0], section or released.TOKENIZER)
    loaded.save(scratch)
    content, special = hf_tokenizer.read(scratch)
    for name, text in hf_tokenizer.files(
      content,
      special,
      shape=a.tokens,
      max_length=config['max_position_embeddings'],
      segments=config['type_vocab_size'] or a.segments,
      model=loaded.vocabulary.model,
    ).items():
      (folder / name).write_bytes(text.encode('utf-8') if isinstance(text, str) else text)


def main(asked):
  print('\n'.join(convert(asked.model, asked.out)))


if __name__ == '__main__':
  cli.required(
    model='Folder with pickles, or OWNER/NAME of the Hugging Face hub.',
    out='Directory to make; must be absent or empty.',
  )
  cli.run(main)
