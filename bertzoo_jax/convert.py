"""Converts pickled weights (Microsoft's releases of DeBERTa) into directories that --init reads.
Needs torch.

    python -m bertzoo_jax.convert --model DIR --out OUT

DIR has config.json and pytorch_model.bin. If pytorch_model.generator.bin lies beside them, as in
releases of DeBERTaV3, the command writes OUT/discriminator and OUT/generator, for

    --init hf:OUT/discriminator,hf:OUT/generator

Otherwise it writes OUT. The generator's number of layers is read from its file.
--model OWNER/NAME fetches the files from the Hugging Face hub.

No code in the pickles is run. Every tensor is written, floats as float32. The vocabulary head's
tensors get the names that transformers reads: lm_predictions.lm_head.dense becomes
cls.predictions.transform.dense. Tensors that no network here has are written and listed.
config.json keeps all its fields. A SentencePiece model without a tokenizer.json gets one.
"""

import json
import pathlib
import pickle
import re
import tempfile

from absl import flags

from bertzoo_jax import export
from bertzoo_jax import tokenizers
from bertzoo_jax.common import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import weights
from bertzoo_jax.hf.architectures import released

_CONFIG, _WEIGHTS, _GENERATOR = (
  'config.json',
  'pytorch_model.bin',
  'pytorch_model.generator.bin',
)
_TOKENIZER = (*hub.TOKENIZER, 'bpe_encoder.bin')


def convert(model: str, out) -> list[str]:
  """Writes the directories. Returns the lines to print.

  Args:
    model: folder, or OWNER/NAME of the Hugging Face hub.
    out: directory, local or gs://; it appears only when it is complete.

  Raises:
    UserError: `out` is not empty, a file is missing, a pickle holds anything but tensors, torch is
      missing, or the weights and config.json do not fit each other.
  """
  out = storage.path(out)
  export.check_free(out)
  name = model.removeprefix('hf:')
  if '/' not in name and not storage.path(name).is_dir():
    raise errors.UserError(
      f'There is no folder {name}: correct --model, or give OWNER/NAME of the Hugging Face hub.'
    )
  source = hub.folder(name, (_CONFIG, _WEIGHTS, _GENERATOR, *_TOKENIZER))
  if (source / 'model.safetensors').exists() and not (source / _WEIGHTS).exists():
    raise errors.UserError(
      f'{source} has model.safetensors, which needs no conversion: use --init hf:{source}.'
    )
  if not (source / _WEIGHTS).exists():
    raise errors.UserError(
      f'{source} has no {_WEIGHTS}: give a folder with the pickles of a release and its {_CONFIG}.'
    )
  content = weights.read_json(source / _CONFIG)
  both = (source / _GENERATOR).exists()
  said = []
  with export.scratch(out) as folder:
    root = pathlib.Path(folder) / 'model'
    for name, file in (('discriminator', _WEIGHTS), ('generator', _GENERATOR))[: 1 + both]:
      own = root / name if both else root
      own.mkdir(parents=True)
      place = out / name if both else out
      said += _write(own, place, _read(source / file), released.config(content, name), source)
    export.install(root, out)
  return said


def _write(folder, place, tensors, content, source) -> list[str]:
  """Writes a network into `folder`, which later becomes `place`. Returns the lines to print."""
  content = {**content, 'model_type': content.get('model_type') or released.model_type(tensors)}
  a = architectures.reader({**content, 'architectures': released.classes(content, tensors)})
  depth = {int(m[1]) for m in (re.search(r'encoder\.layer\.(\d+)\.', key) for key in tensors) if m}
  config = {**a.defaults, 'num_hidden_layers': len(depth), **content, 'architectures': [a.name]}
  if 'legacy' in config:
    config['legacy'] = True
  names = {key: a.modern(key) for key in tensors}
  names = {key: key if name in tensors else name for key, name in names.items()}
  weights.save(folder / 'model.safetensors', {names[key]: x for key, x in tensors.items()})
  (folder / _CONFIG).write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')
  _, report = weights.load(folder)
  _write_tokenizer(folder, source, a, config)
  return [
    f'{place}: {a.name}, {len(depth)} layers, {len(tensors)} tensors',
    *(f'  {key} is written as {name}' for key, name in names.items() if key != name),
    *(f'  {key} is written, but no network here has a place for it' for key in report.ignored),
  ]


def _read(path) -> dict:
  """{name: array} of a pickle, floats as float32. Raises UserError if it holds anything else."""
  try:
    import torch
  except ImportError as e:
    raise errors.UserError(
      f'Reading {path.name} needs torch ({e.name} is missing): pip install "bertzoo_jax[hf]".'
    ) from e
  try:
    state = torch.load(str(path), map_location='cpu', weights_only=True)
  except pickle.UnpicklingError as e:
    why = ' '.join(str(e).split('\n\n')[-2:][0].split())[:120]  # without torch's advice
    raise errors.UserError(
      f'{path} is not a pickle of tensors alone ({why}), so reading it can run code: download it '
      'again, or take another release.'
    ) from e
  except (RuntimeError, EOFError, ValueError, KeyError) as e:
    raise errors.UserError(
      f'{path} is damaged, or torch.save did not write it: download it again.'
    ) from e
  strange = [] if isinstance(state, dict) else [('an object', state)]
  strange = strange or [(k, x) for k, x in state.items() if not isinstance(x, torch.Tensor)]
  for key, x in strange[:1]:
    raise errors.UserError(
      f'{path} holds {key!r} of type {type(x).__name__}, not only named tensors: save nothing but '
      'the state_dict() of the network.'
    )
  return {k: (x.float() if x.is_floating_point() else x).numpy() for k, x in state.items()}


def _write_tokenizer(folder, source, a, config) -> None:
  """The tokenizer's files, with a tokenizer.json for a SentencePiece model that has none."""
  for path in sorted(source.iterdir()):
    if path.name in _TOKENIZER:
      (folder / path.name).write_bytes(path.read_bytes())
  if a.tokens is None or not (source / a.tokens.model).exists():
    return
  if (source / 'tokenizer.json').exists():
    return
  with tempfile.TemporaryDirectory() as scratch:
    tokenizers.load(source, released.TOKENIZER).save(scratch)
    content, special = hf_tokenizer.read(scratch)
    for name, text in hf_tokenizer.files(
      content,
      special,
      shape=a.tokens,
      max_length=config['max_position_embeddings'],
      segments=config['type_vocab_size'] or a.segments,
      model=hf_tokenizer.sentencepiece_model(scratch),
    ).items():
      (folder / name).write_bytes(text.encode('utf-8') if isinstance(text, str) else text)


def main(_):
  print('\n'.join(convert(_MODEL.value, _OUT.value)))


if __name__ == '__main__':
  _MODEL = flags.DEFINE_string(
    'model', None, 'Folder with pickles, or OWNER/NAME of the Hugging Face hub.', required=True
  )
  _OUT = flags.DEFINE_string(
    'out', None, 'Directory to make; must be absent or empty.', required=True
  )
  cli.run(main)
