"""XLNet (Yang et al. 2019), with and without its head; logits are of the content stream."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf import tokenizer
from bertzoo_jax.hf import verify
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import WORD_TABLE
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architecture import norm

_QUERY = 'encoder/embeddings/query/embedding'
TOKENS = tokenizer.Shape('A:0 sep:0 cls:2', 'A:0 sep:0 B:1 sep:1 cls:2', padding='left')


def _clamp(content) -> int:
  clamp = content.get('clamp_len', -1)
  if not isinstance(clamp, int) or isinstance(clamp, bool) or clamp >= 1 << 22:
    raise errors.UserError(
      f'config.json says clamp_len={str(clamp)[:40]}, which is no number of tokens (-1: no limit): '
      'download or export the directory again.'
    )
  return max(0, clamp)


_KEYS = (
  *keys.COMMON,
  keys.Key('n_layer', 'num_layers', 24),
  keys.Key('d_model', 'hidden_size', 1024),
  keys.Key('n_head', 'num_heads', 16),
  keys.Key('d_inner', 'intermediate_size', 4096),
  keys.Key('layer_norm_eps', 'norm_eps', 1e-12),
  keys.Key('dropout', 'dropout', 0.1),
  keys.Key('initializer_range', 'initializer_range', 0.02),
  keys.means('attention_dropout', lambda content: content['dropout']),
  keys.written('d_head', lambda at: at.encoder.hidden_size // at.encoder.num_heads),
  keys.activation('ff_activation', 'gelu'),
  keys.written('untie_r', True),
  keys.fixed('attn_type', 'bi', usual='bi'),
  keys.fixed('same_length', False, usual=False),
  keys.Key(
    'clamp_len', 'clamp_length', write=lambda at: at.encoder.clamp_length or -1, read=_clamp
  ),
  # As in the released models: rows are read forward, and only pretraining has a memory.
  keys.written('bi_data', False),
  keys.written('mem_len', None),
  keys.written('reuse_len', None),
  keys.written('use_mems_eval', False),
  keys.written('use_mems_train', False),
)

FROM_HEADS = architecture.Transform(  # [H, K, D] and [D, H, K]
  lambda x, s: x.transpose(2, 0, 1), lambda y, s: y.transpose(1, 2, 0)
)
ONE_ROW = architecture.Transform(lambda x, s: x[None], lambda y, s: y[0])  # [1, D] and [1, 1, D]


def _body() -> tuple[Row, ...]:
  """Embeddings and layers. If the run had no query stream, its vector is written as zeros."""
  ours, theirs = 'encoder/layers/attention', 'transformer.layer.{i}.rel_attn'
  layer, their_layer = 'encoder/layers', 'transformer.layer.{i}'
  names = {'query': 'q', 'key': 'k', 'value': 'v', 'position': 'r'}
  vectors = {
    'content_query': 'r_w_bias',
    'position_query': 'r_r_bias',
    'segment_query': 'r_s_bias',
    'segment': 'seg_embed',
  }
  return (
    Row(WORD_TABLE, 'transformer.word_embedding.weight'),
    Row(
      _QUERY, 'transformer.mask_emb', ONE_ROW, lambda s: np.zeros((1, 1, s.hidden_size), np.float32)
    ),
    *(Row(f'{ours}/{a}/kernel', f'{theirs}.{b}') for a, b in names.items()),
    Row(f'{ours}/output/kernel', f'{theirs}.o', FROM_HEADS),
    *(Row(f'{ours}/{a}', f'{theirs}.{b}') for a, b in vectors.items()),
    *norm(f'{layer}/attention_norm', f'{theirs}.layer_norm'),
    *dense(f'{layer}/feed_forward/in', f'{their_layer}.ff.layer_1', KERNEL),
    *dense(f'{layer}/feed_forward/out', f'{their_layer}.ff.layer_2', KERNEL),
    *norm(f'{layer}/feed_forward_norm', f'{their_layer}.ff.layer_norm'),
  )


def _post_read(params, fields):
  """Drops a query of zeros: the run had no query stream."""
  has_query = _QUERY in params and params[_QUERY].any()
  return params if has_query else {p: x for p, x in params.items() if p != _QUERY}, fields


def _beams(directory, batch):
  """As verify.logits, of a class that scores ends given starts; beams as in `networks.predict`."""
  torch = trust.torch()
  network, unloaded = verify.reloaded(directory, 'XLNetForQuestionAnswering')
  real = batch['segment_ids'] > 0
  rows, length = real.shape
  network.start_n_top = network.end_n_top = beams = min(task_heads.BEAM, length)
  out = verify.outputs(
    network, batch, segments=3, p_mask=torch.as_tensor(~real, dtype=torch.float32)
  )
  first, arrays = np.argmax(real, axis=1), {}
  for name, shares, places, shape in (
    ('start', out.start_top_log_probs, out.start_top_index, (rows, beams)),
    ('end', out.end_top_log_probs, out.end_top_index, (rows, beams, beams)),
  ):
    # ends are in the order (end, start) there; the probabilities have no logarithm
    shares, places = (np.swapaxes(x.numpy().reshape(shape), 1, -1) for x in (shares, places))
    if name == 'end':  # no end where the start has no probability
      shares = np.where(out.start_top_log_probs.numpy()[:, :, None] > 0, shares, 0)
    places = places - first.reshape(-1, *[1] * (places.ndim - 1))
    sides = [(0, 0)] + [(0, task_heads.BEAM - beams)] * (places.ndim - 1)
    arrays[f'{name}_share'] = np.pad(shares, sides)
    places = np.where(shares > 0, places, -1).astype(np.float32)
    arrays[f'{name}_place'] = np.pad(places, sides, constant_values=-1)
  return {**arrays, 'impossible': out.cls_logits.numpy(), 'unloaded': unloaded}


# How the class computes a row's vector from its tokens; an encoder with a row head here does too.
_SUMMARY = {
  'summary_type': 'last',
  'summary_use_proj': True,
  'summary_activation': 'tanh',
  'summary_proj_to_labels': False,
}
_NO_SUMMARY = (
  'There is no summary of the row and no head for pairs (`objective.pair_weight`): transformers '
  'starts them at random if asked.'
)


def _build(name, *rows, config=(), **rest):
  """A class with XLNet's layers. rows: of its head; rest: fields of Architecture."""
  return architecture.Architecture(
    name=name,
    model_type='xlnet',
    rows=(*_body(), *rows),
    sizes=architecture.plain_sizes,
    keys=keys.joined((*_KEYS, *config)),
    part='two_stream',
    rename_legacy=architecture.prefixed('transformer', 'word_embedding.', 'mask_emb', 'layer.'),
    post_read=_post_read,
    tokens=TOKENS,
    segments=3,
    **rest,
  )


