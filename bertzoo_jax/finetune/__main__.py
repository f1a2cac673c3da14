"""Fine-tunes pretrained weights on labelled rows and scores them. Run the same command again to
resume.

    python -m bertzoo_jax.finetune --config configs/tasks/glue.py:rte --init W --workdir F
                                   [--task_dir DIR] [--predict FILE]
    python -m bertzoo_jax.finetune --config configs/tasks/own.py:classify --init W --workdir F \\
      --config.source.files.train=my.tsv --config.source.text_a=text

--init takes the addresses that pretrain takes: W, W@STEP, W@best, hf:DIR or hf:ID. W@all fine-tunes
every checkpoint of a pretraining run and draws the score over its steps. If there are two networks,
the discriminator is used. The encoder and the tokenizer come with the weights.

Each combination of a grid (config.grid) and a seed (config.seeds) is a run. If there are several
devices, each run gets one of them. F gets a folder per run with its config, metrics and
predictions; table.md and table.json; submission/ if the task has test rows. Only the best run of a
task keeps its checkpoint. If it is killed, the same command resumes it, and the table is the same
bit for bit.

If one of several runs diverges, it gets no score and the others continue. Any other error stops all
runs; they save first. finetune runs on one host.

Exit codes are those of pretrain: 0, 2, 3, 75, 130.
"""

from absl import flags

from bertzoo_jax import cli


def main(asked):
  from bertzoo_jax.finetune import suite  # with jax: --help does not wait for it

  suite.finetune(**vars(asked))


if __name__ == '__main__':
  cli.define_config(
    fields=(),
    help='Fine-tuning: configs/tasks/FILE.py:TASK[,recipe=NAME], then --config.section.key=value.',
  )
  cli.required(
    workdir='Folder of all runs, local or gs://.',
    init='Pretrained weights: WORKDIR[@STEP|@best|@all], hf:DIR or hf:ID[@revision].',
  )
  flags.DEFINE_string('task_dir', '.', "Folder of the tasks' files.")
  cli.texts(
    predict='A file without labels, with the columns of the task: the best run predicts it.'
  )
  cli.run(main, cli.exit_process)
