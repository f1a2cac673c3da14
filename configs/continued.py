"""Going on from published weights: the encoder and the tokenizer are those of a Hugging Face
directory, DIR or OWNER/NAME of the hub.

    bertzoo prepare --config configs/continued.py:hf:DIR --source 'texts/*.txt' \
      --tokenizer hf:DIR --out CORPUS
    bertzoo pretrain --config configs/continued.py:hf:DIR --corpus CORPUS --workdir WORKDIR \
      --init hf:DIR

The argument is hf:DIR[,section=part][,steps=N]. With `prepare --add N` or another tokenizer,
`pretrain` also takes --vocabulary=carry. Against forgetting, give the general text as a second
corpus: `--corpus CORPUS --corpus GENERAL --config.mixture='(0.8,0.2)'`.

Masked tokens alone, rows of at most 512 tokens, AdamW. The rate warms up again over 6 % of the
steps and falls to 0; its peak is 2e-4 up to a width of 512, 1e-4 up to 768, else 5e-5. A second
stage of pretraining is described by Gururangan et al. 2020 (arXiv:2004.10964). Steps, rows and
rates are not theirs, and were not searched. `,objective=replaced_token` takes the weights of two
networks (docs/electra.md).
"""

from bertzoo_jax import parts
from bertzoo_jax.common import hub
from bertzoo_jax.configs import arguments
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import architectures
from bertzoo_jax.hf import weights

STEPS = 12_500
MOST_TOKENS = 512


def _continued(address):
  folder = hub.folder(address.removeprefix(hub.PREFIX), ['config.json'])
  content = weights.read_json(folder / 'config.json')
  found = architectures.reader(content)
  fields, _ = architecture.encoder(found, content)
  name, section = found.part, architecture.section(found, fields)
  encoder = getattr(parts, name)(**{key: x for key, x in section.items() if key != 'name'})
  width, masked = encoder.hidden_size, f'{found.name.split("For")[0]}ForMaskedLM'
  most = encoder.get('max_positions') or content.get('max_position_embeddings') or MOST_TOKENS
  return parts.experiment(
    tokenizer=parts.published(),
    corpus=parts.corpus(splitter='rules:generic'),
    format=parts.full_sentences(),
    masking=parts.token(),
    encoder=encoder,
    objective=parts.mlm(),
    optimizer=parts.adamw(),
    schedule=parts.linear_after_warmup(
      learning_rate=2e-4 if width <= 512 else 1e-4 if width <= 768 else 5e-5,
      warmup=STEPS * 6 // 100,
    ),
    length=min(most, MOST_TOKENS),
    batch_size=256,
    phases=((STEPS, {}),),
    hf=masked if masked in architectures.ARCHITECTURES else found.name,
    run=parts.run(),
  )


def get_config(argument=''):
  """argument: hf:DIR[,section=part][,steps=N]."""
  address, *_ = argument.split(',')
  if not address.startswith(hub.PREFIX):
    raise ValueError(f'{address!r} names no directory: write configs/continued.py:hf:DIR.')
  return arguments.config(argument, {address: lambda: _continued(address)})
