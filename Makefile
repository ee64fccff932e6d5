# Every command of README. The tested set of packages is in constraints.txt; `CONSTRAINTS=` tries the newest.
PYTHON ?= python3.11
CONSTRAINTS ?= -c constraints.txt
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart install lint fast other-cpu test slow test-all audit docs leaderboard benchmark clean

quickstart: $(VENV)/installed
	$(BIN)/rayfed-kd run configs/quickstart.yaml

install: $(VENV)/installed

# torch first: asked for alone, a CPU build that lies on disk is taken as it is.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e '.[test]'
	@$(BIN)/python -c "import ray, torch, rayfed_kd; print('rayfed-kd is installed, with torch', torch.__version__, 'and Ray', ray.__version__ + '; $(BIN)/rayfed-kd doctor looks at the machine and the data')"
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests on Ray are one group: one Ray, on one of the two workers.
fast: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

# The fast tests that compute, as on another kind of CPU: torch's and oneDNN's names of what it can do.
TORCH_KIND ?= default
ONEDNN_KIND ?= SSE41
COMPUTING := tests/algorithms tests/cluster/engine tests/cluster/server \
	$(addprefix tests/rayfed_kd/,toolbox models setting)
other-cpu: $(VENV)/installed
	OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=$(TORCH_KIND) ONEDNN_MAX_CPU_ISA=$(ONEDNN_KIND) \
		$(BIN)/pytest -n 2 --dist loadgroup $(COMPUTING)

# Side by side: while mypy computes, a test waits for a process.
test: $(VENV)/installed
	$(MAKE) --jobs 2 lint fast

# One after another: whole runs on Ray fill two cores, and some tests start three machines.
slow: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

test-all: test slow

# Known flaws of the tested set of packages; skipped in a line where no index of advisories answers.
audit: $(VENV)/installed
	$(BIN)/python tests/tools/audit.py

# The site, into site/; a broken link or reference is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e '.[docs]'
	touch $@

# Every method in one setting, and the page and pictures made of it; hours, but finished runs are not run again.
leaderboard: $(VENV)/installed
	$(BIN)/rayfed-kd compare leaderboard
	$(BIN)/python docs/hooks/measured.py runs

benchmark: $(VENV)/installed
	$(BIN)/python tests/benchmarks/round.py

clean:
	rm -rf $(VENV)
