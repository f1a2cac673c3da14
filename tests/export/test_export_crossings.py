import itertools

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import export
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax import pretrained
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import verify
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import networks
from bertzoo_jax.pretrained import initial_weights
from configs import bert
from tests.export import test_export

WIDE = 'objective=replaced_token,encoder=two_stream'
CROSSINGS = {  # argument of bert's config: {name of a network: (class, heads beside it)}
  'encoder=disentangled': {'': ('DebertaV2ForMaskedLM', 'pair_head')},
  WIDE: {'discriminator': ('XLNetModel', 'replaced_head'), 'generator': ('XLNetModel', 'mlm_head')},
  'objective=mlm_span_boundary,encoder=two_stream,masking=span': {
    '': ('XLNetModel', 'boundary_head, mlm_head')
  },
}


@pytest.mark.parametrize('argument', CROSSINGS)
def test_it_leaves_with_its_heads_beside_the_encoder_and_comes_back(argument, tmp_path, capsys):
  config, out = bert.get_config(f'tiny,{argument}'), tmp_path / 'hf'
  config.tokenizer, sizes = parts.wordpiece(vocab_size=600), dict(test_export.SIZES)
  if config.encoder.name == 'two_stream':
    del sizes['max_positions']
    sizes['memory_length'] = 0
  if argument == WIDE:
    config.objective.width = 1.0
  params = test_export.make_workdir(tmp_path, config, sizes)
  assert all(row.holds for row in export.export(str(tmp_path), out))
  output = capsys.readouterr().out
  objective = objectives.build(config, weights.vocabulary_size(params))
  places = {network.name: out / network.name for network in objective.networks}
  for name, (written, beside) in CROSSINGS[argument].items():
    assert f'{places[name]}: {written}, step 7' in output
    assert f'{weights.HEADS_FILE}: {beside}, for which {written} has no place' in output
    assert beside in (places[name] / 'README.md').read_text()
  addresses = ','.join(f'hf:{place}' for place in places.values())
  fresh = small.parameters(objective, seed=5)
  found, _ = initial_weights.parameters(fresh, addresses, objective, tmp_path / 'tokenizer')
  for network in objective.networks:
    mine = weights.flatten(network.extract(params))
    for path, x in weights.flatten(network.extract(found)).items():
      np.testing.assert_array_equal(x, mine[path], err_msg=path)
    opened = pretrained.open(f'hf:{places[network.name]}')
    tables = opened.params['encoder']['embeddings']
    assert 'query' not in tables  # zeros that XLNet's class demands
    batch = verify.random_batch(opened.vocab_size, 16, 2, 0)
    predict = jax.jit(networks.outputs, static_argnums=0)
    ours = predict(network.encoder, network.extract(params), batch)
    theirs = predict(pretrained.encoder(opened), opened.params, batch)
    assert ours.keys() == theirs.keys() and len(ours) > 1
    for name, x in ours.items():
      np.testing.assert_array_equal(x, theirs[name], err_msg=name)


def test_every_network_that_the_package_trains_has_a_class_for_its_encoder():
  from tests import any_with_any as every

  networks = itertools.product(every.NAMES['objective'], every.NAMES['encoder'], (False, True))
  for objective, encoder, remembers in networks:
    built = every.built(objective, encoder, remembers)
    if isinstance(built, str) or remembers and encoder != 'two_stream':
      continue  # a sentence that refuses it; another encoder has no memory
    made = built[1]
    for network in made.networks:
      shapes = jax.eval_shape(network.extract, jax.eval_shape(made.init, jax.random.key(0)))
      flat = weights.flatten(shapes)
      name = export.architectures.fitting('BertForPreTraining', network.encoder.activation, flat)
      a = export.architectures.choose(name)
      held = export.hf_architecture.placed(a, flat)
      assert not any(export.hf_architecture.misfits(a, held)), (objective, encoder)
      content = keys.content(a, network.encoder, small.BERT_IDS, every.VOCAB)
      assert content['architectures'] == [name]
