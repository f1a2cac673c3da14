"""Losses of pretraining in torch, of networks of transformers or written from the papers."""

import numpy as np
import safetensors.torch
import torch
import torch_boundary
import torch_deberta
import transformers
from torch.nn import functional as F

from bertzoo_jax.hf import weights
from tests.model import test_two_stream as two_stream

OFFSETS = 2  # places in a span that are told apart
WORD = 'encoder/embeddings/word/embedding'


def masked(logits, t):
  rows = torch.arange(len(logits))[:, None]
  logits_BVP = logits[rows, t['masked_positions'].long()].transpose(1, 2)
  nll = F.cross_entropy(logits_BVP, t['masked_targets'].long(), reduction='none')
  return (nll * t['masked_weights']).sum() / t['masked_weights'].sum()


def inputs(t, *names):
  """Arguments of a network of transformers."""
  known = dict(input_ids='input_ids', attention_mask='segment_ids', token_type_ids='token_type_ids')
  return {name: t[known[name]].long() for name in ('attention_mask', *names)}


class Transformers(torch.nn.Module):
  """Classes of transformers: masked tokens, and pairs where there is a head for them."""

  def __init__(self, names, folders):
    super().__init__()
    made = [getattr(transformers, n).from_pretrained(f) for n, f in zip(names, folders)]
    self.networks = torch.nn.ModuleList(made).eval()

  def loss(self, t, _):
    (network,) = self.networks
    if 'pair_labels' not in t:
      return masked(network(**inputs(t, 'input_ids')).logits, t)
    out = network(**inputs(t, 'input_ids', 'token_type_ids'))
    pairs = out.sop_logits if 'sop_logits' in out else out.seq_relationship_logits
    return masked(out.prediction_logits, t) + F.cross_entropy(pairs, t['pair_labels'].long())


class Electra(Transformers):
  """Both networks, with one module of embeddings (Clark et al. 2020 §2)."""

  def __init__(self, names, folders):
    super().__init__(names, folders)
    self.discriminator, self.generator = self.networks
    self.generator.electra.embeddings = self.discriminator.electra.embeddings
    words = self.discriminator.electra.embeddings.word_embeddings.weight
    self.generator.generator_lm_head.weight = words

  def loss(self, t, _):
    mlm = masked(self.generator(**inputs(t, 'input_ids', 'token_type_ids')).logits, t)
    original, filled = torch_deberta.original_and_filled(t)
    scores = self.discriminator(input_ids=filled, **inputs(t, 'token_type_ids')).logits
    wrong = (original != filled).float()
    nll = F.binary_cross_entropy_with_logits(scores, wrong, reduction='none')
    return mlm + 50.0 * nll[t['segment_ids'] > 0].mean()


class SpanBert(Transformers):
  """The boundary head of the file beside the network's (Joshi et al. 2020 §3.2)."""

  def __init__(self, names, folders):
    super().__init__(names, folders)
    self.head = torch.nn.ParameterDict(safetensors.torch.load_file(folders[0] / weights.HEADS_FILE))

  def loss(self, t, _):
    (network,) = self.networks
    out = network(**inputs(t, 'input_ids', 'token_type_ids'), output_hidden_states=True)
    words_VD, eps = network.get_input_embeddings().weight, network.config.layer_norm_eps
    boundary = torch_boundary.loss(self.head, out.hidden_states[-1], words_VD, t, OFFSETS, eps)
    return masked(out.logits, t) + boundary / len(list(torch_boundary.told(t, OFFSETS)))


class Deberta:
  """DeBERTa v1 from the papers' equations. parameters: {our path: tensor}."""

  def __init__(self, objective, params):
    self.objective = objective
    flat = weights.flatten(params)
    self.parameters = {k: torch.tensor(x, requires_grad=True) for k, x in flat.items()}

  def loss(self, t, _):
    return torch_deberta.Deberta(self.parameters, self.objective.networks[0].encoder).mlm_loss(t)


class DebertaV3(Deberta):
  """The generator's loss + 50 · the discriminator's, whose words are E_G without gradient + Δ (He
  et al. 2021 §3.3). Both networks learn at once.
  """

  def loss(self, t, _):
    main, generator = self.objective.networks
    prefix = 'generator/'
    p = self.parameters
    of_generator = {k.removeprefix(prefix): x for k, x in p.items() if k.startswith(prefix)}
    of_main = {**p, WORD: of_generator[WORD].detach() + p[WORD]}
    mlm = torch_deberta.Deberta(of_generator, generator.encoder).mlm_loss(t)
    return mlm + 50.0 * torch_deberta.Deberta(of_main, main.encoder).replaced_loss(t)


class Xlnet:
  """XLNetLMHeadModel, the memory handed on from step to step."""

  def __init__(self, objective, params):
    self.model = two_stream.torch_twin(objective.networks[0].encoder, params)
    self.parameters = dict(self.model.named_parameters())
    self.memory = np.zeros(objective.carry(4).shape, np.float32)

  def loss(self, t, _):
    batch = {name: x.numpy() for name, x in t.items()}
    logits, self.memory = two_stream.torch_logits(self.model, batch, self.memory)
    return F.cross_entropy(logits.flatten(0, 1), t['masked_targets'].flatten().long())
