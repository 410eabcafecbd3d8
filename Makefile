PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test test-slow test-nightly test-often test-changed check bench docs format

demo: .venv/demo
	$(BIN)/python examples/demo.py

# Torch's threads in each process that runs tests would wait for one another, a third of all CPU time.
# Without compiled files, each new interpreter would compile the package, and each process all tests.
test test-slow test-nightly test-often test-changed: export OMP_NUM_THREADS = 1
test test-slow test-nightly test-often test-changed: export PYTHONDONTWRITEBYTECODE =

WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=20

# Tests of large libraries have processes of their own: those that have not imported them fork workers for half the CPU time.
PARTS = failed=0; for part in light frameworks; do $(PYTEST) --part=$$part $(1) || failed=1; done; exit $$failed

test: check
	$(call PARTS,-m "not slow")

test-slow: .venv/test
	$(call PARTS,-m slow)

# All products of settings, all examples, long fuzzing. SEED repeats a night.
test-nightly: SEED ?= $(shell date +%s)
test-nightly: check
	$(call PARTS,--full --flips=1000 --fuzz-seconds=600 --fuzz-seed=$(SEED) --kills=10 --kill-chains=5)

# Finds what fails one time in ten, and what one run takes from another: both tiers, RUNS times in a row, two at once.
test-often: RUNS ?= 10
test-often: .venv/test
	@for run in $$(seq $(RUNS)); do \
	  echo "run $$run of $(RUNS)"; \
	  ($(call PARTS,$(TESTS))) & other=$$!; \
	  ($(call PARTS,$(TESTS))) && failed=0 || failed=1; \
	  wait $$other && [ $$failed = 0 ] || exit 1; \
	done

test-changed: .venv/test
	@tests=$$($(BIN)/python tests/support/checks/changed.py $(BASE)) && \
	if [ -n "$$tests" ]; then $(PYTEST) -m "not slow" $$tests; else echo "nothing has changed"; fi

check: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/bench
	$(BIN)/python benchmarks/lib/suite.py $(if $(QUICK),--quick)

docs: .venv/docs
	$(BIN)/mkdocs build --quiet
	@echo "site/index.html"

format: .venv/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/pip: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

.venv/demo: .venv/pip
	$(BIN)/pip install --quiet -e '.[demo]'
	touch $@

.venv/bench: .venv/pip
	$(BIN)/pip install --quiet -e '.[bench]'
	touch $@

# Pages are made from the source without importing it, so they need no torch.
.venv/docs: .venv/pip
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
		| $(BIN)/pip install --quiet -r /dev/stdin
	touch $@

# One run of pip for all that CI does: `test` contains what the demo needs.
.venv/test: .venv/pip
	$(BIN)/pip install --quiet -e '.[test,docs]'
	touch .venv/demo .venv/docs $@
