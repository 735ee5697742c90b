# Short names for `muster`, `setup` and `tests/run.py`, which do the work.
SHELL := /bin/bash
PYTHON ?= python3
# Also for `STACK=` without a name.
override STACK := $(or $(strip $(STACK)),local)
JOB ?= slurm/jobs/smoke.sbatch
MUSTER := .venv/bin/muster
# Not empty if the environment was created in another folder: its programs would run the code there.
MOVED := $(shell head -n 3 $(MUSTER) 2>/dev/null | grep -qF '$(CURDIR)/.venv/' || echo moved)

# Without bytecode files every command compiles what it imports again: 2 s instead of 1 s for the AWS resources alone.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up status ssh submit fabric teardown backup restore rehearse upgrade check cost plan env test test-quick test-nightly test-aws test-gpu lint
.PHONY: bench bench-aws bench-simulator bench-trainer soak golden clean-cache release verify-release

help: ## print this list
	@if [ -t 1 ]; then bold=$$'\033[1m' plain=$$'\033[0m'; fi; \
	awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
	  '/^[a-z-]+:.*## / {gsub(/[$$][$$]/, "$$", $$2); printf "  %s%-16s%s %s\n", bold, $$1, plain, $$2}' $(MAKEFILE_LIST)
	@printf '\n  STACK=%s (a file in stacks/), JOB=%s, FORCE=1, WAIT=1, ARGS=...\n' '$(STACK)' '$(JOB)'

# Setup prints to stderr, because stdout belongs to the calling target: `eval "$$(make -s env)"`.
$(MUSTER): requirements.lock pyproject.toml $(if $(MOVED),again)
	@$(PYTHON) -m setup apt venv >&2
	@touch $@

.PHONY: again
again:

setup: ## install what is missing: Python, Pulumi, Docker, node image, training environment
	@$(PYTHON) -m setup $(if $(SLURM),--slurm $(SLURM))

demo: setup ## set up this machine, create a cluster, train on 2 nodes, print the report
	@$(MUSTER) demo --stack $(STACK)

up: $(MUSTER) ## create or update the cluster (FORCE=1: even if jobs are running; NO_PREFLIGHT=1)
	@phases=$$($(MUSTER) setup-phases --stack $(STACK)) && $(PYTHON) -m setup $$phases
	@$(MUSTER) up --stack $(STACK) $(if $(FORCE),--force) $(if $(WAIT),--wait) $(if $(NO_PREFLIGHT),--no-preflight)

status: $(MUSTER) ## show nodes, queue, health, cost per hour (ARGS=--json)
	@$(MUSTER) status --stack $(STACK) $(ARGS)

ssh: $(MUSTER) ## open a shell on the login node (NODE=gpu-1: on that node)
	@$(MUSTER) ssh --stack $(STACK) $(NODE)

submit: $(MUSTER) ## run JOB=file on the cluster and follow its log (NODES=4; ARGS=... for the job)
	@$(MUSTER) submit --stack $(STACK) $(if $(NODES),--nodes $(NODES)) "$(JOB)" $(ARGS)

fabric: $(MUSTER) ## measure the network between nodes, drain slow ones (NODES=..., ARGS=--no-drain)
	@$(MUSTER) fabric --stack $(STACK) $(if $(PARTITION),--partition $(PARTITION)) $(if $(NODES),--nodes '$(NODES)') $(ARGS)

teardown: $(MUSTER) ## remove the cluster, print a receipt (FORCE=1: even if jobs run; DELETE_STORAGE=1)
	@$(MUSTER) teardown --stack $(STACK) --yes $(if $(FORCE),--force) $(if $(DELETE_STORAGE),--delete-storage)

backup: $(MUSTER) ## write queue, accounting and shared files to an archive (TO=folder, NO_FILES=1)
	@$(MUSTER) backup --stack $(STACK) $(if $(TO),--to "$(TO)") $(if $(NO_FILES),--no-files)

# A missing archive is reported before an environment is created.
restore: $(if $(ARCHIVE),$(MUSTER)) ## restore ARCHIVE=file to the running cluster (OVERWRITE=1, NO_FILES=1)
	@$(if $(ARCHIVE),,echo "make restore: ARCHIVE= is required; for example: make restore ARCHIVE=FILE; \`.venv/bin/muster backup list\` shows them" >&2; exit 2)
	@$(MUSTER) restore --stack $(STACK) $(if $(OVERWRITE),--overwrite) $(if $(NO_FILES),--no-files) "$(ARCHIVE)"

rehearse: $(MUSTER) ## rehearse a stack in a simulated cloud on this machine (ARGS="--seed 2")
	@$(MUSTER) rehearse --stack $(STACK) $(ARGS)

# The nodes get their packages from the node image of the newest release.
upgrade: $(MUSTER) ## change the release of Slurm and keep all jobs (TO=26.05, ARGS=--drill, BACK=1)
	@phases=$$($(MUSTER) setup-phases --stack $(STACK) --slurm $(or $(TO),newest)) && $(PYTHON) -m setup $$phases
	@$(MUSTER) upgrade --stack $(STACK) $(if $(TO),--to $(TO)) $(if $(BACK),--back) $(ARGS)

