import json
import pathlib
import shutil
import sys
import time
import types

import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import fill_mask
from bertzoo_jax import hf
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import tokenizers
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.parts import named as part_table
from bertzoo_jax.runs import metrics
from configs import bert
from configs import roberta
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = (ROOT / 'data/sample/time_machine.txt').read_text()[:60_000]
SIZES = dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=48, max_positions=32)


def make_workdir(path, config, sizes=SIZES):
  """A workdir as a finished run leaves it, perturbed weights at step 7; returns the weights."""
  config = ml_collections.ConfigDict(config)
  config.encoder.update(sizes)
  tokenizer = tokenizers.train(config.tokenizer.to_dict(), lambda: iter(SAMPLE.split('\n\n')))
  tokenizer.save(path / 'tokenizer')
  (path / 'config.json').write_text(configuration.to_json(config))
  corpus = {'hash': 'c0ffee', 'tokens': 12345, 'sources': ['a|b.txt', 'c.txt']}
  (path / 'corpus.json').write_text(json.dumps(corpus))
  attempts = (0, 'aa11', 'hf:/home/me/checkpoint'), (3, 'aa11', None), (9, 'bb22', None)
  lines = [json.dumps(dict(zip(('start_step', 'commit', 'init'), x))) for x in attempts]
  (path / 'attempts.jsonl').write_text('\n'.join([*lines, '']))
  record = metrics.Record(path, 0, 1)
  record.write({'step': 5, 'loss': 4.25, 'held_out_loss': 4.5, 'held_out_bits_per_byte': 0.5})
  record.write({'step': 9, 'loss': 1.0})
  record.close()
  given = dict(vocab_size=tokenizer.vocab_size, dtype=jnp.float32)
  encoder = part_table.build(config.encoder, encoders.BY_NAME, 'encoder', **given)
  objective = part_table.build(config.objective, objectives.BY_NAME, 'objective', encoder=encoder)
  params = small.parameters(objective)
  small.save(path, params, step=7)
  return params


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """{name: (workdir, config, weights)}"""
  made = {}
  for name, module in dict(bert=bert, roberta=roberta).items():
    config, path = module.get_config('tiny'), tmp_path_factory.mktemp(name)
    config.phases = ((1000, {}),)
    config.tokenizer = getattr(parts, config.tokenizer.name)(vocab_size=600)
    made[name] = path, config, make_workdir(path, config)
  return made


FACTS = """c0ffee
| corpus tokens | 12,345 |
| sources of the text | a&#124;b.txt, c.txt |
| licence of the text | not recorded |
| began with | checkpoint |
commit aa11 |
same masking rate
UNEXPECTED or MISSING
4.25
4.5
AutoTokenizer
| steps | 7 of 1,000
rate 0.15
replaced 80% by the mask token, 10% by a random token; 10% stay
Reloaded with transformers""".splitlines()


@pytest.mark.parametrize('name', ['bert', 'roberta'])
def test_an_export_is_reloaded_compared_and_described(runs, name, tmp_path, capsys):
  workdir, config, params = runs[name]
  out = tmp_path / 'deep' / 'hf'
  rows = export.export(f'{workdir}@7', out)
  assert all(r.holds for r in rows) and len(rows) >= 5
  assert 'mlm logits' in capsys.readouterr().out
  files = {p.name for p in out.iterdir()}
  assert {'config.json', 'model.safetensors', 'tokenizer.json', 'README.md'} <= files
  assert {'tokenizer_config.json', 'special_tokens_map.json'} <= files
  assert ('vocab.txt' in files) == (config.tokenizer.name == 'wordpiece')
  assert [p.name for p in out.parent.iterdir()] == ['hf']
  card = (out / 'README.md').read_text()
  assert not [fact for fact in (config.hf, *FACTS) if fact not in card]
  # of a later step than the export's; each once
  assert '| loss | 1 |' not in card and 'bb22' not in card and card.count('aa11') == 1
  assert len({p.stat().st_mode for p in out.iterdir()}) == 1
  loaded, report = hf.load(out)
  merged, _ = hf.merge(params, loaded, report, config.encoder.to_dict() | SIZES)
  assert small.worst(merged, params) == 0


# An export in a process of its own, which stops before its folder gets its name.
DRIVER = """
import os, sys, time
from bertzoo_jax import export
from bertzoo_jax.common import folders
workdir, out, marker = sys.argv[1:]
def stop(*args):
  open(marker, 'w').close()
  time.sleep(600)
folders.install = stop
export.export(workdir, out)
"""


def hidden(folder):
  return sorted(p.name for p in folder.iterdir() if p.name.startswith('.'))


