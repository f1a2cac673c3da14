"""Reloads an exported directory, and compares its logits and token ids with ours.

The transformers class of the architecture's name reloads it, or the architecture's own `logits`.
A comparison fails if a tensor was not loaded, if only one side has a head, and without any head.

torch and transformers are imported inside the functions: without them everything else of an export
works.
"""

import importlib.util
from typing import NamedTuple

import numpy as np
import safetensors

from bertzoo_jax.common import tables
from bertzoo_jax.common import trust
from bertzoo_jax.hf import tokenizer as tokenizers
from bertzoo_jax.hf.architecture import Architecture

# Float32 rounding of a whole network, in units of its largest logit (at least 1).
TOLERANCE = 1e-5

# Text about which tokenizers disagree: blanks, ligatures, width, accents, case, scripts, emoji,
# specials inside a text.
PROBES = (
  'Hello world!',
  ' two  blanks ',
  'a\u00a0b',
  'zero\u200bwidth',
  '\u00bd and \ufb01ne',
  '\uff28\uff45\uff4c\uff4c\uff4f\uff11',
  'e\u0301a\u0302\u0300 \u00e9',
  '\u0130stanbul \u0131\u015f\u0131k',
  '\u5929\u5730\u7384\u9ec4abc\u5b87',
  '\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467',
  'a [MASK] b <mask> c</s>[SEP]',
  "don't stop -- 3,141.59 U.S.",
  'tab\tnew\nline\r\n',
  'x' * 130,
  '\ufffd\u0007\u00ad',
  '',
)


class Comparison(NamedTuple):
  """What is compared, the largest difference, the allowed one, and whether the comparison holds."""

  what: str
  difference: str
  allowed: str
  holds: bool


def missing_packages() -> list[str]:
  """Names of the packages that verification needs and this environment lacks."""
  return [name for name in ('torch', 'transformers') if importlib.util.find_spec(name) is None]


