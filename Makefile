# One line of logic each; the work is in `muster`, `setup` and `tests/run.py`.
SHELL := /bin/bash
PYTHON ?= python3
STACK ?= local
JOB ?= slurm/jobs/smoke.sbatch
MUSTER := .venv/bin/muster
# Something to print where the environment was made for another folder: its programs would run that one's code.
MOVED := $(shell head -n 3 $(MUSTER) 2>/dev/null | grep -qF '$(CURDIR)/.venv/' || echo moved)

.DEFAULT_GOAL := help
.PHONY: help setup demo up status ssh submit fabric teardown check cost plan env test test-quick test-nightly test-aws test-gpu lint bench bench-aws bench-simulator bench-trainer golden clean-cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {gsub(/[$$][$$]/, "$$", $$2); printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\n  STACK=%s (a file in stacks/), JOB=%s, FORCE=1, WAIT=1, ARGS=...\n' '$(STACK)' '$(JOB)'

# Standard output belongs to the target that asked: `eval "$$(make -s env)"`.
$(MUSTER): requirements.lock pyproject.toml $(if $(MOVED),again)
	@$(PYTHON) -m setup apt venv >&2
	@touch $@

.PHONY: again
again:

setup: ## Python, Pulumi, Docker, node image, training environment; only what is missing
	@$(PYTHON) -m setup

demo: setup ## set-up, a cluster, a training run on 2 nodes, its report, a summary
	@$(MUSTER) demo --stack $(STACK)

# A cluster elsewhere needs no engine and no node image here.
PARTS := $(if $(shell grep -sE '^ +target: +aws\b' '$(or $(MUSTER_STACKS),stacks)/Pulumi.$(STACK).yaml'),apt venv pulumi)

up: ## make the cluster what its file says (FORCE=1: although jobs run; NO_PREFLIGHT=1)
	@$(PYTHON) -m setup $(PARTS)
	@$(MUSTER) up --stack $(STACK) $(if $(FORCE),--force) $(if $(WAIT),--wait) $(if $(NO_PREFLIGHT),--no-preflight)

status: $(MUSTER) ## nodes, queue, health, cost per hour
	@$(MUSTER) status --stack $(STACK)

ssh: $(MUSTER) ## a shell on the login node (NODE=gpu-1: on that one)
	@$(MUSTER) ssh --stack $(STACK) $(NODE)

submit: $(MUSTER) ## run JOB=file on the cluster and follow its log (NODES=4; ARGS=... are given to it)
	@$(MUSTER) submit --stack $(STACK) $(if $(NODES),--nodes $(NODES)) "$(JOB)" $(ARGS)

fabric: $(MUSTER) ## measure the network of nodes, drain slow ones (NODES=..., ARGS=--no-drain)
	@$(MUSTER) fabric --stack $(STACK) $(if $(PARTITION),--partition $(PARTITION)) $(if $(NODES),--nodes '$(NODES)') $(ARGS)

teardown: $(MUSTER) ## remove everything, print a receipt of it (FORCE=1: although jobs run)
	@$(MUSTER) teardown --stack $(STACK) --yes $(if $(FORCE),--force)

check: $(MUSTER) ## check the stack file; starts nothing
	@$(MUSTER) check --stack $(STACK)

cost: $(MUSTER) ## what an hour costs
	@$(MUSTER) cost --stack $(STACK)

# Whoever asks for nothing is told so before an environment is made.
PLANNED := $(or $(and $(MODEL),$(TOKENS)),$(filter --model% --tokens% --help -h,$(ARGS)))
plan: $(if $(PLANNED),$(MUSTER)) ## time and money of a run (STACK=aws-p5en-lustre MODEL=llama-8b TOKENS=1e12)
	@$(if $(PLANNED),,echo "make plan: MODEL= and TOKENS= are needed; for example: make plan STACK=aws-p5en-lustre MODEL=llama-8b TOKENS=1e12" >&2; exit 2)
	@.venv/bin/python -m simulator plan --stack $(STACK) $(if $(MODEL),--model $(MODEL)) $(if $(TOKENS),--tokens $(TOKENS)) $(ARGS)

env: $(MUSTER) ## shell lines for plain Pulumi: eval "$$(make -s env)"
	@$(MUSTER) env

test: setup ## lint, then all tests: pure, engine, e2e, faults; one summary
	@$(PYTHON) -m setup browser || true
	@.venv/bin/python -m tests.run; code=$$?; $(PYTHON) -m setup stop-docker --if-started-by-last-run >/dev/null; exit $$code

test-quick: $(MUSTER) ## lint and the pure tests, before each commit (3 minutes)
	@command -v shellcheck >/dev/null || $(PYTHON) -m setup apt
	@.venv/bin/python -m tests.run --quick

test-nightly: setup ## all tests and the long drills
	@$(PYTHON) -m setup.browser || true
	@.venv/bin/python -m tests.run --nightly; code=$$?; $(PYTHON) -m setup stop-docker --if-started-by-last-run >/dev/null; exit $$code

test-aws: setup ## a cluster in a real account, for money (MUSTER_TEST_AWS=account says yes)
	@.venv/bin/python -m tests.aws_engine $(ARGS)

test-gpu: ## tests on this machine's GPU, with the torch of PYTHON=...
	@$(PYTHON) -m tests.gpu $(ARGS)

lint: $(MUSTER) ## ruff, mypy, shellcheck
	@command -v shellcheck >/dev/null || $(PYTHON) -m setup apt
	@.venv/bin/python -m tests.lint

bench: setup ## measure bring-up, change and teardown, each figure beside its reference
	@.venv/bin/python benchmarks/bringup.py

bench-aws: setup ## measure check, preview and API calls of clusters on AWS, with moto in its place
	@.venv/bin/python benchmarks/aws.py && .venv/bin/python benchmarks/aws_engine.py

bench-simulator: setup ## refit the simulator without each source in turn; calibrate a cluster and predict its runs
	@.venv/bin/python -m benchmarks.simulator_fit && .venv/bin/python benchmarks/simulator_cluster.py

bench-trainer: setup ## measure the trainer: overhead, start, checkpoints, recovery
	@.venv/bin/python benchmarks/trainer.py

golden: $(MUSTER) ## write again what is generated from the spec and the trainer's settings
	@$(MUSTER) golden
	@.venv/bin/python -m tests.aws_target.golden
	@.venv/bin/python -m trainer settings --markdown >docs/trainer-settings.md

clean-cache: $(MUSTER) ## drop images, training environments and tools
	@$(MUSTER) cache drop