def content(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_rests_of_a_killed_export_are_removed_and_files_of_a_live_one_are_not(
  runs, tmp_path_factory, tmp_path, capsys
):
  workdir, alone = runs['bert'][0], tmp_path_factory.mktemp('alone')
  export.export(str(workdir), alone / 'hf')
  whole = content(alone / 'hf')
  other = tmp_path / '.other.export-12345678'  # of another --out
  other.mkdir()
  live = commands.begin('-c', DRIVER, *map(str, (workdir, tmp_path / 'hf', tmp_path / 'marker')))
  try:
    while not (tmp_path / 'marker').exists():
      assert live.poll() is None, live.communicate()[0]
      time.sleep(0.05)
    before = hidden(tmp_path)
    assert len(before) == 2
    export.export(str(workdir), tmp_path / 'hf')
    assert hidden(tmp_path) == before and content(tmp_path / 'hf') == whole
  finally:
    live.kill()
    live.wait()
  shutil.rmtree(tmp_path / 'hf')
  capsys.readouterr()
  export.export(str(workdir), tmp_path / 'hf')
  assert hidden(tmp_path) == [other.name] and content(tmp_path / 'hf') == whole
  assert capsys.readouterr().out.count('removed: ') == 1


def test_a_folder_that_another_export_has_filled_meanwhile_is_not_overwritten(
  runs, tmp_path, monkeypatch
):
  written = export.weights.save

  def meanwhile(*args):
    (tmp_path / 'hf').mkdir()
    (tmp_path / 'hf' / 'theirs').write_text('x')
    written(*args)

  monkeypatch.setattr(export.weights, 'save', meanwhile)
  with pytest.raises(errors.UserError, match='not empty'):
    export.export(str(runs['bert'][0]), tmp_path / 'hf')
  assert [p.name for p in tmp_path.iterdir()] == ['hf']
  assert [p.name for p in (tmp_path / 'hf').iterdir()] == ['theirs']


@pytest.mark.parametrize(
  'name, asked, wished, written',
  [
    ('bert', 'BertForMaskedLM', None, 'BertForMaskedLM'),
    ('roberta', 'BertForPreTraining', None, None),
    ('bert', None, 'RobertaForMaskedLM', 'BertForPreTraining'),
    # of the class wished for, if one of its type fits
    ('roberta', None, 'BertForPreTraining', 'BertForMaskedLM'),
  ],
)
def test_another_class_is_written_as_asked_or_the_one_that_fits(
  runs, tmp_path, capsys, name, asked, wished, written
):
  workdir = shutil.copytree(runs[name][0], tmp_path / 'run')
  content = json.loads((workdir / 'config.json').read_text())
  content['hf'] = wished or content['hf']
  (workdir / 'config.json').write_text(json.dumps(content))
  if written is None:
    with pytest.raises(errors.UserError, match=r'--architecture='):
      export.export(str(workdir), tmp_path / 'hf', asked)
    assert not (tmp_path / 'hf').exists()
    return
  assert all(r.holds for r in export.export(str(workdir), tmp_path / 'hf', asked))
  assert (f'export writes {written}.' in capsys.readouterr().out) == (wished is not None)
  assert json.loads((tmp_path / 'hf/config.json').read_text())['architectures'] == [written]
  assert (tmp_path / 'hf' / weights.HEADS_FILE).exists() == (asked is not None)  # the pair head


def test_guesses_are_quoted_and_a_head_that_is_not_compared_fails(capsys):
  said = fill_mask.table('a [MASK]', [[(',', 0.057), ('the', 0.05)]])
  assert said == 'a [MASK]\nmask 1: "," 5.7 % · "the" 5.0 %'
  with pytest.raises(errors.UserError, match='hf:nowhere is no folder'):
    fill_mask.main(types.SimpleNamespace(model='nowhere', text='a [MASK]', top=3))
  assert not capsys.readouterr().out
  assert not export.uncompared({'encoder': {}, 'mlm_head': {}, 'pair_head': {}})
  [row] = export.uncompared({'encoder': {}, 'strange_head': {}})
  assert row.what == 'strange_head' and not row.holds


def test_an_export_that_transformers_reads_differently_is_not_written(runs, tmp_path, monkeypatch):
  honest = export.convert

  def swapped(*args):
    tensors, config = honest(*args)
    named = lambda x: f'layer.0.attention.self.{x}.bias'
    a, b = (next(k for k in tensors if k.endswith(named(x))) for x in ('query', 'value'))
    return {**tensors, a: tensors[b], b: tensors[a]}, config

  monkeypatch.setattr(export, 'convert', swapped)
  with pytest.raises(errors.UserError, match='reads the export differently'):
    export.export(str(runs['bert'][0]), tmp_path / 'hf')
  assert not list(tmp_path.iterdir())


def test_without_torch_our_own_reader_compares_and_it_is_said(runs, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(verify, 'missing_packages', lambda: ['torch'])
  for name in ('torch', 'transformers'):
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails
  honest = verify.compare_logits
  shifted = lambda ours: {name: x + 0.1 * np.arange(x.shape[-1]) for name, x in ours.items()}
  monkeypatch.setattr(verify, 'compare_logits', lambda ours, *rest: honest(shifted(ours), *rest))
  with pytest.raises(errors.UserError, match='bertzoo_jax reads the export differently'):
    export.export(str(runs['bert'][0]), tmp_path / 'hf')
  monkeypatch.setattr(verify, 'compare_logits', honest)
  assert export.export(str(runs['bert'][0]), tmp_path / 'hf') is None
  shown = capsys.readouterr().out
  assert 'Not compared with transformers' in shown and 'logits' in shown
  assert 'Not compared' in (tmp_path / 'hf/README.md').read_text()
  tensors = weights.load(tmp_path / 'hf')[0]
  assert np.isfinite(tensors['encoder']['embeddings']['word']['embedding']).all()
  with pytest.raises(errors.UserError, match='no checkpoint'):
    export.export(str(tmp_path), tmp_path / 'again')
  workdir = shutil.copytree(runs['bert'][0], tmp_path / 'run')
  (workdir / 'config.json').unlink()
  with pytest.raises(errors.UserError, match='config.json does not exist: a workdir needs'):
    export.export(str(workdir), tmp_path / 'again')
