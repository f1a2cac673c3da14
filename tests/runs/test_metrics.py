import json
import sys
from unittest import mock

import pytest

from bertzoo_jax.runs import metrics


def write(workdir, start, attempt, steps, in_parts):
  record = metrics.Record(workdir, start, attempt, in_parts=in_parts)
  for step in steps:
    record.write({'step': step, 'loss': 10 * attempt + step, 'bad': float('nan')})
  record.close()


@pytest.mark.parametrize('in_parts', [False, True])
def test_a_record_goes_on_over_restarts_without_a_doubled_or_missing_step(tmp_path, in_parts):
  write(tmp_path, 0, 1, range(1, 8), in_parts)
  write(tmp_path, 5, 2, [], in_parts)  # killed at 7, resumed from 5, died before its first row
  assert [r['step'] for r in metrics.read(tmp_path)] == [1, 2, 3, 4, 5]
  write(tmp_path, 5, 3, range(6, 9), in_parts)
  write(tmp_path, 6, 4, range(7, 11), in_parts)
  rows = metrics.read(tmp_path)
  losses = [*((s, 10 + s) for s in range(1, 6)), (6, 36), *((s, 40 + s) for s in range(7, 11))]
  assert [(r['step'], r['loss']) for r in rows] == losses and all(r['bad'] is None for r in rows)
  assert (tmp_path / 'metrics.jsonl').exists() != in_parts


def test_a_line_cut_short_by_a_kill_is_forgotten(tmp_path):
  write(tmp_path, 0, 1, range(1, 4), False)
  with open(tmp_path / metrics.FILE, 'a') as f:
    f.write('{"step": 4, "lo')
  assert [r['step'] for r in metrics.read(tmp_path)] == [1, 2, 3]
  write(tmp_path, 3, 2, [4], False)
  lines = (tmp_path / metrics.FILE).read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [1, 2, 3, 4]


