"""Signals on several hosts."""

import itertools
import signal

import pytest

from bertzoo_jax.runs import preemption


def test_a_second_ctrl_c_ends_one_of_several_hosts_and_one_alone_tells_the_others(
  monkeypatch, capfd
):
  monkeypatch.setattr(preemption.jax.distributed, 'is_initialized', lambda: True)
  monkeypatch.setattr(
    preemption.multihost_utils, 'reached_preemption_sync_point', lambda number: number == 2
  )
  monkeypatch.setattr(preemption, '_count', itertools.count(1))
  told = []
  # in the place of jax's, which tells the other hosts
  before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
  try:
    with preemption.Preemption().listening() as interrupt:
      signal.raise_signal(signal.SIGINT)
      assert told == [signal.SIGTERM] and interrupt.name is None and not interrupt.reached()
      assert capfd.readouterr().err.startswith('SIGINT: this run stops after the current step and')
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
      assert interrupt.reached() and interrupt.name == 'preemption'
      assert capfd.readouterr().err == ''
  finally:
    signal.signal(signal.SIGTERM, before)
