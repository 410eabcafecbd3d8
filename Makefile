PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test test-slow bench docs format

demo: .venv/demo
	$(BIN)/python examples/demo.py

# Three processes run tests on few cores: torch's threads in each would wait for one another, a third of all CPU time.
test: export OMP_NUM_THREADS = 1
test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=20 -m "not slow"

test-slow: .venv/test
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=20 -m slow

bench: .venv/bench
	$(BIN)/python benchmarks/suite.py $(if $(QUICK),--quick)

docs: .venv/docs
	$(BIN)/mkdocs build --quiet

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

.venv/docs: .venv/pip
	$(BIN)/pip install --quiet -e '.[docs]'
	touch $@

.venv/test: .venv/pip
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@
