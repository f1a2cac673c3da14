"""An object store on the loopback: the part of Cloud Storage's JSON API that our clients use.

Two clients reach gs:// in this package. Both are the real ones, and both are pointed here:

* tensorstore (Orbax's arrays) by TENSORSTORE_GCS_HTTP_URL.
* TensorFlow's gfile (etils.epath: every other file) has Google's addresses compiled in. So this
  server is also an HTTPS proxy that answers for these addresses with a certificate of its own.

`Store.environment()` has the variables for a child process. They cannot be set in the process of
the test, where both libraries may have read them already.

Objects have generations. `ifGenerationMatch`, `ifGenerationNotMatch`, `ifMetagenerationMatch` and
`ifMetagenerationNotMatch` are obeyed. `Store.fail` makes requests fail.
"""

import base64
import contextlib
import dataclasses
import datetime
import email
import hashlib
import http.server
import itertools
import json
import pathlib
import random
import re
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import urllib.parse

import pytest

_HOSTS = ('www.googleapis.com', 'storage.googleapis.com', 'googleapis.com')
_PAGE = 1000  # objects per answer of a list


@dataclasses.dataclass
class Object:
  data: bytes
  generation: int
  metageneration: int = 1
  updated: str = ''


@dataclasses.dataclass
class Fault:
  """Requests that fail: `how` is a status of HTTP, 'reset' for a connection that is cut, or 'late'
  for a write that is done and whose answer is 503. The body of an answer is 'cut' in the middle, is
  'short' and says so of itself, or has a 'flip' of a bit, each time another one.
  """

  how: int | str
  times: float
  on: str
  every: int = 1
  seen: int = 0
  hits: int = 0


