"""Reproduces a table of a paper: pretrains its rows, fine-tunes them, and sets the scores beside
the paper's. Run the same command again to resume.

    python -m bertzoo_jax.reproduce --config configs/tables/albert_table5.py:tiny --workdir R
                                    [--source TEXT …] [--task_dir DIR] [--rows None,SOP]

The scale is the config's argument: `paper`, `budget,k=64`, `budget,steps=4000` or `tiny`
(configs/tables/paper.py).
--source is the text of all rows, as prepare takes it; `tiny` reads the sample of this repository
without it. Each row gets a corpus of its own tokenizer. --task_dir holds the tasks' files, or a
folder for each task, with its name; a task whose files are not there reads "not run".

R gets a folder per row and seed, and table.md, table.json, curves.svg and table.html, written anew
whenever a row ends. Several processes, on one machine or on several that share R, take rows from
the same table: each row is held by a lock, and the row of a process that was killed is taken over
(runs/lock.py).

Exit codes are those of pretrain: 0, 2, 3, 75, 130.
"""

from absl import flags

from bertzoo_jax import cli


def main(asked):
  from bertzoo_jax.reproduce import rows  # with jax: --help does not wait for it

  asked = dict(vars(asked))
  price, source, task_dir, hours = (asked.pop(x) for x in ('price', 'source', 'task_dir', 'hours'))
  if asked.pop('preflight'):
    print(rows.preflight(price=price, **asked))
  else:
    rows.reproduce(source=source, task_dir=task_dir, hours=hours, **asked)


if __name__ == '__main__':
  cli.define_config(
    fields=(), help='Table: configs/tables/FILE.py:SCALE, then --config.section.key=value.'
  )
  cli.required(workdir='Folder of all rows, local or gs://.')
  flags.DEFINE_multi_string('source', [], 'Text of all rows, as prepare takes it.')
  flags.DEFINE_string('task_dir', '.', "Folder of the tasks' files.")
  flags.DEFINE_float(
    'hours', None, 'Of the scale budget: hours that all rows may take.', lower_bound=0.01
  )
  cli.texts(tpu='Accelerator type on which --hours are spent, or for --preflight: v4-32.')
  flags.DEFINE_bool('preflight', False, 'Print the cost of the rows on a TPU; nothing is run.')
  flags.DEFINE_float('price', None, 'Of --preflight: dollars per chip and hour.', lower_bound=0.0)
  flags.DEFINE_list('rows', [], 'Titles of rows, or their folders, by comma; all without it.')
  cli.run(main, cli.exit_process)