def random_batch(
  vocab_size: int, max_length: int, segments: int, pad: int, seed: int = 0, padding: str = 'right'
) -> dict[str, np.ndarray]:
  """Rows of random ids, padded on one side: input_ids, token_type_ids and segment_ids, all [B, L]
  int32; L = max_length.

  The first row is full, so that every position is tried; rows of more than 128 tokens are two,
  shorter ones four.
  """
  rng = np.random.default_rng(seed)
  lengths = np.asarray(
    [max_length, max(1, max_length // 2), max(1, max_length - 3), 1][: 2 if max_length > 128 else 4]
  )
  real = np.arange(max_length) < lengths[:, None]
  ids = rng.choice(np.setdiff1d(np.arange(vocab_size), [pad]), real.shape)
  split = rng.integers(0, max_length + 1, (len(lengths), 1))
  second = (np.arange(max_length) >= split) & (segments > 1)
  batch = {
    'input_ids': np.where(real, ids, pad).astype(np.int32),
    'token_type_ids': (second & real).astype(np.int32),
    'segment_ids': real.astype(np.int32),
  }
  if padding == 'right':
    return batch
  turned = (np.arange(max_length) - (max_length - lengths)[:, None]) % max_length
  return {name: np.take_along_axis(x, turned, axis=1) for name, x in batch.items()}


def with_single_texts(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The rows, and each once more as a single text, of segment 0."""
  single = {**batch, 'token_type_ids': np.zeros_like(batch['token_type_ids'])}
  return {name: np.concatenate([x, single[name]]) for name, x in batch.items()}


def as_options(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The rows as units of two options, [B/2, 2, L]."""
  return {name: x.reshape(-1, 2, x.shape[-1]) for name, x in batch.items()}


def logits(directory, a: Architecture, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The reference's logits in float32, by head.

  Returns 'mlm' [B, L, V], 'pair' [B, 2], 'replaced' [B, L], 'row' [B, C], 'start' and 'end' [B, L],
  'tag' [B, L, C] and 'choice' [B, C], those that the class has, or other heads by the names of
  `networks.predict`; 'vectors' [B, L, D] of a class without a head. 'unloaded': names of the
  tensors that are missing from the file, or that the reference did not load; may be {name: why}.
  """
  if a.logits is not None:
    return a.logits(directory, batch)
  network, unloaded = reloaded(directory, a.name, **a.load_args)
  out = outputs(network, batch, a.segments)
  alone = next((head.removesuffix('_head') for head in sorted(a.head_names)), 'logits')
  arrays = {name: x.numpy() for name in _OUTPUTS if (x := getattr(out, name, None)) is not None}
  return {**{_OUTPUTS[name] or alone: x for name, x in arrays.items()}, 'unloaded': unloaded}


# {output of a class of transformers: its head; '': the only head of the class}
_OUTPUTS = {
  'prediction_logits': 'mlm',
  'seq_relationship_logits': 'pair',
  'sop_logits': 'pair',
  'start_logits': 'start',
  'end_logits': 'end',
  'last_hidden_state': 'vectors',
  'logits': '',
}


def our_logits(encoder, params: dict, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """As `logits`, of our network: float32, at the device's highest precision of products.

  encoder: linen module.
  params: of the network. Without heads the result is {'vectors': …}.
  """
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.objectives import networks

  encoder = encoder.clone(dtype=jnp.float32)

  def predict(params, batch):
    if set(params) == {'encoder'}:
      return {'vectors': networks.encode(encoder, params['encoder'], batch, None)}
    return networks.predict(encoder, params, batch)

  with jax.default_matmul_precision('highest'):
    return jax.tree.map(np.asarray, jax.jit(predict)(params, batch))


def reloaded(directory, name: str, **load_args):
  """(network of a class of transformers in float32, {tensor: why} for 'unloaded' of `logits`).
  load_args: further arguments of from_pretrained.
  """
  trust.torch()
  import transformers

  transformers.utils.logging.disable_progress_bar()
  transformers.utils.logging.set_verbosity_error()  # its list is returned
  network, info = getattr(transformers, name).from_pretrained(
    str(directory), output_loading_info=True, trust_remote_code=False, **load_args
  )
  network = network.float().eval()
  why = dict.fromkeys(_strangers(directory, network), 'the class has no such tensor')
  why |= dict.fromkeys(info['unexpected_keys'], 'the class has no such tensor')
  why |= dict.fromkeys(info['missing_keys'], 'no row writes it')
  return network, dict(sorted(why.items()))


def outputs(network, batch: dict[str, np.ndarray], segments: int = 1, **more):
  """The output of a network of transformers for a batch, without gradients.

  segments: how many it distinguishes, if its config.json does not say. With one segment it gets no
    token_type_ids.
  more: tensors for its further arguments.
  """
  torch = trust.torch()
  inputs = {'input_ids': batch['input_ids'], 'attention_mask': batch['segment_ids'] > 0}
  if getattr(network.config, 'type_vocab_size', segments) > 1:
    inputs['token_type_ids'] = batch['token_type_ids']
  with torch.no_grad():
    inputs = {k: torch.as_tensor(np.asarray(v)).long() for k, v in inputs.items()}
    return network(**inputs, **more)


def _strangers(directory, network) -> list[str]:
  """Names of tensors in the file that the torch network lacks or holds with other values."""
  theirs = network.state_dict()
  theirs |= {f'{network.base_model_prefix}.{name}': x for name, x in theirs.items()}
  with safetensors.safe_open(f'{directory}/model.safetensors', framework='numpy') as f:
    return [
      key
      for key in f.keys()  # noqa: SIM118 (no mapping)
      if key not in theirs or not np.array_equal(f.get_tensor(key), theirs[key].numpy())
    ]


def compare_logits(
  ours: dict[str, np.ndarray],
  theirs: dict[str, np.ndarray],
  segment_ids: np.ndarray,
  unread: tuple[str, ...] = (),
) -> list[Comparison]:
  """Comparisons of each head, at real tokens only.

  ours: logits by head. theirs: as `logits` returns them. segment_ids: [B, L]; 0 is padding. unread:
  names of tensors that the reference may leave out.
  """
  unloaded = theirs.get('unloaded', ['the reference does not say'])
  allowed = [name for name in unloaded if name in unread]
  why = unloaded if isinstance(unloaded, dict) else {}
  listed = [f'{x} ({why[x]})' if x in why and x not in unread else x for x in unloaded]
  names = [', '.join(tensors) or 'none' for tensors in (listed, allowed)]
  rows = [Comparison('tensors not loaded', *names, len(allowed) == len(unloaded))]
  heads = sorted({*ours, *theirs} - {'unloaded'}, key=lambda head: (_ORDER.get(head, 9), head))
  if not heads:
    rows.append(Comparison('logits', 'neither side has a head to compare', 'one at least', False))
  return [*rows, *(_compare_head(head, ours, theirs, segment_ids) for head in heads)]


_ORDER = {'mlm': 0, 'next': 0, 'replaced': 1, 'pair': 2, 'row': 3}
_ROW_HEADS = ('pair', 'row', 'choice')


def _compare_head(head, ours, theirs, segment_ids) -> Comparison:
  """The Comparison of one head. Logits of tokens begin with [B, L], others with [B] alone."""
  what = head if head == 'vectors' else f'{head} logits'
  for side, others in ((ours, 'the reference'), (theirs, 'the trained network')):
    if head not in side:
      return Comparison(what, f'only {others} has this head', 'both', False)
  a, b = np.asarray(ours[head]), np.asarray(theirs[head])
  if a.shape != b.shape:
    return Comparison(what, f'{a.shape} here, {b.shape} there', 'one shape', False)
  if b.shape[:2] == segment_ids.shape and head not in _ROW_HEADS:
    a, b = a[segment_ids > 0], b[segment_ids > 0]
  if not b.size:
    return Comparison(what, 'no number to compare', 'one at least', False)
  if head.endswith('_place'):  # places in an order by scores, of which some are almost equal
    wrong = np.mean(a != b)
    return Comparison(f'{head} {b.shape}', f'{wrong:.1%} differ', '1 %', bool(wrong <= 0.01))
  scale = max(1.0, float(np.abs(b).max()))
  difference = float(np.abs(a - b).max())
  return Comparison(
    f'{what} {tuple(theirs[head].shape)}, largest {scale:.3g}',
    f'{difference:.2e}',
    f'{TOLERANCE * scale:.1e}',
    bool(difference <= TOLERANCE * scale),
  )


def compare_tokens(
  directory, encode, special: dict[str, int], shape: tokenizers.Shape
) -> list[Comparison]:
  """Comparisons of token ids after reloading.

  directory: the export. encode: texts → lists of ids without specials added, specials in the text
  understood. special: ids by name, of which cls and sep. shape: how texts are framed.
  """
  trust.torch()
  import transformers

  transformers.utils.logging.set_verbosity_error()  # it warns about model types of outside classes

  tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
  ours = [list(map(int, ids)) for ids in encode(list(PROBES))]
  theirs = [tokenizer(p, add_special_tokens=False)['input_ids'] for p in PROBES]
  wrong = [p for p, a, b in zip(PROBES, ours, theirs) if a != b]
  differ = f'{len(wrong)} differ' + (f', first {wrong[0]!r}' if wrong else '')
  pieces = {**{role: [i] for role, i in special.items()}, **dict(zip('AB', ours))}
  single, pair = (tokenizers.framed(t, **pieces) for t in (shape.single, shape.pair))
  framed = [tokenizer(*PROBES[:number])['input_ids'] for number in (1, 2)] == [single, pair]
  trained = 'as trained'
  around = trained if framed else f'not {trained}'
  roles = {role: getattr(tokenizer, f'{role}_token_id') for role in tokenizers.ROLES}
  others = [role for role, i in roles.items() if i != special[role]]
  return [
    Comparison(f'ids of {len(PROBES)} texts', differ, '0 differ', not wrong),
    Comparison('specials around a text and a pair', around, trained, framed),
    Comparison('special ids', ', '.join(others) or trained, trained, not others),
  ]


def table(rows: list[Comparison]) -> str:
  cells = [
    ('compared', 'difference', 'allowed', ''),
    *((r.what, r.difference, r.allowed, 'ok' if r.holds else 'DIFFERS') for r in rows),
  ]
  return tables.aligned(cells)