class Store:
  """The server. Use as a context: it listens inside of a `with`."""

  def __init__(self):
    self.objects = {}  # (bucket, name) → Object
    self.lock = threading.RLock()
    self._generations = itertools.count(1_700_000_000_000_001)
    self._uploads, self._faults = {}, []

  def __enter__(self):
    self._folder = tempfile.TemporaryDirectory()
    self._tls = _certificate(pathlib.Path(self._folder.name))
    handler = type('Handler', (_Handler,), {'store': self})
    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *_):
    self._server.shutdown()
    self._server.server_close()
    self._folder.cleanup()

  def environment(self) -> dict[str, str]:
    """Variables that lead the clients of a child process here, without waits between attempts."""
    url = f'http://127.0.0.1:{self._server.server_address[1]}'
    return {
      **dict.fromkeys(('TENSORSTORE_GCS_HTTP_URL', 'STORAGE_EMULATOR_HOST'), url),
      **dict.fromkeys(('HTTPS_PROXY', 'https_proxy'), url),
      **dict.fromkeys(('NO_PROXY', 'no_proxy'), 'localhost,127.0.0.1'),
      'TENSORSTORE_GCS_REQUEST_RETRIES': '6',
      'CURL_CA_BUNDLE': str(pathlib.Path(self._folder.name) / 'certificate.pem'),
      'NO_GCE_CHECK': 'true',
      'GCE_METADATA_HOST': '127.0.0.1:1',
      'GOOGLE_APPLICATION_CREDENTIALS': '',
      'GCS_RETRY_CONFIG_MAX_RETRIES': '6',
      'GCS_RETRY_CONFIG_INIT_DELAY_TIME_US': '1000',
      'GCS_RETRY_CONFIG_MAX_DELAY_TIME_US': '20000',
    }

  def put(self, bucket: str, name: str, data: bytes) -> Object:
    with self.lock:
      now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')
      made = self.objects[bucket, name] = Object(data, next(self._generations), 1, now)
      return made

  def names(self, bucket: str, prefix: str = '') -> list[str]:
    with self.lock:
      return sorted(n for b, n in self.objects if b == bucket and n.startswith(prefix))

  def upload(self, folder, bucket: str, prefix: str) -> None:
    """Copies a folder of the disk as `gcloud storage cp -r` does: files alone."""
    for path in sorted(pathlib.Path(folder).rglob('*')):
      if path.is_file():
        name = f'{prefix}/{path.relative_to(folder)}'.lstrip('/')
        self.put(bucket, name, path.read_bytes())

  def download(self, bucket: str, prefix: str, folder) -> None:
    """Copies what is below a prefix to a folder of the disk: files alone."""
    for name in self.names(bucket, prefix.rstrip('/') + '/'):
      if not name.endswith('/'):
        path = pathlib.Path(folder) / name.removeprefix(prefix.rstrip('/') + '/')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.objects[bucket, name].data)

  def fail(self, how: int | str, times: float = float('inf'), on: str = '', every: int = 1):
    """The next `times` requests whose 'METHOD path' has the pattern `on` fail; with every=3, each
    third of them. Returns the Fault, which counts them in `hits`.
    """
    fault = Fault(how, times, on, every)
    with self.lock:
      self._faults.append(fault)
    return fault

  def mend(self) -> None:
    with self.lock:
      self._faults.clear()

  def fault_of(self, line: str) -> int | str | None:
    with self.lock:
      for fault in self._faults:
        if fault.hits < fault.times and re.search(fault.on, line):
          fault.seen += 1
          if fault.seen % fault.every == 0:
            fault.hits += 1
            return fault.how
    return None


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm, wbufsize = True, -1  # an answer leaves at once and in one piece
  store: Store

  def log_message(self, *_):
    pass

  def do_CONNECT(self):
    self.send_response(200)
    self.end_headers()
    self.wfile.flush()
    with contextlib.suppress(OSError):
      self.connection = self.store._tls.wrap_socket(self.connection, server_side=True)
      self.rfile = self.connection.makefile('rb', -1)
      self.wfile = self.connection.makefile('wb', -1)
      self.close_connection = False

  def do_GET(self):
    self._answer()

  do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815

  def _answer(self):
    body = self._body()
    where = urllib.parse.urlsplit(self.path)
    path = where.path
    query = dict(urllib.parse.parse_qsl(where.query, keep_blank_values=True))
    about = [f'?{key}={query[key]}' for key in ('name', 'prefix') if key in query]
    line = f'{self.command} {urllib.parse.unquote(path)}{"".join(about)}'
    how = self.store.fault_of(line)
    if how == 'reset':
      # an RST and no FIN, as from a machine that went away
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
      self.close_connection = True
      return self.connection.close()
    if isinstance(how, int):
      return self._error(how, 'injected')
    try:
      with self.store.lock:
        status, headers, data = self._route(path, query, body)
    except _Refused as e:
      return self._error(e.status, e.why)
    if how == 'late':
      return self._error(503, 'injected, after it was done')
    if how == 'short':
      data = data[: len(data) // 2]
    if how == 'flip' and data:
      bit = random.randrange(8 * len(data))
      data = bytes([*data[: bit // 8], data[bit // 8] ^ 1 << bit % 8, *data[bit // 8 + 1 :]])
    self._send(status, headers, data, cut=how == 'cut')

  def _body(self) -> bytes:
    if 'chunked' in self.headers.get('Transfer-Encoding', ''):
      parts = []
      while size := int(self.rfile.readline().split(b';')[0], 16):
        parts.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      return b''.join(parts)
    return self.rfile.read(int(self.headers.get('Content-Length') or 0))

  def _route(self, path, query, body):
    name = urllib.parse.unquote
    if m := re.fullmatch(r'(?:/resumable)?/upload/storage/v1/b/([^/]+)/o', path):
      return self._upload(name(m[1]), query, body)
    if m := re.fullmatch(r'/storage/v1/b/([^/]+)', path):
      return _json({'kind': 'storage#bucket', 'name': name(m[1]), 'location': 'EU'})
    if m := re.fullmatch(r'/storage/v1/b/([^/]+)/storageLayout', path):
      return _json({'kind': 'storage#storageLayout', 'bucket': name(m[1]), 'location': 'EU'})
    if m := re.fullmatch(r'/storage/v1/b/([^/]+)/o/?', path):
      return self._list(name(m[1]), query)
    copies = r'/storage/v1/b/([^/]+)/o/(.+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.+)'
    if m := re.fullmatch(copies, path):
      return self._copy(*map(name, m.groups()), query, '/rewriteTo/' in path)
    if m := re.fullmatch(r'(?:/download)?/storage/v1/b/([^/]+)/o/(.+)', path):
      return self._object(name(m[1]), name(m[2]), query)
    if m := re.fullmatch(r'/([^/]+)/(.+)', path):  # the XML API: TensorFlow reads so
      return self._object(name(m[1]), name(m[2]), {**query, 'alt': 'media'})
    raise _Refused(404, f'no such call: {path}')

  def _object(self, bucket, name, query):
    found = self.store.objects.get((bucket, name))
    _check_preconditions(found, query, reads=self.command in ('GET', 'HEAD'))
    if found is None:
      raise _Refused(404, f'No such object: {bucket}/{name}')
    if self.command == 'DELETE':
      del self.store.objects[bucket, name]
      return 204, {}, b''
    if query.get('alt') != 'media':
      return _json(_metadata(bucket, name, found))
    headers = {
      'Content-Type': 'application/octet-stream',
      'x-goog-generation': str(found.generation),
      'x-goog-metageneration': str(found.metageneration),
      'x-goog-stored-content-length': str(len(found.data)),
      'ETag': f'"{found.generation}"',
    }
    asked = re.fullmatch(r'bytes=(\d*)-(\d*)', self.headers.get('Range', ''))
    if not asked:
      return 200, headers, found.data
    size = len(found.data)
    first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
    last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
    if first >= size:
      raise _Refused(416, 'Requested range not satisfiable')
    headers['Content-Range'] = f'bytes {first}-{last}/{size}'
    return 206, headers, found.data[first : last + 1]

  def _list(self, bucket, query):
    prefix, delimiter = query.get('prefix', ''), query.get('delimiter')
    begin, end = query.get('startOffset', ''), query.get('endOffset')
    inside = lambda n: begin <= n and (not end or n < end)
    found = {}
    for n in filter(inside, self.store.names(bucket, prefix)):
      cut = n.find(delimiter, len(prefix)) if delimiter else -1
      alone = cut < 0 or (cut == len(n) - 1 and query.get('includeTrailingDelimiter') == 'true')
      found[n if alone else n[: cut + len(delimiter)]] = alone
    page = [n for n in sorted(found) if n > query.get('pageToken', '')]
    size = min(int(query.get('maxResults') or _PAGE), _PAGE)
    page, more = page[:size], page[size:]
    answer = {'kind': 'storage#objects'}
    if items := [n for n in page if found[n]]:
      objects = self.store.objects
      answer['items'] = [_metadata(bucket, n, objects[bucket, n]) for n in items]
    if prefixes := [n for n in page if not found[n]]:
      answer['prefixes'] = prefixes
    if more:
      answer['nextPageToken'] = page[-1]
    return _json(answer)

  def _copy(self, bucket, name, to_bucket, to_name, query, rewrites):
    found = self.store.objects.get((bucket, name))
    if found is None:
      raise _Refused(404, f'No such object: {bucket}/{name}')
    _check_preconditions(self.store.objects.get((to_bucket, to_name)), query)
    made = _metadata(to_bucket, to_name, self.store.put(to_bucket, to_name, found.data))
    answer = {'kind': 'storage#rewriteResponse', 'done': True, 'resource': made}
    return _json(answer if rewrites else made)

  def _upload(self, bucket, query, body):
    kind = query.get('uploadType', 'media')
    if self.command == 'PUT':
      return self._continue_upload(query, body)
    if kind == 'multipart':
      head = f'Content-Type: {self.headers["Content-Type"]}\r\n\r\n'.encode()
      described, content = email.message_from_bytes(head + body).get_payload()
      query = {**json.loads(described.get_payload()), **query}
      body = content.get_payload(decode=True)
    elif kind == 'resumable':
      query = {**json.loads(body or b'{}'), **query}
      number = str(len(self.store._uploads) + 1)
      self.store._uploads[number] = (bucket, query, bytearray())
      host = self.headers.get('Host')
      scheme = 'https' if isinstance(self.connection, ssl.SSLSocket) else 'http'
      address = f'{scheme}://{host}/upload/storage/v1/b/{bucket}/o?upload_id={number}'
      return 200, {'Location': address}, b''
    return self._put(bucket, query, body)

  def _continue_upload(self, query, body):
    bucket, described, so_far = self.store._uploads[query['upload_id']]
    asked = re.fullmatch(r'bytes (?:(\d+)-\d+|\*)/(\d+|\*)', self.headers.get('Content-Range', ''))
    if asked and asked[1]:
      del so_far[int(asked[1]) :]
    so_far += body
    if asked and (asked[2] == '*' or len(so_far) < int(asked[2])):
      headers = {'Range': f'bytes=0-{len(so_far) - 1}'} if so_far else {}
      return 308, headers, b''
    return self._put(bucket, described, bytes(so_far))

  def _put(self, bucket, query, data):
    _check_preconditions(self.store.objects.get((bucket, query['name'])), query)
    made = self.store.put(bucket, query['name'], data)
    return _json(_metadata(bucket, query['name'], made))

  def _error(self, status, why):
    if status == 304:
      return self._send(304, {}, b'')
    described = {'error': {'code': status, 'message': why, 'errors': [{'message': why}]}}
    self._send(*_json(described, status))

  def _send(self, status, headers, data, cut=False):
    self.send_response(status)
    for key, value in headers.items():
      self.send_header(key, value)
    if status not in (204, 304):
      self.send_header('Content-Length', str(len(data)))
    self.end_headers()
    if self.command != 'HEAD' and status not in (204, 304):
      self.wfile.write(data[: len(data) // 2] if cut else data)
      self.close_connection |= cut


class _Refused(Exception):
  def __init__(self, status, why):
    self.status, self.why = status, why


def _check_preconditions(found, query, reads=False):
  """Raises what the store answers if an object is not as the request demands. Generation 0 is that
  of an object that is not there.
  """
  now = dict(Generation=0, Metageneration=0)
  if found:
    now = dict(Generation=found.generation, Metageneration=found.metageneration)
  for key, value in now.items():
    if (asked := query.get(f'if{key}Match')) is not None and int(asked) != value:
      raise _Refused(412, 'conditionNotMet')
    if (asked := query.get(f'if{key}NotMatch')) is not None and int(asked) == value:
      raise _Refused(304 if reads else 412, 'conditionNotMet')
  if found and query.get('generation') not in (None, str(found.generation)):
    raise _Refused(404, 'No such generation')


def _metadata(bucket, name, found):
  return {
    'kind': 'storage#object',
    'id': f'{bucket}/{name}/{found.generation}',
    'bucket': bucket,
    'name': name,
    **dict.fromkeys(('generation', 'etag'), str(found.generation)),
    'metageneration': str(found.metageneration),
    'size': str(len(found.data)),
    **dict.fromkeys(('timeCreated', 'updated'), found.updated),
    'md5Hash': base64.b64encode(hashlib.md5(found.data).digest()).decode(),
    'storageClass': 'STANDARD',
  }


def _json(value, status=200):
  return status, {'Content-Type': 'application/json'}, json.dumps(value).encode()


def _certificate(folder) -> ssl.SSLContext:
  """A certificate for Google's addresses, signed by itself; clients are told to believe it."""
  if not shutil.which('openssl'):
    pytest.skip('openssl is not installed: nothing else makes the certificate of the object store')
  names = ','.join(f'DNS:{host}' for host in _HOSTS)
  line = f"""openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
    -subj /CN=gcs -addext subjectAltName={names} -keyout key.pem -out certificate.pem"""
  subprocess.run(line.split(), cwd=folder, check=True, capture_output=True)
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(folder / 'certificate.pem', folder / 'key.pem')
  return context
