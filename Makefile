# Two commands: `make demo` and `make test`. Both bring their own environment (.venv), and their own Python where the
# machine's is too old. VENV=DIR puts it elsewhere; PYTHON=/path/to/python3.12 chooses the interpreter.
SHELL := bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error this Makefile needs GNU make 3.82 or newer (on a Mac: brew install make, then gmake))
endif

VENV ?= .venv
PYTHON ?=
DEMO ?= demo
# Masked tokens alone, and DeBERTa's attention: what learns most in five minutes (docs/settings.md).
DEMO_CONFIG := configs/bert.py:tiny,objective=mlm,format=full_sentences,encoder=disentangled
# Without DeBERTa's mask decoder, which transformers lacks.
DEMO_FIELDS := --config.encoder.absolute_positions=none
JOBS ?= 2
# An absolute address, so that a recipe may change folder; the interpreter of the environment.
PY := $(abspath $(VENV))/bin/python
READY := $(VENV)/.ready
# Off a TPU, jax must not look for one, and libtpu (if installed) must not guard a chip that is not there.
export JAX_PLATFORMS ?= cpu
export ALLOW_MULTIPLE_LIBTPU_LOAD ?= 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help env demo test test-slow test-hf4 test-tools test-gpu-pins kernels lint clean

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

env: $(READY)  ## the environment in .venv, with the tested versions

# The extras of setup.py that the environment has besides dev, as ',tpu,wandb': those whose packages are all there.
define EXTRAS
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement

def there(package, extra):
  asked = [Requirement(line) for line in metadata.requires(package) or ()]
  asked = [r for r in asked if r.marker and r.marker.evaluate({'extra': extra}) and not r.marker.evaluate({'extra': ''})]
  return all(installed(r.name) and all(there(r.name, inner) for inner in r.extras) for r in asked)

def installed(package):
  return any(metadata.distributions(name=package))

if installed('bertzoo_jax'):
  extras = metadata.metadata('bertzoo_jax').get_all('Provides-Extra')
  print(*('', *(e for e in extras if e != 'dev' and there('bertzoo_jax', e))), sep=',')
endef
export EXTRAS

$(READY): setup.py constraints.txt
	@recent() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
	if [ -n "$$(ls -A "$(VENV)" 2>/dev/null)" ] && [ ! -e "$(VENV)/pyvenv.cfg" ]; then
	  echo 'error: VENV=$(VENV) holds other files and is no environment: choose another folder.' >&2; exit 2
	fi
	python= extras=
	# pyenv's python3.12 answers only where that version was chosen
	for p in $(PYTHON) python3.12 python3.13 python3 "$${PYENV_ROOT:-$${HOME:-}/.pyenv}"/versions/3.1[23].*/bin/python; do
	  if recent "$$p"; then python=$$p; break; fi
	done
	same() { [ -z "$(PYTHON)" ] || [ "$$("$(PY)" --version)" = "$$("$(PYTHON)" --version)" ]; }
	if [ -e $@ ] && recent "$(PY)" && same; then
	  extras=$$("$(PY)" -c "$$EXTRAS")
	  echo "environment: $(VENV) is updated; what else is installed there stays"
	elif [ -n "$$python" ]; then
	  echo "environment: $(VENV), with $$($$python --version)"
	  "$$python" -m venv --clear "$(VENV)"
	else
	  echo "environment: $(VENV); no Python 3.12 or 3.13 with venv here, so uv fetches 3.12"
	  uv=$$(command -v uv || true)
	  if [ -z "$$uv" ]; then
	    python3 -m pip install --quiet --target "$(VENV)-uv" uv || { echo 'error: neither Python 3.12, nor uv, nor pip to install uv: install one of them.' >&2; exit 2; }
	    uv="$(VENV)-uv/bin/uv"
	  fi
	  "$$uv" venv --quiet --seed --clear --python 3.12 "$(VENV)"
	fi
	echo 'environment: installing the tested versions (a minute or two)'
	PYTHONWARNINGS=ignore "$(PY)" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev$$extras]"
	touch $@

