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
JOBS ?= 2
# An absolute address, so that a recipe may change folder; the interpreter of the environment.
PY := $(abspath $(VENV))/bin/python
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
# Off a TPU, jax must not look for one, and libtpu (if installed) must not guard a chip that is not there.
export JAX_PLATFORMS ?= cpu
export ALLOW_MULTIPLE_LIBTPU_LOAD ?= 1
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Without compiled modules every process would compile those of jax and TensorFlow: half a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo test test-all test-slow test-hf4 test-tools test-gpu-pins kernels lint clean

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

env: $(DEV)  ## the environment in .venv, with the tested versions

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

# `demo` needs the packages of a run, all else needs those of development too.
$(READY) $(DEV): setup.py constraints.txt
	@recent() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
	if [ -n "$$(ls -A "$(VENV)" 2>/dev/null)" ] && [ ! -e "$(VENV)/pyvenv.cfg" ]; then
	  echo 'error: VENV=$(VENV) holds other files and is no environment: choose another folder.' >&2; exit 2
	fi
	python= extras=
	# pyenv's python3.12 answers only where that version was chosen
	for p in $(PYTHON) python3.12 python3.13 python3 "$${PYENV_ROOT:-$${HOME:-}/.pyenv}"/versions/3.1[23].*/bin/python; do
	  if recent "$$p"; then python=$$p; break; fi
	done
	uv=$$(command -v uv || ls "$(VENV)-uv/bin/uv" 2>/dev/null || true)
	if [ -z "$$uv" ] && "$${python:-python3}" -m pip install --quiet --disable-pip-version-check --target "$(VENV)-uv" uv; then
	  uv="$(VENV)-uv/bin/uv"
	fi
	same() { [ -z "$(PYTHON)" ] || [ "$$("$(PY)" --version)" = "$$("$(PYTHON)" --version)" ]; }
	if [ -e $(READY) ] && recent "$(PY)" && same; then
	  extras=$$("$(PY)" -c "$$EXTRAS")
	  echo "environment: $(VENV) is updated; what else is installed there stays"
	elif [ -n "$$uv" ] && "$$uv" venv --quiet --seed --clear --python "$${python:-3.12}" "$(VENV)"; then
	  echo "environment: $(VENV), with $$("$(PY)" --version), by uv"
	elif [ -n "$$python" ]; then
	  "$$python" -m venv --clear "$(VENV)"
	else
	  echo 'error: neither Python 3.12 or 3.13 with venv, nor uv, nor pip to install uv: install one of them.' >&2; exit 2
	fi
	if [ '$@' = '$(DEV)' ]; then extras=",dev$$extras"; fi
	packages=".$${extras:+[$${extras#,}]}"
	echo 'environment: installing the tested versions'
	if [ -z "$$uv" ] || ! "$$uv" pip install --quiet --python "$(PY)" -c constraints.txt -e "$$packages"; then
	  echo 'environment: uv cannot, so pip installs, which takes minutes'
	  PYTHONWARNINGS=ignore "$(PY)" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$$packages"
	fi
	touch $(READY) $@

demo: $(READY)  ## sample text → corpus → a small network → a Hugging Face directory → the gaps that it fills
	@"$(PY)" -m bertzoo_jax.demo --out $(DEMO)

test: $(DEV)  ## the tests: every promise, one example of each kind
	@"$(PY)" -m pytest -q -n $(JOBS) --dist loadfile --max-worker-restart=0 tests

test-all: test  ## the same, then siblings, crossings and whole runs (tests/rest.txt)
	@"$(PY)" -m pytest -q -n $(JOBS) --dist loadfile --max-worker-restart=0 -m 'rest and not slow' tests

test-slow: $(DEV)  ## the long proofs: many kills, 50 million sentences
	@"$(PY)" -m pytest -q -m slow tests

# $(call install,ENVIRONMENT,packages): by uv where it is, else by pip.
define install
	uv=$$(command -v uv || ls "$(VENV)-uv/bin/uv" 2>/dev/null || true)
	if [ -n "$$uv" ]; then
	  "$$uv" pip install --quiet --python $(1)/bin/python $(2)
	else
	  PYTHONWARNINGS=ignore $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
	fi
endef

# Directories of Hugging Face under the last transformers 4, in an environment of its own.
OLD := $(VENV)-hf4
$(OLD)/.ready: $(DEV)
	@"$(PY)" -m venv --clear $(OLD)
	grep -Ev '^(transformers|sentence-transformers|tokenizers|huggingface_hub|datasets|fsspec)==' constraints.txt > $(OLD)/constraints.txt
	$(call install,$(OLD),-c $(OLD)/constraints.txt -e '.[dev]' transformers==4.57.6)
	touch $@

test-hf4: $(OLD)/.ready  ## what is exported and read, with transformers 4.57.6
	@USE_TF=0 $(OLD)/bin/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' tests/hf tests/export/test_export_row_heads.py \
	  tests/export/test_convert.py tests/export/test_export_crossings.py \
	  tests/tokenizers/test_growth.py tests/tokenizers/test_as_published.py

test-tools: $(OLD)/.ready  ## every tool on every family's export, with transformers 4.57.6 and the newest
	@for python in "$(PY)" $(OLD)/bin/python; do
	  USE_TF=0 "$$python" -m pytest -q -n $(JOBS) --dist loadgroup -m 'slow or not slow' tests/export/test_tools.py
	done

# A lent GPU may have older versions than ours (bench/gpu_queue.py).
PINS := $(VENV)-gpu-pins
test-gpu-pins: $(DEV)  ## kernels and train step with jax 0.11.2
	@if [ ! -e $(PINS)/.ready ]; then
	  "$(PY)" -m venv --clear $(PINS)
	  grep -Ev '^(jax|jaxlib|libtpu)==' constraints.txt > $(PINS)/constraints.txt
	  $(call install,$(PINS),-c $(PINS)/constraints.txt jax==0.11.2 flax optax orbax-checkpoint \
	    ml_collections tokenizers sentencepiece pyarrow rich safetensors matplotlib scipy pytest pytest-xdist)
	  touch $(PINS)/.ready
	fi
	PYTHONPATH=. $(PINS)/bin/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' tests/kernels tests/training/test_step.py

kernels: $(DEV)  ## the kernels' cycles on TPUs, with the libtpu of the environment (an hour)
	@PYTHONPATH=. "$(PY)" bench/tpu_kernels.py

lint: $(DEV)  ## ruff: rules and layout
	@"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .

clean:  ## removes the environment and the demo
	rm -rf "$(VENV)" "$(VENV)-uv" "$(OLD)" "$(PINS)" $(DEMO)
