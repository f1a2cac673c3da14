"""Prints rows in colour: masked, replaced and kept tokens, specials, segments, spans, orders."""

import numpy as np
import rich.text

_STYLES = {
  'masked': ('[word]', 'bold red', 'the network sees the mask token and predicts the word'),
  'replaced': (
    '{word→seen}',
    'bold yellow',
    'it sees another token (random, or of a similar word) and predicts the word',
  ),
  'kept': ('<word>', 'bold green', 'it sees the word and predicts it'),
  'ordered': ('<word 3>', 'bold green', 'it predicts the word, as the third of its block'),
  'special': ('[SEP]', 'dim', 'special token'),
  'first': ('word', '', 'text (of the first segment)'),
  'second': ('word', 'cyan', 'text of the second segment'),
  'border': ('word', 'underline', 'text beside a span, from which the span is predicted'),
}
_LABELS = {
  'random': {0: 'the second segment follows the first (0)', 1: 'the second segment is random (1)'},
  'swapped': {0: 'the segments are in order (0)', 1: 'the segments are swapped (1)'},
}


def legend(features):
  """The legend of the marks that batches with these features can have."""
  hidden = {'ordered'} if 'order' not in features else {'masked', 'replaced', 'kept'}
  if 'span_right' not in features:
    hidden.add('border')
  text = rich.text.Text()
  for kind, (example, style, meaning) in _STYLES.items():
    if kind not in hidden:
      text.append(example, style).append(f' {meaning}\n')
  return text


def heading(step, row, batch, fields):
  used = int((batch['segment_ids'][row] > 0).sum())
  predicted = int(batch['masked_weights'][row].sum())
  parts = [f'step {step}, row {row}: {used} tokens, {predicted} to predict']
  if (packed := int(batch['segment_ids'][row].max())) > 1:
    parts.append(f'{packed} packed segments')
  if 'pair_labels' in batch:
    swapped = 'pairs' in fields.format and fields.format.pairs == 'sop'
    parts.append(_LABELS['swapped' if swapped else 'random'][int(batch['pair_labels'][row])])
  if 'direction' in batch:
    turned = 'read from right to left (printed from left to right)'
    parts.append(turned if batch['direction'][row] else 'read from left to right')
  if 'resets' in batch and batch['resets'][row]:
    parts.append('begins without memory')
  return rich.text.Text(', '.join(parts), 'bold underline')


def row(batch, number, tokenizer, special, fields):
  """One row as coloured text; predictions one by one, the tokens between them decoded in runs."""
  block = min(fields.masking.block, fields.length) if 'block' in fields.masking else fields.length
  batch = {name: array[number] for name, array in batch.items()}
  if 'direction' in batch and batch['direction']:
    batch = _mirrored(batch)
  kinds, targets, places = _kinds(batch, special, block)
  ids, packs = batch['input_ids'], batch['segment_ids']
  text, place = rich.text.Text(), 0
  group = lambda place: (kinds[place], packs[place])
  while place < len(ids) and packs[place]:
    kind, stop = kinds[place], place + 1
    while kind in ('first', 'second') and stop < len(ids) and group(stop) == group(place):
      stop += 1
    if place and (tokenizer.word_starts[targets.get(place, ids[place])] or kind == 'special'):
      text.append(' ')
    if place and packs[place] != packs[place - 1]:
      text.append('│ ', 'bold magenta')
    seen = _decode(tokenizer, ids[place:stop])
    word = _decode(tokenizer, [targets[place]]) if place in targets else seen
    written = {
      'masked': f'[{word}]',
      'replaced': f'{{{word}→{seen}}}',
      'kept': f'<{word}>',
      'ordered': f'<{word} {places.get(place)}>',
    }
    text.append(written.get(kind, seen), _STYLES[kind][1])
    place = stop
  return text


def _kinds(batch, special, block):
  """(the kind of each token of a row, a key of _STYLES; {position: token to predict};
  {position: its number in the block, from 1}).
  """
  ids, segments = batch['input_ids'], batch['token_type_ids']
  frame = {special['cls'], special['sep'], special['pad']}
  kinds = [
    'special' if i in frame else 'second' if s else 'first'
    for i, s in zip(ids.tolist(), segments.tolist())
  ]
  slots = np.flatnonzero(batch['masked_weights'])
  targets = dict(zip(*(batch[f'masked_{x}'][slots].tolist() for x in ('positions', 'targets'))))
  if 'span_right' in batch:
    for name in ('span_left', 'span_right'):
      for position in batch[name][batch['span_right'] > 0].tolist():
        kinds[position] = 'border'
  places = _places(batch['order'], targets, block) if 'order' in batch else {}
  for position, target in targets.items():
    kinds[position] = 'masked' if ids[position] == special['mask'] else 'replaced'
    if ids[position] == target:
      kinds[position] = 'ordered' if 'order' in batch else 'kept'
  return kinds, targets, places


def _places(order, positions, block):
  """{position: its number among the predictions of its block, from 1}."""
  in_order = sorted(positions, key=lambda p: order[p])
  out, before = {}, {}
  for position in in_order:
    number = int(order[position]) // (block + 1)
    out[position] = before[number] = before.get(number, 0) + 1
  return out


def _mirrored(batch):
  """A row that is read from right to left, in the order of the text."""
  used = int((batch['segment_ids'] > 0).sum())
  turned = dict(batch)
  for name in {'input_ids', 'token_type_ids', 'segment_ids', 'order'} & batch.keys():
    turned[name] = np.concatenate([batch[name][:used][::-1], batch[name][used:]])
  for name in {'masked_positions', 'span_left', 'span_right'} & batch.keys():
    turned[name] = used - 1 - batch[name]
  return turned


def _decode(tokenizer, ids):
  return tokenizer.decode(ids).strip().removeprefix('##')