demo: $(READY)  ## sample text → corpus → a small network → a Hugging Face directory → the gaps that it fills
	@mkdir -p $(DEMO)
	step() { printf '\n\033[1m%s\033[0m\n$$ %s\n' "$$1" "$${*:2}"; shift; "$$@"; }
	python() { "$(PY)" "$$@"; }
	step '1/5  Sample text to a corpus' python -m bertzoo_jax.prepare --config $(DEMO_CONFIG) \
	  --source data/sample/federalist.txt --source data/sample/sherlock.txt --source data/sample/time_machine.txt --out $(DEMO)/corpus
	step '2/5  Pretraining (some minutes on two cores)' python -m bertzoo_jax.pretrain --config $(DEMO_CONFIG) $(DEMO_FIELDS) \
	  --corpus $(DEMO)/corpus --workdir $(DEMO)/run
	rm -rf $(DEMO)/hf
	step '3/5  A Hugging Face directory, reloaded and compared' python -m bertzoo_jax.export --workdir $(DEMO)/run --out $(DEMO)/hf
	step '4/5  Filling a mask with that directory' python -m bertzoo_jax.fill_mask --model $(DEMO)/hf \
	  --text 'The people of the United [MASK] have the power to make laws.'
	printf '%s\n' '' \
	  'Made:  $(DEMO)/corpus   the sample as tokens, with its data report in manifest.json' \
	  '       $(DEMO)/run      checkpoints, metrics.jsonl, loss.png, TensorBoard files, the resolved config' \
	  "       $(DEMO)/hf       the model for Hugging Face: AutoModelForMaskedLM.from_pretrained('$(DEMO)/hf')" \
	  '' \
	  'Next:  source $(VENV)/bin/activate' \
	  '       python -m bertzoo_jax.show --config $(DEMO_CONFIG) --corpus $(DEMO)/corpus     what the model sees' \
	  '       the same text as RoBERTa: configs/roberta.py:tiny in the commands above, and other folders' \
	  '       your own language: docs/my_language.md'
	step '5/5  What it has learned' python -m bertzoo_jax.evaluate --workdir $(DEMO)/run --corpus $(DEMO)/corpus --gaps 10 --require 1.5

test: $(READY)  ## the tests
	@"$(PY)" -m pytest -q -n $(JOBS) --dist loadfile --max-worker-restart=0 tests

test-slow: $(READY)  ## the long proofs: many kills, 50 million sentences
	@"$(PY)" -m pytest -q -m slow tests

# Directories of Hugging Face under the last transformers 4, in an environment of its own.
OLD := $(VENV)-hf4
$(OLD)/.ready: $(READY)
	@"$(PY)" -m venv --clear $(OLD)
	grep -Ev '^(transformers|sentence-transformers|tokenizers|huggingface_hub|datasets|fsspec)==' constraints.txt > $(OLD)/constraints.txt
	PYTHONWARNINGS=ignore $(OLD)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c $(OLD)/constraints.txt -e '.[dev]' transformers==4.57.6
	touch $@

test-hf4: $(OLD)/.ready  ## what is exported and read, with transformers 4.57.6
	@USE_TF=0 $(OLD)/bin/python -m pytest -q -n $(JOBS) --dist loadfile tests/hf tests/export/test_export_row_heads.py \
	  tests/export/test_convert.py tests/export/test_export_traps.py tests/export/test_export_crossings.py

test-tools: $(OLD)/.ready  ## every tool on every family's export, with transformers 4.57.6 and the newest
	@for python in "$(PY)" $(OLD)/bin/python; do
	  USE_TF=0 "$$python" -m pytest -q -n $(JOBS) --dist loadgroup -m 'slow or not slow' tests/export/test_tools.py
	done

# A lent GPU may have older versions than ours (bench/gpu_queue.py).
PINS := $(VENV)-gpu-pins
test-gpu-pins: $(READY)  ## kernels and train step with jax 0.11.2
	@if [ ! -e $(PINS)/.ready ]; then
	  "$(PY)" -m venv --clear $(PINS)
	  grep -Ev '^(jax|jaxlib|libtpu)==' constraints.txt > $(PINS)/constraints.txt
	  PYTHONWARNINGS=ignore $(PINS)/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c $(PINS)/constraints.txt jax==0.11.2 flax optax orbax-checkpoint ml_collections tokenizers \
	    sentencepiece pyarrow rich safetensors matplotlib scipy pytest pytest-xdist
	  touch $(PINS)/.ready
	fi
	PYTHONPATH=. $(PINS)/bin/python -m pytest -q -n $(JOBS) --dist loadfile tests/kernels tests/training/test_step.py

kernels: $(READY)  ## the kernels' cycles on TPUs, with the libtpu of the environment (an hour)
	@PYTHONPATH=. "$(PY)" bench/tpu_kernels.py

lint: $(READY)  ## ruff: rules and layout
	@"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .

clean:  ## removes the environment and the demo
	rm -rf "$(VENV)" "$(VENV)-uv" "$(OLD)" "$(PINS)" $(DEMO)
