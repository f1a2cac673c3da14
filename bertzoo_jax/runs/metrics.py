"""The metrics of a run: one JSON object per logged step, continuous over restarts, each step once.

A local workdir has one `metrics.jsonl`. Objects of gs:// cannot be appended to, so there each
attempt writes its own `metrics/attempt-NNNN.jsonl`; `read` gives the same rows for both.
TensorBoard and W&B are copies: they never stop a run.
"""

import io
import json
import math
import sys
import time

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust

FILE = 'metrics.jsonl'
FOLDER = 'metrics'


class Record:
  """Writes rows {'step': s, …}. A resume removes rows of later steps."""

  def __init__(self, workdir, start_step: int, attempt: int, in_parts: bool | None = None):
    """start_step: resumed from. attempt: from 1. in_parts: as on gs://; None to find out."""
    workdir = storage.path(workdir)
    self._in_parts = storage.is_remote(workdir) if in_parts is None else in_parts
    rows, unreadable = _read(workdir)
    if unreadable:
      print(
        f'WARNING: {unreadable} line(s) of the metrics of {workdir} cannot be read and are left '
        'out.'
      )
    if self._in_parts:
      (workdir / FOLDER).mkdir(parents=True, exist_ok=True)
      self._path = workdir / FOLDER / f'attempt-{attempt:04d}.jsonl'
      self._lines, self._written = [json.dumps({'attempt': attempt, 'start_step': start_step})], 0.0
      self.flush(force=True)
    else:
      self._path = workdir / FILE
      kept = ''.join(_line(row) + '\n' for row in rows if row['step'] <= start_step)
      _rewrite(workdir, kept.encode(), attempt, bool(unreadable))
      self._file = storage.appending(self._path)
      # False on disks that number a file anew whenever they are asked
      self._stays = storage.is_at(self._file.fileno(), self._path)

  def write(self, row: dict) -> None:
    """Adds a row. NaN and Inf become null, so that each line is JSON."""
    if self._in_parts:
      self._lines.append(_line(row))
      self.flush()
    else:
      self._file.write(_line(row).encode() + b'\n')
      self._file.flush()

  def flush(self, force: bool = False) -> None:
    """On gs:// the whole part is written again, so not more than twice a minute."""
    if self._in_parts and (force or time.monotonic() - self._written > 30):
      storage.write_text(self._path, '\n'.join(self._lines) + '\n')
      self._written = time.monotonic()

  def sync(self) -> None:
    """Returns when the rows so far are on the disk or in the bucket. A run that resumes from a
    later checkpoint does not write them again. Raises Stopped if the file is gone.
    """
    if self._in_parts:
      self.flush(force=True)
      return
    storage.sync(self._file)
    if self._stays and not storage.is_at(self._file.fileno(), self._path):
      raise errors.Stopped(
        f'{self._path} was deleted, moved or replaced while this run wrote it: the run ends before '
        'its next save. The checkpoints are kept. Restore the file and run the same command again.'
      )

  def close(self) -> None:
    """Writes the remaining rows; a failure is printed, not raised, since a run is ending anyway."""
    try:
      self.flush(force=True)
      if not self._in_parts:
        self._file.close()
    except Exception as e:  # whatever the storage raises
      print(f'WARNING: the last rows of {self._path} could not be written: {errors.named(e)}')


def read(workdir) -> list[dict]:
  """All rows of a run that can be read, in order of steps, each step once."""
  return _read(storage.path(workdir))[0]


