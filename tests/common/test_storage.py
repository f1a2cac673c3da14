import errno
import http.client
import types
import urllib.error

from bertzoo_jax.common import storage


def test_addresses_are_parted_at_commas_but_for_those_of_a_name_that_is_there(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for name in ('x,y/run', 'x,y/hf', 'a', 'b'):
    (tmp_path / name).mkdir(parents=True)
  for text, *parts in (
    ('a', 'a'),
    ('a,b', 'a', 'b'),
    ('x,y', 'x,y'),
    ('x,y/run@best', 'x,y/run@best'),
    ('hf:x,y/hf', 'hf:x,y/hf'),
    ('hf:x,y/hf,x,y/run@3', 'hf:x,y/hf', 'x,y/run@3'),
    ('a, x,y , b', 'a', 'x,y', 'b'),
    ('hf:O/N@r,x', 'hf:O/N@r', 'x'),
    ('gs://b/x,gs://b/y', 'gs://b/x', 'gs://b/y'),
    ('', ''),
  ):
    assert storage.addresses(text) == parts


def raised(*names, **fields):
  """An error of a class with this name and these names of parents, which no test has installed."""
  kind = Exception
  for name in reversed(names):
    kind = type(name, (kind,), {})
  error = kind('retry: temporarily unavailable, timed out, 503; not found, permission denied')
  vars(error).update(fields)
  return error


def answered(code):
  return types.SimpleNamespace(status_code=code)


def coded(number, message=''):
  """An error as TensorFlow's are: a number of gRPC."""
  return type('OpError', (Exception,), {'error_code': number})(message)


def wrapping(cause):
  error = Exception('Encountered error while reading array index')
  error.__cause__ = cause
  return error


# What tensorstore says of an answer to a write that it cannot parse.
UNPARSED = (
  'Error writing "a/.zarray" in OCDBT database at gs://bucket/run/: Error parsing object member '
  r"[tensorstore_spec='{\"kvstore\":{\"bucket\":\"bucket\",\"driver\":\"gcs\"}}']"
)
TENSORSTORE = 'Error writing gs://b/c/_sharding: Failed to parse object metadata: {'
CORRUPT = 'File contents are inconsistent for file: gs://b/not found'
# codes of answers: gcsfs, google.api_core; aiohttp; requests, httpx and the Hugging Face hub
PASS = [raised('HttpError', code=503), raised('TooManyRequests', code=429)]
PASS += [raised('ClientResponseError', status=502), raised('HTTPError', response=answered(408))]
PASS += [urllib.error.HTTPError('a', 500, 'b', {}, None), urllib.error.URLError('timed out')]
STAY = [raised('HttpError', code=404), raised('ClientResponseError', status=403)]
STAY += [raised('HTTPError', response=answered(401))]
STAY += [urllib.error.HTTPError('a', 410, 'b', {}, None)]
# classes
PASS += [raised('ConnectTimeout', 'TransportError'), raised('ProtocolError', 'HTTPError')]
PASS += [raised('ServerDisconnectedError', 'ClientConnectionError'), TimeoutError()]
PASS += [raised('ReadTimeout', 'Timeout', 'RequestException'), ConnectionResetError()]
PASS += [http.client.IncompleteRead(b'')]
STAY += [raised('RefreshError', 'GoogleAuthError'), raised('SSLError', 'ConnectionError')]
STAY += [raised('ClientConnectorCertificateError', 'ClientConnectionError'), BrokenPipeError()]
# a status by its number, as TensorFlow's
PASS += [coded(9), coded(14), coded(4), coded(10, 'All 10 retry attempts failed: not found')]
PASS += [coded(13, "Couldn't parse JSON response from GCS."), coded(13, CORRUPT)]
STAY += [coded(5, 'The last try timed out'), coded(7, 'temporary credentials')]
STAY += [coded(8, 'retry: no space left on device'), coded(3, 'slice index 502 out of bounds')]
# the cause of an error that says nothing: Orbax's, where an array of a bucket is read
PASS += [wrapping(ValueError('UNAVAILABLE: Error reading "gs://b/x"'))]
PASS += [wrapping(wrapping(ConnectionResetError()))]
STAY += [wrapping(ValueError('NOT_FOUND: Error reading "gs://b/x"'))]
STAY += [wrapping(OSError(errno.ENOSPC, 'full'))]
# numbers of the system before all else
PASS += [OSError(errno.EIO, 'not found')]
STAY += [OSError(errno.ENOSPC, 'try again'), BrokenPipeError(errno.EPIPE, 'try again')]
# the status that a text begins with, and an answer of a bucket that cannot be parsed
PASS += [ValueError('ABORTED: permission denied'), ValueError('UNAVAILABLE: no such host')]
PASS += [ValueError(UNPARSED), ValueError(TENSORSTORE)]
STAY += [ValueError('PERMISSION_DENIED: retry with other rights')]
STAY += [ValueError(UNPARSED.replace('gcs', 'file').replace('gs:/', ''))]
STAY += [ValueError('Error reading /b/c/_sharding: Failed to parse metadata of gs://b/c')]
# words alone decide nothing
STAY += [raised('Error'), OSError('Connection reset, try again')]
STAY += [ValueError('the store is UNAVAILABLE: try again')]
STAY += [ValueError('operands could not be broadcast together')]


def test_the_type_and_the_code_of_an_error_say_whether_it_may_pass_and_no_word_does():
  assert not [error for error in PASS if not storage.may_pass(error)]
  assert not [error for error in STAY if storage.may_pass(error)]
