import re

from bertzoo_jax.common import progress


def test_lines_say_step_percent_loss_speed_and_time_left(capsys):
  bar = progress.Progress(1000, 0, show=True, terminal=False)
  bar.finished(1, 3.5)
  bar._began = (bar._began[0] - 60, 1)
  bar.row({'step': 501, 'loss': 2.5, 'tokens_per_second': 12345.6})
  words = 'step 501/1,000 50.1% · loss 2.5000 · 12,346 tokens/s · '
  assert capsys.readouterr().out.startswith(words)
  bar.finished(502, 2.25)
  assert not capsys.readouterr().out, 'a line was just printed'
  bar._printed -= 31
  bar.finished(503, 2.25)
  bar.finished(504, 2.25)
  line = r'step 503/1,000 50.3% · loss 2.2500 · 0:\d\d left\n'
  assert re.fullmatch(line, capsys.readouterr().out)
  resumed = progress.Progress(1000, 500, show=True, terminal=False)
  resumed.finished(501, 2.0)
  assert capsys.readouterr().out == 'step 501/1,000 50.1% · loss 2.0000 · ? left\n'
  progress.Progress(10, 0, show=False).row({'step': 1})
  assert capsys.readouterr().out == ''
  assert [progress.clock(s) for s in (59, 3723, 90000)] == ['0:59', '1:02:03', '1d 01:00']


def test_a_line_shows_the_losses_and_metrics_that_an_objective_has(capsys):
  bar = progress.Progress(10, 0, show=True, terminal=False, entropy=6.2)
  held = lambda values: {f'held_out_{k}': x for k, x in values.items()}
  line_of = lambda step, **row: (bar.row({'step': step, **row}), capsys.readouterr().out)[1]
  losses = {'loss': 6.5, 'mlm_loss': 5.8, 'held_out_loss': 6.6, 'held_out_mlm_loss': 5.9}
  words = ' · masked-token loss 5.8000 (unigram entropy 6.2000) · total loss 6.5000 · held out: '
  words += 'masked-token loss 5.9000 (unigram entropy 6.2000), total loss 6.6000 · '
  assert words in line_of(5, **losses) and 'total' not in line_of(6, loss=5.8, mlm_loss=5.8)
  rtd = {'rtd_accuracy': 0.9, 'rtd_base_rate': 0.85, 'rtd_auc': 0.71}
  line = line_of(7, loss=20.0, mlm_loss=5.8, **rtd, **held({'loss': 20.0, **rtd}))
  words = 'replaced tokens: accuracy 90.00 % (calling all original 85.00 %), AUC 0.710'
  assert line.count(words) == 2
  own = {'loss': 0.5, 'order_accuracy': 0.75, 'order_loss': 0.500001, 'order_moved': 0.125}
  line = line_of(5, grad_norm=1.0, lr=1e-4, **own, phase=0, epoch=0.5, **held(own))
  words = 'loss 0.5000{0}order_accuracy 0.7500{0}order_moved 0.1250 · '
  assert f'{words.format(" · ")}held out: {words.format(", ")}' in line
  line = line_of(5, loss=0.5, **held(own), **{'held_out_order_loss/laws': 0.25})
  assert ', laws order_loss 0.2500 · ' in line


def test_the_time_left_is_counted_from_the_step_of_the_line_by_the_pace_of_what_is_computed(capsys):
  for dispatched, finished, row, left in (
    (201, 201, 101, '7:29'),  # a row is shown one interval after its step
    (1000, 201, 101, '7:29'),  # a short run: all is dispatched
    (1000, 1000, 900, '0:10'),  # all is computed
    (1000, 1, 101, '14:59'),  # what a row says is computed
    (1000, 1, 1, '?'),
    (1000, 1000, 1000, '0:00'),
  ):
    bar = progress.Progress(1000, 0, show=True, terminal=False)
    bar.finished(1, 3.5)
    bar._began = (bar._began[0] - 100, 1)
    bar.step(dispatched)
    bar.finished(finished, 3.5)
    capsys.readouterr()
    bar.row({'step': row, 'loss': 2.5})
    assert f' {left} left' in capsys.readouterr().out


def test_a_bar_on_a_terminal_takes_the_same_calls(capsys):
  bar = progress.Progress(10, 0, show=True, terminal=True)
  bar.say('compiling')
  bar.finished(1, 3.5)
  bar.step(1)
  bar.row({'step': 1, 'loss': float('nan'), 'held_out_loss': 2.0})
  bar.close()
  assert 'compiling' in capsys.readouterr().out
