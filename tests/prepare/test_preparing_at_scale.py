"""Beam knows the lines of docs/preparing_at_scale.md (test_readme.py: `prepare` does)."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parents[2]
DOC = (ROOT / 'docs' / 'preparing_at_scale.md').read_text()
BEAM_ARGS = [shlex.split(args) for args in re.findall(r"--beam_args='(--runner=[A-Z][^']*)'", DOC)]
ALTERNATIVES = re.findall(r'`(--[a-z_]+=?[^`]*)`', DOC.split('## Apache Beam')[1])
OURS = (
  '--runner',
  '--source',
  '--out',
  '--tokenizer',
  '--phrases',
  '--entities',
  '--beam_args',
  '--exclude',
)


def _unknown(args):
  from apache_beam.options import pipeline_options

  parsed = pipeline_options.PipelineOptions(args)
  return set(parsed.get_all_options(retain_unknown_options=True)) - set(
    parsed.get_all_options(retain_unknown_options=False)
  )


def test_every_runner_is_there_and_its_options_are_beams():
  from apache_beam.runners import runner

  assert len(BEAM_ARGS) == 4 and _unknown(['--runer=DirectRunner'])
  for args in BEAM_ARGS:
    assert not _unknown(args), args
    name = args[0].partition('=')[2]
    # Dataflow's needs apache-beam[gcp]
    assert name == 'DataflowRunner' or type(runner.create_runner(name)).__name__.endswith('Runner')


def test_alternatives_are_options_of_beam_too():
  others = [
    a
    for a in ALTERNATIVES
    if '=' in a and (a.partition('=')[0] not in OURS or re.match(r'--runner=[A-Z]', a))
  ]
  assert len(others) > 5
  for args in others:
    assert not _unknown(shlex.split(args)), args
