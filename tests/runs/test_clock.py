"""A library in front of the C library sets the clock back, as soon as a file is there."""

import os
import shutil
import signal
import subprocess

import numpy as np
import processes
import pytest

from bertzoo_jax.runs import metrics

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) static typeof(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

static time_t hour(void) { return access(getenv("CLOCK_IS_SET_BACK_BY"), F_OK) ? 0 : 3600; }

int clock_gettime(clockid_t clock, struct timespec *t) {
  REAL(clock_gettime);
  int code = real(clock, t);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) t->tv_sec -= hour();
  return code;
}

/* The kernel's clock goes on as before: a time of ours is an hour later there. */
static struct timespec kernels(const struct timespec *t) {
  return (struct timespec){t->tv_sec + hour(), t->tv_nsec};
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
  REAL(pthread_cond_clockwait);
  struct timespec later = kernels(t);
  return real(c, m, CLOCK_REALTIME, &later);
}

long syscall(long number, ...) {
  REAL(syscall);
  struct timespec later;
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
    later = kernels((struct timespec *)a[3]);
    a[3] = (long)&later;
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""


@pytest.fixture(scope='module')
def clock(tmp_path_factory):
  """The environment of a process whose clock can be set back, and the file that does it."""
  compiler = shutil.which('cc') or shutil.which('gcc')
  if compiler is None:
    pytest.skip('NOT TESTED, no C compiler (cc or gcc): a wall clock that is set back')
  folder = tmp_path_factory.mktemp('clock')
  shim, back = folder / 'shim.so', folder / 'back'
  how = [compiler, '-shared', '-fPIC', '-O1', '-x', 'c', '-', '-o', shim, '-ldl']
  subprocess.run(how, input=SHIM.encode(), check=True)
  environment = {'LD_PRELOAD': str(shim), 'CLOCK_IS_SET_BACK_BY': str(back)}
  line = f'date +%s; touch {back}; date +%s; rm {back}'
  env = environment | {'PATH': '/usr/bin:/bin'}
  output = subprocess.run(['sh', '-c', line], env=env, capture_output=True, text=True).stdout
  before, after = map(int, output.split())
  assert -3600 <= after - before < -3590
  return environment, back


def test_a_lone_run_whose_clock_is_set_back_an_hour_goes_on_to_its_end_bitwise_equal(
  world, alone, clock, tmp_path
):
  environment, back = clock
  back.unlink(missing_ok=True)
  with processes.one(world, tmp_path / 'run', step_seconds=0.1, **environment) as run:
    processes.wait_for_step(tmp_path / 'run', 2, [run])
    back.touch()
    code = run.end()
  assert code == 0 and 'done: 60 steps' in run.said, run.said
  processes.assert_same_run(tmp_path / 'run', alone)


@pytest.mark.parametrize('whose', ['of the first host', 'of the second host', 'of both'])
def test_two_hosts_of_which_a_clock_is_set_back_go_on_or_say_why_not_and_resume(
  world, alone, clock, tmp_path, whose
):
  environment, back = clock
  back.unlink(missing_ok=True)
  of = tuple(environment if whose in (name, 'of both') else {} for name in HOSTS)
  run, often = tmp_path / 'run', '--config.run.save_minutes=0.05'
  with processes.two(world, run, often, of=of, step_seconds=0.1) as both:
    processes.wait_for_step(run, 5, both)
    back.touch()
    codes = [h.end() for h in both]
  for i, host in enumerate(both):
    if codes[i]:
      assert codes[i] in (os.EX_TEMPFAIL, -signal.SIGABRT), host.said
      last = host.said.strip().splitlines()[-1]
      assert last.startswith(f'host {i} of 2 ended without saving'), host.said
  if any(codes):
    with processes.two(world, run, often) as both:
      assert [h.end() for h in both] == [0, 0], [h.said for h in both]
    assert 'resuming from the checkpoint of step' in both[0].said
  ours, theirs = ([row['loss'] for row in metrics.read(w)] for w in (run, alone))
  assert len(ours) == processes.STEPS
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)


HOSTS = ('of the first host', 'of the second host')
