"""Storage: lists of addresses; which errors may pass."""

import errno
import http.client
import types
import urllib.error

import pytest

from bertzoo_jax.common import storage


@pytest.mark.parametrize(
  'text, parts',
  [
    ('a', ['a']),
    ('a,b', ['a', 'b']),
    ('x,y', ['x,y']),
    ('x,y/run@best', ['x,y/run@best']),
    ('hf:x,y/hf', ['hf:x,y/hf']),
    ('hf:x,y/hf,x,y/run@3', ['hf:x,y/hf', 'x,y/run@3']),
    ('a, x,y , b', ['a', 'x,y', 'b']),
    ('hf:O/N@r,x', ['hf:O/N@r', 'x']),
    ('gs://b/x,gs://b/y', ['gs://b/x', 'gs://b/y']),
    ('', ['']),
  ],
)
def test_addresses_are_parted_at_commas_but_for_those_of_a_name_that_is_there(
  tmp_path, monkeypatch, text, parts
):
  monkeypatch.chdir(tmp_path)
  for name in ('x,y/run', 'x,y/hf', 'a', 'b'):
    (tmp_path / name).mkdir(parents=True)
  assert storage.addresses(text) == parts


def raised(*names, **fields):
  """An error of a class with this name and these names of parents, which no test has installed."""
  kind = Exception
  for name in reversed(names):
    kind = type(name, (kind,), {})
  error = kind('retry: temporarily unavailable, timed out, 503; not found, permission denied')
  vars(error).update(fields)
  return error


def wrapping(cause):
  error = Exception('Encountered error while reading array index')
  error.__cause__ = cause
  return error


@pytest.mark.parametrize(
  'error, passes',
  [
    # codes of answers: gcsfs, google.api_core; aiohttp; requests, httpx and the Hugging Face hub
    (raised('HttpError', code=503), True),
    (raised('HttpError', code=404), False),
    (raised('TooManyRequests', code=http.client.TOO_MANY_REQUESTS), True),
    (raised('ClientResponseError', status=502), True),
    (raised('ClientResponseError', status=403), False),
    (raised('HTTPError', response=types.SimpleNamespace(status_code=408)), True),
    (raised('HTTPError', response=types.SimpleNamespace(status_code=401)), False),
    (urllib.error.HTTPError('a', 500, 'b', {}, None), True),
    (urllib.error.HTTPError('a', 410, 'b', {}, None), False),
    (urllib.error.URLError('timed out'), True),
    # classes
    (raised('ConnectTimeout', 'TransportError'), True),
    (raised('ServerDisconnectedError', 'ClientConnectionError'), True),
    (raised('ReadTimeout', 'Timeout', 'RequestException'), True),
    (raised('RefreshError', 'GoogleAuthError'), False),
    (http.client.IncompleteRead(b''), True),
    (ConnectionResetError(), True),
    (BrokenPipeError(), False),
    (TimeoutError(), True),
    (raised('ProtocolError', 'HTTPError'), True),
    (raised('SSLError', 'ConnectionError'), False),
    (raised('ClientConnectorCertificateError', 'ClientConnectionError'), False),
    # a status by its number, as TensorFlow's
    (raised('FailedPreconditionError', error_code=9), True),
    (raised('NotFoundError', error_code=5), False),
    # the cause of an error that says nothing: Orbax's, where an array of a bucket is read
    (wrapping(ValueError('UNAVAILABLE: Error reading "gs://b/x"')), True),
    (wrapping(ValueError('NOT_FOUND: Error reading "gs://b/x"')), False),
    (wrapping(wrapping(ConnectionResetError())), True),
    (wrapping(OSError(errno.ENOSPC, 'full')), False),
    # numbers of the system before all else
    (OSError(errno.EIO, 'not found'), True),
    (OSError(errno.ENOSPC, 'try again'), False),
    (BrokenPipeError(errno.EPIPE, 'try again'), False),
    # words alone decide nothing
    (raised('Error'), False),
    (OSError('Connection reset, try again'), False),
    (ValueError('the store is UNAVAILABLE: try again'), False),
    (ValueError('ABORTED: permission denied'), True),
  ],
)
def test_the_type_and_the_code_of_an_error_say_whether_it_may_pass_and_no_word_does(error, passes):
  assert storage.may_pass(error) == passes