LM = _build(
  'XLNetLMHeadModel',
  Row('mlm_head/bias', 'lm_loss.bias'),
  heads='Without `target_mapping` transformers scores each token by the content stream, which sees '
  'the token itself. To predict a token, give `perm_mask` and `target_mapping`. ' + _NO_SUMMARY,
  pipeline='',
  tied={'lm_loss.weight': 'transformer.word_embedding.weight'},
)
MODEL = _build(
  'XLNetModel',
  heads=f'The network without its language model head. {_NO_SUMMARY}',
  pipeline='',
  reads=False,
)
_LAST = 'It reads the vector of the last token: pad on the left.'
_PASSAGE = 'The passage is the first text.'
_SUMMARISED = task_heads.Form(
  {'pooler': 'sequence_summary.summary', 'classifier': 'logits_proj'},
  ('summary_last_dropout', 'summary_first_dropout'),
  _SUMMARY,
  _LAST,
)
TASKS = task_heads.classes(
  _build,
  'XLNet',
  {
    task_heads.ROW: _SUMMARISED,
    task_heads.SPAN: task_heads.Form({'classifier': 'qa_outputs'}, note=_PASSAGE),
    task_heads.TAG: task_heads.Form(
      {'classifier': 'classifier'}, note='transformers has no dropout before the head.'
    ),
    task_heads.CHOICE: _SUMMARISED,
  },
)
TASKS[task_heads.SPAN] = TASKS[task_heads.SPAN]._replace(name='XLNetForQuestionAnsweringSimple')


def _as_wide(params) -> bool:
  kernel = params.get(f'{task_heads.SPAN}/end_token/kernel')
  return kernel is None or kernel.shape[0] == kernel.shape[1]


CONDITIONAL_QUESTIONS = _build(
  'XLNetForQuestionAnswering',
  *task_heads.CONDITIONAL_ROWS,
  heads='The head scores each token as the start of the answer, and as its end given the start, '
  f'and tells whether there is no answer (`cls_logits`). {_PASSAGE} Give `p_mask`: 1 for tokens '
  'that are neither of the passage nor the last one.',
  pipeline='',
  logits=_beams,
  config=(keys.written('start_n_top', 5), keys.written('end_n_top', 5)),
  holds=_as_wide,
)
