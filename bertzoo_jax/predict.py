"""Predicts a file with a fine-tuned network.

    python -m bertzoo_jax.predict --model mine --file new.csv --out new.jsonl

--model takes the --workdir of a fine-tuning, one of its runs, or hf: and a Hugging Face directory
with the head of a task. --file is read as the run read its files; labels in it are ignored.
--out is .jsonl, as `finetune` writes predictions, or .tsv, a table.
"""

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import submission

FORMS = {'.jsonl': submission.json_lines, '.tsv': submission.tab_separated}


def predict(
  address: str,
  file: str,
  out: str,
  *,
  columns: tuple[str, ...] = (),
  header: bool = True,
  batch_size: int = 32,
  dtype: str = 'float32',
) -> int:
  """Writes the predictions of a file, and returns their number; arguments as the flags. Raises
  UserError if `out` exists, the network has no head of a task, or the file has another form.
  """
  from bertzoo_jax.pretrained import loading  # with jax: --help does not wait for it

  out = storage.path(out)
  write = FORMS.get(out.suffix)
  if write is None:
    raise errors.UserError(f'--out {out}: give a name that ends with {" or ".join(FORMS)}.')
  storage.check_new(out)
  predictor = loading.load(address, dtype).predictor
  lines = predictor.answers(predictor.read(file, columns, header), batch_size)
  out.parent.mkdir(parents=True, exist_ok=True)
  storage.write_text(out, write(lines))
  return len(lines)


def main(asked):
  columns = tuple(name.strip() for name in asked.columns)
  more = dict(columns=columns, header=asked.header, batch_size=asked.batch, dtype=asked.dtype)
  count = predict(asked.model, asked.file, asked.out, **more)
  print(f'{count:,} predictions are in {asked.out}')


if __name__ == '__main__':
  cli.required(
    model='Fine-tuned network: W, W@STEP, W@best, hf:DIR or hf:OWNER/NAME.',
    file='File to predict.',
    out='File *.jsonl or *.tsv to write; an existing one is refused.',
  )
  flags.DEFINE_list(
    'columns', [], 'Columns of the texts, in the order of the task. Default: as in the run.'
  )
  flags.DEFINE_boolean('header', True, 'Whether a table begins with names of columns.')
  flags.DEFINE_integer('batch', 32, 'Rows that go through the network together.', lower_bound=1)
  flags.DEFINE_string('dtype', 'float32', 'Of matrix products: float32 or bfloat16.')
  cli.run(main)
