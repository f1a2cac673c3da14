"""The demo, in minutes on two cores: python -m bertzoo_jax.demo [--out demo]

Sample text → corpus → a small network → a Hugging Face directory → the gaps that it fills. Run the
same command again to resume.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.common import errors

# Masked tokens alone, and DeBERTa's attention: they learn most in five minutes (docs/settings.md).
CONFIG = 'bert:tiny,objective=mlm,format=full_sentences,encoder=disentangled'
# Without DeBERTa's mask decoder, which transformers lacks.
FIELDS = '--config.encoder.absolute_positions=none'
TEXTS = ('federalist.txt', 'sherlock.txt', 'time_machine.txt')
GAP = 'The people of the United [MASK] have the power to make laws.'


def steps(out: str) -> list:
  """(title, the command and its arguments) of each step."""
  corpus, run, hf = (os.path.join(out, name) for name in ('corpus', 'run', 'hf'))
  config = f'--config={CONFIG}'
  source = [f'--source={sample() / name}' for name in TEXTS]
  return [
    ('Sample text to a corpus', ['prepare', config, *source, f'--out={corpus}']),
    (
      'Pretraining (some minutes on two cores)',
      ['pretrain', config, FIELDS, f'--corpus={corpus}', f'--workdir={run}'],
    ),
    (
      'A Hugging Face directory, reloaded and compared',
      ['export', f'--workdir={run}', f'--out={hf}'],
    ),
    ('Filling a mask with that directory', ['fill_mask', f'--model={hf}', f'--text={GAP}']),
    (
      'What it has learned',
      ['evaluate', f'--workdir={run}', f'--corpus={corpus}', '--gaps=10', '--require=1.5'],
    ),
  ]


def sample() -> pathlib.Path:
  """The folder of the sample: in the package of a wheel, in data/ of a clone."""
  package = pathlib.Path(__file__).parent
  folder = package / 'sample'
  return folder if folder.is_dir() else package.parent / 'data' / 'sample'


def main(asked):
  out, environment = asked.out, {'JAX_PLATFORMS': 'cpu', **os.environ}
  os.makedirs(out, exist_ok=True)
  commands = steps(out)
  for number, (title, (name, *rest)) in enumerate(commands, 1):
    if name == 'export':
      shutil.rmtree(os.path.join(out, 'hf'), ignore_errors=True)
    if name == 'evaluate':
      print(_files(out))
    line = shlex.join(['bertzoo', name, *rest])
    print(f'\n{number}/{len(commands)}  {title}\n$ {line}', flush=True)
    done = subprocess.run([sys.executable, '-m', f'bertzoo_jax.{name}', *rest], env=environment)
    if done.returncode:
      raise errors.UserError(f'Step {number} of the demo failed: the lines above say why.')


def _files(out) -> str:
  """The text about the folders that the demo made, and the commands to try next."""
  activate = '' if shutil.which('bertzoo') else f'source {sys.prefix}/bin/activate\n       '
  return f"""
Made:  {out}/corpus   the sample as tokens, with its data report in manifest.json
       {out}/run      checkpoints, metrics.jsonl, loss.png, TensorBoard files, the resolved config
       {out}/hf       the model for Hugging Face: AutoModelForMaskedLM.from_pretrained('{out}/hf')

Next:  {activate}bertzoo show --config {CONFIG} --corpus {out}/corpus     the rows of the model
       the same text as RoBERTa: --config roberta:tiny in the commands above, and other folders
       your own language: docs/my_language.md"""


if __name__ == '__main__':
  flags.DEFINE_string('out', 'demo', 'Folder of its corpus, its run and its model.')
  cli.run(main)