def test_a_tracker_that_fails_or_is_missing_stops_no_other(tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  trackers = metrics.Trackers(tmp_path, 0, {}, tensorboard=True, wandb='project')
  trackers._writers['broken'] = (lambda step, values: 1 // 0, lambda: None)
  for step in (1, 2):
    trackers.write({'step': step, 'loss': 2.0, 'bad': None})
  trackers.close()
  output = capsys.readouterr().out
  assert 'W&B is off' in output and output.count('modulo by zero') == 1
  assert any(p.stat().st_size for p in (tmp_path / 'tensorboard').iterdir())


def test_wandb_goes_on_with_the_same_run_after_a_restart(tmp_path, monkeypatch):
  seen, ids, run = [], iter(['first', 'second']), mock.Mock()
  wandb = mock.Mock(init=lambda **how: seen.append(how) or run)
  wandb.util.generate_id = lambda: next(ids)
  monkeypatch.setitem(sys.modules, 'wandb', wandb)
  for _ in range(2):
    metrics.Trackers(tmp_path, 0, {'a': 1}, tensorboard=False, wandb='zoo').close()
  assert [(x['id'], x['resume'], x['project']) for x in seen] == [('first', 'allow', 'zoo')] * 2


def test_curves_break_where_a_phase_ends_since_losses_of_two_do_not_compare():
  rows = [
    {'step': 1, 'phase': 0, 'loss': 5.0, 'held_out_loss': 4.0},
    {'step': 2, 'phase': 0, 'loss': 4.0},
    {'step': 3, 'phase': 1, 'loss': 9.0, 'held_out_loss': 8.0},
    {'step': 4, 'phase': 1, 'loss': None},
  ]
  assert metrics.borders(rows) == [(2, 1)]
  assert metrics.curves(rows, 'loss') == [[(1, 5.0), (2, 4.0)], [(3, 9.0)]]
  assert metrics.curves(rows, 'held_out_loss') == [[(1, 4.0)], [(3, 8.0)]]
  old = [{'step': 1, 'loss': 5.0}, {'step': 2, 'phase': 0, 'loss': 4.0}]
  assert metrics.borders(old) == []


@pytest.mark.parametrize('own', ['mlm_loss', 'order_loss'])
def test_the_curve_of_masked_tokens_is_drawn_beside_the_entropy(tmp_path, monkeypatch, own):
  axes = pytest.importorskip('matplotlib.axes', reason='without matplotlib no curve is drawn')
  record = metrics.Record(tmp_path, 0, 1)
  for step in range(1, 5):
    held_out = {f'held_out_{own}': 3.0, 'held_out_loss': 3.5} if step == 4 else {}
    losses = {'loss': 5.0 - step, own: 4.0 - step, **held_out}
    record.write({'step': step, 'phase': step // 3, **losses})
  record.close()
  levels, draw = [], axes.Axes.axhline
  drawn = lambda self, y, **how: levels.append(y) or draw(self, y, **how)
  monkeypatch.setattr(axes.Axes, 'axhline', drawn)
  assert metrics.plot(tmp_path, entropy=3.3)
  assert levels == [3.3] * (own == 'mlm_loss')
  assert (tmp_path / 'loss.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.parametrize('in_parts', [False, True])
def test_closing_a_record_on_a_full_disk_says_so(tmp_path, capsys, monkeypatch, in_parts):
  record = metrics.Record(tmp_path, 0, 1, in_parts=in_parts)
  full = mock.Mock(side_effect=OSError(28, 'No space left on device'))
  monkeypatch.setattr(metrics.storage, 'write_text', full)
  if not in_parts:
    record._file.close()
    record._file = open('/dev/full', 'wb')
    with pytest.raises(OSError):
      record.write({'step': 1})
  record.close()
  assert 'No space' in capsys.readouterr().out


@pytest.mark.parametrize('in_parts', [False, True])
@pytest.mark.parametrize('damage', [b'\xff', b'\0' * 40, b'"', b'[' * 100000])
def test_a_line_that_cannot_be_read_is_left_out_and_kept_aside(tmp_path, capsys, in_parts, damage):
  write(tmp_path, 0, 1, range(1, 6), in_parts)
  file = next(tmp_path.glob('metrics/*')) if in_parts else tmp_path / metrics.FILE
  lines = file.read_bytes().splitlines(keepends=True)
  middle = 3 if in_parts else 2  # the row of step 3
  lines[middle] = lines[middle][:5] + damage + lines[middle][6:]
  file.write_bytes(b''.join(lines))
  write(tmp_path, 5, 2, [6], in_parts)
  assert [r['step'] for r in metrics.read(tmp_path)] == [1, 2, 4, 5, 6]
  output = capsys.readouterr().out
  assert output.count('\n') == 1 and '1 line(s) of the metrics' in output
  if not in_parts:
    assert (tmp_path / 'metrics.jsonl.damaged').read_bytes() == b''.join(lines)


def test_a_part_without_its_first_line_takes_only_the_rows_that_it_has(tmp_path, capsys):
  write(tmp_path, 0, 1, range(1, 6), True)
  write(tmp_path, 3, 2, range(4, 8), True)
  part = tmp_path / 'metrics/attempt-0002.jsonl'
  part.write_bytes(b'\xff' + part.read_bytes())
  (tmp_path / 'metrics/attempt-0003.jsonl').write_bytes(b'')
  rows = [(r['step'], r['loss']) for r in metrics.read(tmp_path)]
  assert rows == [(s, s + 10 * (1 + (s > 3))) for s in range(1, 8)]


def test_a_record_that_moves_to_a_bucket_and_back_stays_one(tmp_path):
  for attempt, (first, last) in enumerate([(0, 5), (4, 8), (7, 10), (9, 12), (11, 13)], 1):
    write(tmp_path, first, attempt, range(first + 1, last + 1), in_parts=attempt % 2 == 0)
  attempts = [(r['loss'] - r['step']) // 10 for r in metrics.read(tmp_path)]
  assert attempts == [*4 * [1], *3 * [2], *2 * [3], *2 * [4], *2 * [5]]


def test_each_point_stands_at_its_step_and_height_over_the_dotted_line():
  points = [(0, 8.0), (50, 5.0), (100, 4.0)]
  drawn = metrics.curve_in_text(points, 6.0, 'entropy', width=11, height=5)
  expected = ('  8.00 |*|       ||  6.00 |........... entropy|       |     *|  4.00 |          *|'
              '       +-----------|        0       100')  # fmt: skip
  assert drawn.replace('\n', '|') == expected
  for points in ([(0, 5.0)], [(0, 5.0), (9, 5.0)]):  # a single point, a flat curve
    assert metrics.curve_in_text(points, 5.0, 'entropy').count('*') == len(points)
