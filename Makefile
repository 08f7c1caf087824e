# Both targets make and use .venv and need nothing installed by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs clean

demo: .venv/installed
	$(BIN)/potentia demo --out demo

test: .venv/installed lint
	$(BIN)/python -m pytest -n 2

docs: .venv/installed
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

clean:
	rm -rf .venv demo build dist docs/_build
