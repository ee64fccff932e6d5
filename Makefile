# Every command of README. The tested set of packages is in constraints.txt; `CONSTRAINTS=` tries the newest.
# The first Python of 3.11 or newer that runs here; 3.11 is the one of the tested set. `PYTHON=` names another.
FITS := import sys; sys.exit(sys.version_info < (3, 11))
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python
PYTHON ?= $(shell for one in $(PYTHONS); do $$one -c '$(FITS)' 2>/dev/null && echo $$one && break; done)
CONSTRAINTS ?= -c constraints.txt
# cpu (2.4 GB with all else) where no NVIDIA driver is seen, else cuda (about 6 GB).
#   cpu   takes a CPU build of the tested torch that pip finds on this disk, or at the address TORCH_INDEX: that of
#         PyTorch's CPU builds, which its install page gives. macOS, Windows and Linux on Arm get a CPU build by
#         themselves. Linux on x86-64 has a CUDA build in pip's usual index, and without TORCH_INDEX gets that.
#   cuda  takes the build of pip's usual index, whatever lies on this disk.
TORCH ?= $(if $(shell command -v nvidia-smi),cuda,cpu)
TORCH_INDEX ?=
ALSO_cpu := $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX))
ALSO_cuda := PIP_FIND_LINKS=$(VENV)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart install lint fast without-ray other-cpu test slow test-all audit derived docs wheel leaderboard benchmark clean

quickstart: $(VENV)/installed
	$(BIN)/rayfed-kd run configs/quickstart.yaml

install: $(VENV)/installed

# torch first, with the torchvision that was built for it: a CPU build that lies on disk is taken as it is.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(if $(PYTHON),$(PYTHON) -c '$(FITS)',false) || { echo "rayfed-kd needs Python 3.11 or newer, and$(if $(PYTHON), $(PYTHON) is no such,\
none was found); name one: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing the packages into $(VENV): some minutes, and 2.4 GB or more" >&2
	$(PYTHON) -m venv $(VENV)
	$(ALSO_$(TORCH)) $(BIN)/python -m pip install --quiet $(CONSTRAINTS) torch torchvision
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

# The fast tests that start no Ray: macOS, and Windows with a shell that has make.
without-ray: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow and not ray"

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
derived: $(VENV)/installed
	$(BIN)/python docs/hooks/methods.py
	$(BIN)/python tests/configs/test_defaults.py

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e '.[docs]'
	touch $@

# Source and wheel in dist/, as an index takes them; the slow tests try the wheel that RAYFED_KD_WHEEL names.
wheel: $(VENV)/installed-release
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

$(VENV)/installed-release: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e '.[release]'
	touch $@

# Every method in one setting, and the page and pictures made of it; hours, but finished runs are not run again.
leaderboard: $(VENV)/installed
	$(BIN)/rayfed-kd compare leaderboard
	$(BIN)/python docs/hooks/measured.py runs

benchmark: $(VENV)/installed
	$(BIN)/python tests/benchmarks/round.py

clean:
	rm -rf $(VENV)
