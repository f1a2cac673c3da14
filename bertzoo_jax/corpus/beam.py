"""Makes shards with Apache Beam, on any of its runners: the same chunks and function as without, so
the same bytes.

The launching machine reads the text once more to find where chunks begin. Each worker gets the
chunks that begin in one file, and reads that file from its start (and a little of the next, for the
end of its last chunk). So the number of files limits the parallelism. Workers need this package,
the sources and --out. Finished shards stay there.
"""

import functools
import itertools

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import trust
from bertzoo_jax.corpus import shards
from bertzoo_jax.corpus import texts


def run(text: texts.Text, chunk_bytes: int, out, how: shards.How, options: list[str], say):
  """Makes all shards, of at least chunk_bytes of text each, in the corpus `out`, which has its
  tokenizer and is reachable by all workers. options: of Beam, as ['--runner=DataflowRunner', …].

  Raises UserError: Beam is not installed, does not know an option, or the pipeline failed.

  Returns (reader of the launching machine, with the counts of dropped text; records in the order of
  chunks).
  """
  with errors.needing('--runner=beam needs Apache Beam', 'beam'):
    import apache_beam as beam
    from apache_beam.options import pipeline_options
  parsed = _options(pipeline_options, options)
  reader, begins = text.reader(), []
  with progress.Meter('looking where shards begin', text.bytes, say) as meter:
    for chunk in text.chunks(reader, chunk_bytes):
      begins.append(chunk.begin)
      meter.update(chunk.end)
  make = functools.partial(
    _make, trust.get_allowed(), text.for_workers(), chunk_bytes, str(out), how
  )
  # [(begin of the first chunk, number of chunks)] per reading of a file
  by_file = (list(group) for _, group in itertools.groupby(begins, lambda begin: begin.file))
  groups = [(group[0], len(group)) for group in by_file]
  say(
    f'{len(begins):,} shards of {len(groups):,} files, made by Beam '
    f'({parsed.get_all_options()["runner"] or "DirectRunner"}).'
  )
  try:
    with beam.Pipeline(options=parsed) as pipeline:
      pipeline | beam.Create(groups) | beam.Reshuffle() | beam.FlatMap(make)
  except Exception as e:  # Beam wraps a worker's error in classes of its own
    if isinstance(e, errors.UserError):
      raise
    raise errors.UserError(
      f'The Beam pipeline failed ({type(e).__name__}: {str(e).strip().splitlines()[-1][:300]}): '
      'run the same command again, finished shards are kept.'
    ) from e
  records = [shards.finished(out, i) for i in range(len(begins))]
  if None in records:
    raise errors.UserError(
      f'Shard {records.index(None)} is not at {out} after the Beam pipeline: can its workers write '
      'there? Where they are other machines, an object store is needed.'
    )
  return reader, records


def _options(library, options):
  try:
    parsed = library.PipelineOptions(options)
    unknown = set(parsed.get_all_options(retain_unknown_options=True)) - set(
      parsed.get_all_options()
    )
  except SystemExit as e:
    raise errors.UserError(
      f'Beam does not understand --beam_args={" ".join(options)}: write it as for any Beam '
      'pipeline.'
    ) from e
  if unknown:
    raise errors.UserError(f'--beam_args has --{min(unknown)}, which Beam does not know.')
  return parsed


def _make(trusted, text, chunk_bytes, out, how, group):
  """Makes the unfinished shards of a group; yields the numbers of all its shards."""
  trust.set_allowed(trusted)
  begin, count = group
  tokenizer = None
  for chunk in text.chunks(text.reader(), chunk_bytes, begin):
    record = shards.finished(out, chunk.index)
    if record is None or not shards.intact(out, record, chunk):
      tokenizer = tokenizer or tokenizers.load(f'{out}/tokenizer')
      shards.write(out, chunk, tokenizer, how)
    yield chunk.index
    count -= 1
    if not count:
      return