def plot(workdir, entropy: float | None = None) -> bool:
  """Draws WORKDIR/loss.png: training and held-out loss over steps, the borders of phases, where
  curves break, and for losses of masked tokens the unigram entropy. False without matplotlib.
  """
  try:
    figures = trust.from_root('matplotlib.figure')  # there may be a matplotlibrc
  except ImportError:
    return False
  rows = read(workdir)
  figure = figures.Figure(figsize=(8, 4.5))  # pyplot's are one set for all threads
  axes = figure.subplots()
  for name, style in (
    ('mlm_loss', '-'),
    ('loss', ':'),
    ('held_out_mlm_loss', 'o-'),
    ('held_out_loss', 'o:'),
  ):
    twin = name.replace('mlm_loss', 'loss')
    if twin != name and all(row.get(twin) == row.get(name) for row in rows):
      continue
    color = None
    for points in curves(rows, name):
      label = name if color is None else None
      [line] = axes.plot(*zip(*points), style, label=label, markersize=4, color=color)
      color = line.get_color()
  for step, phase in borders(rows):
    axes.axvline(step, color='grey', linewidth=1, linestyle=':')
    axes.annotate(f' phase {phase}', (step, 1), xycoords=('data', 'axes fraction'), va='top')
  if entropy is not None and any('mlm_loss' in row for row in rows):
    axes.axhline(entropy, color='grey', linewidth=1, linestyle='--', label='unigram entropy')
  axes.set_xlabel('step')
  axes.set_ylabel('nats')
  if axes.get_legend_handles_labels()[0]:
    axes.legend()
  axes.grid(alpha=0.3)
  drawn = io.BytesIO()
  figure.savefig(drawn, format='png', dpi=120, bbox_inches='tight')
  storage.write_bytes(storage.path(workdir) / 'loss.png', drawn.getvalue())
  return True


def borders(rows: list[dict]) -> list[tuple[int, int]]:
  """(last step before it, number) of each phase that begins within the rows."""
  return [
    (a['step'], b['phase'])
    for a, b in zip(rows, rows[1:])
    if None not in (a.get('phase'), b.get('phase')) and a['phase'] != b['phase']
  ]


def curves(rows: list[dict], name: str) -> list[list[tuple[int, float]]]:
  """The (step, value) of a metric, in one list per phase: losses of phases with other lengths,
  maskings or objectives do not compare, so nothing connects them.
  """
  by_phase = {}
  for row in rows:
    if _is_number(row.get(name)):
      by_phase.setdefault(row.get('phase'), []).append((row['step'], row[name]))
  return list(by_phase.values())


def curve_in_text(
  points: list[tuple[float, float]], level: float, name: str, width: int = 60, height: int = 10
) -> str:
  """Points (x, y) as stars over a dotted line at `level`, in width × height characters of
  a terminal."""
  low, high = (pick(level, *(y for _, y in points)) for pick in (min, max))
  last = max(x for x, _ in points)
  share = lambda value, span: value / span if span else 0.0
  row_of = lambda y: round(share(high - y, high - low) * (height - 1))
  field = [[' '] * width for _ in range(height)]
  field[row_of(level)] = ['.'] * width
  for x, y in points:
    field[row_of(y)][round(share(x, last) * (width - 1))] = '*'
  labels = {row_of(y): f'{y:.2f}' for y in (level, high, low)}
  notes = {row_of(level): f' {name}'}
  lines = [
    f'{labels.get(row, ""):>6} |{"".join(cells)}{notes.get(row, "")}'.rstrip()
    for row, cells in enumerate(field)
  ]
  end = f'{last:,.0f}'
  return '\n'.join([*lines, f'{"":>6} +{"-" * width}', f'{"":>8}0{end:>{width - 1}}'])


class Trackers:
  """TensorBoard and W&B as one writer; one that fails is reported once and left out."""

  def __init__(self, workdir, start_step: int, config: dict, *, tensorboard: bool, wandb: str):
    """config: flat, for W&B. tensorboard: write WORKDIR/tensorboard. wandb: project, or ''."""
    self._writers = {}
    workdir = storage.path(workdir)
    if tensorboard:
      self._start('TensorBoard', 'tpu', lambda: _tensorboard(workdir, start_step))
    if wandb:
      self._start('W&B', 'wandb', lambda: _wandb(workdir, wandb, config))

  def write(self, row: dict) -> None:
    values = {
      k: v
      for k, v in row.items()
      if k != 'step' and isinstance(v, (int, float)) and math.isfinite(v)
    }
    self._each(lambda writer: writer[0](row['step'], values))

  def close(self) -> None:
    self._each(lambda writer: writer[1]())

  def _start(self, name, extra, build):
    try:
      self._writers[name] = build()
    except Exception as e:  # noqa: BLE001  a tracker's failure, of whatever kind, is not the run's
      remedy = f': {errors.install(extra)}' if isinstance(e, ImportError) else ''
      print(f'{name} is off: {errors.named(e)}{remedy}')

  def _each(self, use):
    for name, writer in list(self._writers.items()):
      try:
        use(writer)
      except Exception as e:  # noqa: BLE001
        print(f'{name} failed and is off from here: {errors.named(e)}')
        del self._writers[name]


