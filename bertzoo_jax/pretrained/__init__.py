"""Opens the network at an address of --init: a run, or a Hugging Face directory."""

import dataclasses
import os
import types
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax import hf
from bertzoo_jax import objectives
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.hf import architecture as hf_architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import sentence_vectors
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.objectives import objective as objective_of
from bertzoo_jax.parts import named
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import workdir as workdirs

_PAIR = ('discriminator', 'generator')
# Files to fetch from the hub: weights, config.json and the files of tokenizers.
_NETWORK = ('config.json', weights.WEIGHTS, weights.INDEX, weights.HEADS_FILE, *hub.TOKENIZER)
FILES = (*_NETWORK, *(f'{folder}/{file}' for folder in _PAIR for file in _NETWORK))
FILES += sentence_vectors.FILES

# Fields that the program sets on an encoder; all others are its config section.
_PROGRAM_FIELDS = ('vocab_size', 'dtype', 'unroll', 'remat', 'parent', 'name')


class Run(NamedTuple):
  """A checkpoint of a run."""

  params: dict  # nested dict of numpy arrays, of all networks
  step: int  # step of the checkpoint
  workdir: str  # folder of the run
  config: Any  # config of the phase that contains the step
  # those that the run trains, in float32; the one to keep comes first
  networks: tuple[objective_of.Network, ...]


class Pretrained(NamedTuple):
  """One trained network, with everything needed to continue training it."""

  address: str  # as given; W@STEP for a run, the discriminator's folder for a pair
  section: dict  # complete config section of the encoder: 'name' and every field
  # parameters of the network, nested dict of numpy arrays: {'encoder': …}, and its heads
  params: dict
  step: int | None  # step of the checkpoint; None for a Hugging Face directory
  tokenizer_folder: Any  # folder with the tokenizer's files
  # config section of the tokenizer; None for a Hugging Face directory
  tokenizer_section: dict | None
  # name of a Hugging Face class whose family holds the encoder: config.hf if it fits, or the
  # directory's class
  hf: str
  shape: hf_tokenizer.Shape  # how texts are framed, and the padding side
  vocab_size: int  # rows of the word table
  config: Any = None  # config of the run; None for a Hugging Face directory
  facts: Mapping[str, Any] = types.MappingProxyType({})  # facts of its task, see tasks.Task
  learned: tuple[str, ...] = (objective_of.MASKED,)  # see objective.Network
  # how vectors of texts are made of it
  vectors: sentence_vectors.Vectors = sentence_vectors.Vectors()

  @property
  def predicts_next(self) -> bool:
    """Whether the output of its vocabulary head at a token predicts the token after it."""
    return objective_of.LEFT_TO_RIGHT in self.learned


def open(address: str, wished: str | None = None) -> Pretrained:
  """The network at an address; the discriminator of a pair.

  address: W, W@STEP, W@best, hf:DIR or hf:OWNER/NAME[@REVISION]. DIR may also hold the folders
  discriminator and generator. wished: class of Hugging Face that reads a directory, see `hf.load`.
  Raises UserError if the address is empty, for several addresses, or damaged files; TransientError
  if the storage or the hub does not answer.
  """
  address = os.fspath(address)
  if len(storage.addresses(address)) > 1:
    raise errors.UserError(
      f'{address!r} has several addresses, and one network is needed: give the address of one, the '
      'discriminator of a pair.'
    )
  return _directory(address, wished) if address.startswith('hf:') else _from_run(address)


def encoder(model: Pretrained, dtype=jnp.float32, **changes):
  """The linen module of the network's encoder. changes: fields to override, as dropout=0.1."""
  section = {**model.section, **changes}
  return named.build(section, encoders.BY_NAME, 'encoder', vocab_size=model.vocab_size, dtype=dtype)


def open_run(address: str) -> Run:
  """The run at W, W@STEP or W@best. Raises UserError for no such workdir or step, a damaged one, or
  an objective without a network; TransientError if the storage does not answer.
  """
  params, step, workdir = checkpoint.load_params(address)
  config = configuration.phase_at(workdirs.run_config(workdir), step).config
  networks = objectives.build_networks(config, hf.vocabulary_size(params))
  return Run(params, step, workdir, config, networks)


def _from_run(address):
  run = open_run(address)
  network = run.networks[0]
  params = jax.tree.map(np.asarray, network.extract(run.params))
  # if the encoder was swapped, config.hf is of another family
  name = architectures.for_encoder(run.config.hf, network.encoder.activation, hf.flatten(params))
  return _pretrained(
    (run.config.encoder.name, network.encoder, params),
    storage.path(run.workdir) / 'tokenizer',
    architectures.choose(name),
    address=checkpoint.at_step(address, run.step),
    step=run.step,
    hf=name,
    learned=network.learned,
    config=run.config,
    vectors=sentence_vectors.in_config(run.config),
    facts=workdirs.corpus_record(run.workdir).get('task', {}),
  )


def directory(address: str):
  """The folder of hf:DIR or hf:OWNER/NAME[@REVISION]. The hub's files are fetched by name.

  Raises UserError and TransientError as `hub.folder`.
  """
  name = address.removeprefix('hf:')
  folder = hub.folder(name, FILES)
  if not (folder / weights.INDEX).exists() or (folder / weights.WEIGHTS).exists():
    return folder
  return hub.folder(name, [*FILES, *(path.name for path in weights.files(folder))])


def _directory(address, wished):
  folder = directory(address)
  if not (folder / 'config.json').exists() and all((folder / name).is_dir() for name in _PAIR):
    folder, address = folder / _PAIR[0], f'hf:{folder / _PAIR[0]}'
  params, report = hf.load(folder, wished)
  content = weights.read_json(storage.path(folder) / 'config.json')
  a = architectures.reader(content, wished)
  section = hf_architecture.section(a, report.encoder)
  fields = dict(vocab_size=hf.vocabulary_size(params), dtype=jnp.float32)
  built = named.build(section, encoders.BY_NAME, 'encoder', **fields)
  name = wished if wished and architectures.choose(wished) is a else a.name
  learned = _learned(content.get(hf_architecture.LEARNED))
  vectors = sentence_vectors.read(folder, built.padding_side)
  rest = dict(address=address, step=None, hf=name, learned=learned, vectors=vectors)
  return _pretrained((a.part, built, params), folder, a, **rest)


def _learned(ways) -> tuple[str, ...]:
  """Network.learned by config.json's value; masks if that names no known way."""
  known = objective_of.MASKED, objective_of.LEFT_TO_RIGHT
  ways = ways if isinstance(ways, list) else []
  return tuple(way for way in known if way in ways) or known[:1]


def _pretrained(network, folder, a, **rest) -> Pretrained:
  """The Pretrained of a network: (part of its encoder, the encoder, parameters).

  folder: of its tokenizer. a: its class. rest: the other fields.
  """
  part, built, params = network
  names = [field.name for field in dataclasses.fields(built) if field.name not in _PROGRAM_FIELDS]
  return Pretrained(
    section={'name': part, **{key: getattr(built, key) for key in names}},
    params=params,
    tokenizer_folder=folder,
    tokenizer_section=vocabulary.section_of(folder),
    # [CLS] A [SEP] where the class has no tokenizer
    shape=(a.tokens or hf_tokenizer.Shape())._replace(padding=built.padding_side),
    vocab_size=hf.vocabulary_size(params),
    **rest,
  )
