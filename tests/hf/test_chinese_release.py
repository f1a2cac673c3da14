"""--init from a directory in the layout of the first Chinese BERT: old names of norms, a class that
says less than the file holds, and a bare vocabulary.
"""

import json

import numpy as np
import pytest
import safetensors.numpy
import small_networks as small

from bertzoo_jax.common import errors
from bertzoo_jax.pretrained import initial_weights

transformers = pytest.importorskip('transformers', reason='the loss is compared with transformers')
torch = pytest.importorskip('torch', reason='the loss is compared with torch')

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(chr(0x4E00 + i) for i in range(96))]
CONFIG = json.loads(
  """{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.0,
  "directionality": "bidi", "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 48,
  "initializer_range": 0.02, "intermediate_size": 80, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 40, "model_type": "bert", "num_attention_heads": 4,
  "num_hidden_layers": 3, "pad_token_id": 0, "pooler_fc_size": 48, "pooler_num_attention_heads": 4,
  "pooler_num_fc_layers": 3, "pooler_size_per_head": 12, "pooler_type": "first_token_transform",
  "type_vocab_size": 2, "vocab_size": 101}"""
)


@pytest.fixture(scope='module')
def release(tmp_path_factory):
  """(folder, the network of transformers that it was written from)."""
  folder = tmp_path_factory.mktemp('release')
  torch.manual_seed(0)
  network = transformers.BertForPreTraining(transformers.BertConfig(**CONFIG)).eval()
  with torch.no_grad():
    for p in network.parameters():
      p.add_(0.1 * torch.randn_like(p))
  old = lambda name: name.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')
  tensors = {
    old(name): x.numpy()
    for name, x in network.state_dict().items()
    if not name.startswith('cls.predictions.decoder')
  }
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  (folder / 'config.json').write_text(json.dumps(CONFIG))
  (folder / 'vocab.txt').write_text('\n'.join(PIECES) + '\n')
  return folder, network


@pytest.mark.parametrize('kind', ['mlm_pair', 'mlm'])
def test_a_run_begins_at_the_loss_of_the_release(release, kind):
  folder, network = release
  objective = small.objective(kind, activation='gelu')
  fresh = small.parameters(objective, seed=1)
  params, lines = initial_weights.parameters(fresh, f'hf:{folder}', objective, folder)
  assert not [line for line in lines if line.startswith(('fresh', 'differs'))]
  ignored = [line.split(':')[1].split()[0] for line in lines if line.startswith('ignored')]
  assert all(path.startswith('pair_head/') for path in ignored)
  assert bool(ignored) == (kind == 'mlm')  # RoBERTa-wwm-ext has no pair head
  batch = small.batch()
  loss = float(small.evaluate(objective, params, batch)[0][0])
  labels = small.with_targets(batch, np.full(batch['input_ids'].shape, -100))
  as_long = lambda x: torch.tensor(np.asarray(x)).long()
  with torch.no_grad():
    out = network(
      input_ids=as_long(batch['input_ids']),
      attention_mask=as_long(batch['segment_ids']),
      token_type_ids=as_long(batch['token_type_ids']),
    )
  entropy = torch.nn.functional.cross_entropy
  wished = entropy(out.prediction_logits.transpose(1, 2), as_long(labels))
  if kind == 'mlm_pair':
    wished += entropy(out.seq_relationship_logits, as_long(batch['pair_labels']))
  assert abs(loss - float(wished)) < 1e-5


def test_a_text_with_another_vocabulary_is_refused(release, tmp_path):
  objective = small.objective('mlm_pair', activation='gelu')
  (tmp_path / 'vocab.txt').write_text('\n'.join([*PIECES[:5], *reversed(PIECES[5:])]) + '\n')
  with pytest.raises(errors.UserError, match='vocabular'):
    initial_weights.parameters(small.parameters(objective), f'hf:{release[0]}', objective, tmp_path)