check: $(MUSTER) ## validate the stack file without creating anything (ARGS=--json)
	@$(MUSTER) check --stack $(STACK) $(ARGS)

cost: $(MUSTER) ## show what each part costs per hour (ARGS=--json)
	@$(MUSTER) cost --stack $(STACK) $(ARGS)

# Missing arguments are reported before an environment is created.
PLANNED := $(or $(and $(MODEL),$(TOKENS)),$(filter --model% --tokens% --help -h,$(ARGS)))
plan: $(if $(PLANNED),$(MUSTER)) ## choose machines for a run (STACK=aws-p5en-lustre MODEL=llama-8b TOKENS=1e12)
	@$(if $(PLANNED),,echo "make plan: MODEL= and TOKENS= are required; for example: make plan STACK=aws-p5en-lustre MODEL=llama-8b TOKENS=1e12" >&2; exit 2)
	@$(MUSTER) plan --stack $(STACK) $(if $(MODEL),--model $(MODEL)) $(if $(TOKENS),--tokens $(TOKENS)) $(ARGS)

env: $(MUSTER) ## print variables for the Pulumi CLI: eval "$$(make -s env)"
	@$(MUSTER) env

test: setup ## run lint and the tests of every layer: pure, trainer, engine, e2e, faults
	@$(PYTHON) -m setup browser || true
	@$(if $(SLURM),MUSTER_TEST_SLURM=$(SLURM)) .venv/bin/python -m tests.run; code=$$?; $(PYTHON) -m setup stop-docker --if-started-by-last-run >/dev/null; exit $$code

test-quick: $(MUSTER) ## run lint and the pure tests before a commit (under 3 minutes)
	@command -v shellcheck >/dev/null || $(PYTHON) -m setup apt
	@.venv/bin/python -m tests.run --quick

test-nightly: setup ## run all tests, including the long ones (ARGS=--part=clusters: a part of them)
	@$(PYTHON) -m setup browser || true
	@$(PYTHON) -m setup fault-tools || true
	@$(PYTHON) -m setup kubernetes || true
	@$(PYTHON) -m setup trainer-image || true
	@$(PYTHON) -m setup virtual-machines || true
	@.venv/bin/python -m tests.run --nightly $(ARGS); code=$$?; $(PYTHON) -m setup stop-docker --if-started-by-last-run >/dev/null; exit $$code

test-aws: setup ## test on a real AWS account, which costs money (MUSTER_TEST_AWS=account)
	@.venv/bin/python -m tests.infra.targets.aws.with_engine $(ARGS)

test-gpu: ## run the tests that need a GPU, with the torch of PYTHON=...
	@$(PYTHON) -m tests.gpu $(ARGS)

lint: $(MUSTER) ## run ruff, mypy, shellcheck, pip-audit; compare versions with release/cves.yaml
	@command -v shellcheck >/dev/null || $(PYTHON) -m setup apt
	@.venv/bin/python -m tests.lint

bench: setup ## measure bring-up, change and teardown against their baselines
	@.venv/bin/python -m benchmarks.bringup

bench-aws: setup ## measure check, preview and API calls of clusters on AWS, against moto
	@.venv/bin/python -m benchmarks.aws && .venv/bin/python -m benchmarks.aws_engine && .venv/bin/python -m benchmarks.aws_first_up

bench-simulator: setup ## measure the simulator: refits, and predictions of runs on a local cluster
	@.venv/bin/python -m benchmarks.simulator_fit && .venv/bin/python -m benchmarks.simulator_cluster

bench-trainer: setup ## measure the trainer: overhead, start, checkpoints, recovery
	@.venv/bin/python -m benchmarks.trainer

soak: setup ## run jobs while parts of a cluster are killed (ARGS="--minutes 30 --mtbf 60")
	@.venv/bin/python -m benchmarks.soak $(ARGS)

golden: $(MUSTER) ## regenerate schemas, tables in the docs and golden files; review their diff
	@$(MUSTER) golden
	@.venv/bin/python -m tests.infra.targets.aws.build.golden
	@.venv/bin/python -m tests.slurm.test_render
	@.venv/bin/python -m trainer settings --markdown >docs/trainer-settings.md
	@.venv/bin/python -m tests.fault_matrix.page
	@.venv/bin/python -m tests.attacks.page

# A missing key is reported before an environment is created.
release: $(if $(KEY),$(MUSTER)) ## audit, build and sign a release in dist/ (KEY=SSH key, ARGS=--no-audit)
	@$(if $(KEY),,echo "make release: KEY= is required; for example: make release KEY=~/.ssh/id_ed25519" >&2; exit 2)
	@.venv/bin/python -m release build --key "$(KEY)" $(ARGS)

verify-release: $(MUSTER) ## verify signature and checksums of a release (FROM=folder, ARGS="--signers file")
	@.venv/bin/python -m release verify $(ARGS) "$(or $(FROM),dist)"

clean-cache: $(MUSTER) ## delete cached images, training environments and tools
	@$(MUSTER) cache drop
