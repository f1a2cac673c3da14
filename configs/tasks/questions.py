"""Questions with answers in a passage: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), CMRC2018
(Cui et al. 2019), DRCD (Shao et al. 2018), CJRC (Duan et al. 2019), and the layout of MRQA (Fisch
et al. 2019).

    python -m bertzoo_jax.finetune --config configs/tasks/questions.py:squad --init I --workdir F \\
      --task_dir SQUAD

Rate, rows, epochs and length are those of Devlin et al. 2018 (README of the release for length and
stride) for squad, squad2 and mrqa, and of Cui et al. 2021 (arXiv:1906.08101, Table 4) for the
Chinese tasks; the paper gives no batch size, here it is 32. The optimizer without a recipe is
parts.adamw(), which is neither paper's. `,recipe=NAME` takes all of a paper.
`,objective=span_conditional` scores the end given the start, as XLNet, ALBERT and ELECTRA do.

The dev score is F1, as the task's own evaluation has it. squad2 also prints the scores at the best
threshold for no answer, and that threshold. CJRC's questions with yes, no or no answer are left
out.

| task | files |
|---|---|
| squad, squad2 | train-v1.1.json, dev-v1.1.json; train-v2.0.json, dev-v2.0.json |
| cmrc2018 | cmrc2018_{train,dev,trial}.json, as SQuAD; or the release's own layout |
| drcd | DRCD_{training,dev,test}.json |
| cjrc | small_train_data.json (Cui et al.) or big_train_data.json, {dev,test}_ground_truth.json |
| mrqa | {train,dev}.jsonl.gz; one of its sets: --config.source.files.train=SQuAD.jsonl.gz |

Read from real files: dev and test of drcd and cjrc; cmrc2018's dev and trial; a sample of mrqa's
NewsQA; SQuAD's layout from XQuAD and PolicyQA, that of 2.0 from a part of squad2's dev.
"""

import functools

from bertzoo_jax import parts
from bertzoo_jax.configs.tasks import arguments


def _task(
  files, *, leave_out=(), learning_rate=5e-5, epochs=2.0, batch_size=32, length=384, **more
):
  return dict(
    sources={'squad': functools.partial(parts.squad, files=files, leave_out=leave_out)},
    features=parts.question_windows,
    objective=parts.answer_span,
    length=length,
    epochs=epochs,
    batch_size=batch_size,
    schedule=functools.partial(parts.linear_from_start, learning_rate=learning_rate, warmup=0),
    **{'metrics': ('f1', 'exact_match'), **more},
  )


_CHINESE = dict(metrics=('f1_zh', 'exact_match_zh'), learning_rate=3e-5, length=512)

TASKS = {
  'squad': _task(
    dict(train='train-v1.1.json', dev='dev-v1.1.json', test=''),
    epochs=3.0,
    submission={'dev': 'squad.json'},
  ),
  'squad2': _task(
    dict(train='train-v2.0.json', dev='dev-v2.0.json', test=''),
    batch_size=48,
    metrics=('best_f1', 'best_exact_match', 'f1', 'exact_match', 'best_threshold'),
    submission={'dev': 'squad2.json'},
  ),
  'cmrc2018': _task(
    dict(
      train='cmrc2018_train.json|train.json',
      dev='cmrc2018_dev.json|dev.json',
      dev_trial='cmrc2018_trial.json|trial.json?',
      test='cmrc2018_test.json|test.json?',
    ),
    submission={'dev': 'cmrc2018.json', 'test': 'cmrc2018_test.json'},
    **_CHINESE,
  ),
  'drcd': _task(
    dict(
      train='DRCD_training.json|train.json',
      dev='DRCD_dev.json|dev.json',
      dev_test='DRCD_test.json|test.json?',
    ),
    submission={'dev': 'drcd.json', 'dev_test': 'drcd_test.json'},
    **_CHINESE,
  ),
  'cjrc': _task(
    dict(
      train='small_train_data.json|train_data.json|train.json|big_train_data.json',
      dev='dev_ground_truth.json|dev.json',
      dev_test='test_ground_truth.json|test.json?',
    ),
    leave_out=('unanswerable', 'yes_no'),
    submission={'dev': 'cjrc.json', 'dev_test': 'cjrc_test.json'},
    **{**_CHINESE, 'learning_rate': 4e-5},
  ),
  'mrqa': _task(
    dict(train='train.jsonl.gz|train.jsonl', dev='dev.jsonl.gz|dev.jsonl', test=''),
    submission={'dev': 'mrqa.json'},
  ),
}


def get_config(argument='squad'):
  return arguments.config(argument, TASKS)