class Nothing:
  """The Record and Trackers of processes that write nothing."""

  def write(self, row: dict) -> None:
    del row

  def sync(self) -> None:
    pass

  def close(self) -> None:
    pass


def _tensorboard(workdir, start_step):
  sys.modules.setdefault('torch', None)  # it imports torch if it can, and does not need it
  try:
    import tensorboardX
  finally:
    if sys.modules['torch'] is None:
      del sys.modules['torch']

  if storage.is_remote(workdir):  # else its writer stays half built, and prints a stack at exit
    try:
      import google.cloud.storage  # noqa: F401
    except ImportError as e:
      raise ImportError('gs:// needs google-cloud-storage, which is not installed') from e

  writer = tensorboardX.SummaryWriter(
    str(workdir / 'tensorboard'), purge_step=start_step + 1, flush_secs=30
  )

  def write(step, values):
    for name, value in values.items():
      writer.add_scalar(name, value, step)

  return write, writer.close


def _wandb(workdir, project, config):
  import wandb

  kept = workdir / 'wandb_id'  # a restart continues the same run
  if not kept.exists():
    storage.write_text(kept, wandb.util.generate_id())
  run = wandb.init(
    project=project,
    id=kept.read_text().strip(),
    resume='allow',
    config=config,
    name=workdir.name,
    dir=None if storage.is_remote(workdir) else str(workdir),
  )
  return lambda step, values: run.log(values, step=step), run.finish


def _is_number(x) -> bool:
  """Whether a value of a file can be drawn: it fits float32, and is not NaN."""
  return isinstance(x, (int, float)) and abs(x) < 1e38


def _line(row):
  return json.dumps(
    {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in row.items()}
  )


def _rewrite(workdir, kept: bytes, attempt, damaged):
  """Makes `kept` the file of a local workdir. It is written only if it differs. A damaged one is
  copied first. Parts of a bucket that the workdir came from are in `kept` and are set aside.
  """
  path, parts = workdir / FILE, workdir / FOLDER
  before = path.read_bytes() if path.exists() else b''
  if damaged:
    storage.write_bytes(workdir / f'{FILE}.damaged', before)
  if before != kept:
    storage.write_bytes(path, kept)
  if parts.exists():
    parts.rename(workdir / f'{FOLDER}.before-attempt-{attempt:04d}')


def _read(workdir) -> tuple[list[dict], int]:
  """(rows of a run, lines that cannot be read)."""
  records, unreadable = _lines(workdir / FILE)
  rows = [row for row in records if 'step' in row]
  folder = workdir / FOLDER
  for part in sorted(folder.glob('attempt-*.jsonl')) if folder.exists() else ():
    records, more = _lines(part)
    part_rows = [row for row in records if 'step' in row]
    # a part whose first line cannot be read begins with its first row
    begin = part_rows[0]['step'] - 1 if part_rows else math.inf
    start = next((row['start_step'] for row in records if 'step' not in row), begin)
    rows, unreadable = [row for row in rows if row['step'] <= start] + part_rows, unreadable + more
  return list({row['step']: row for row in rows}.values()), unreadable


def _lines(path):
  """(rows and first lines of parts, lines that cannot be read) of a file."""
  records, unreadable = storage.read_json_lines(path)
  sound = [
    row
    for row in records
    if type(row.get('step', row.get('start_step'))) is int
    and all(x is None or isinstance(x, str) or _is_number(x) for x in row.values())
  ]
  return sound, unreadable + len(records) - len(sound)
