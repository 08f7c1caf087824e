# All targets create and use .venv and need nothing installed by hand.
PYTHON ?= python3
BIN := .venv/bin
# Tests that need data read it from this folder, and are skipped where there is none.
POTENTIA_DATA ?= $(wildcard $(abspath ../shared/data))

.PHONY: demo test test-lowest test-plain quick durations coverage check faults tables lint browser docs mathjax links release clean

demo: .venv/installed
	$(BIN)/potentia demo --out demo

# Kernels that most tests use are compiled first, once for both processes of the tests, while style and types are checked.
test: .venv/installed
	$(MAKE) --no-print-directory -j 2 compiled-inference-gradients lint compiled-multilabel-training
	POTENTIA_DATA="$(POTENTIA_DATA)" $(BIN)/python -m pytest -n 2 --dist loadfile

compiled-%: .venv/installed
	$(BIN)/potentia warmup $(subst -, ,$*) > /dev/null

# The quick tests of one folder of tests/, such as `make quick ROOM=inference`.
quick: .venv/installed
	POTENTIA_DATA="$(POTENTIA_DATA)" $(BIN)/python -m pytest -n 2 --dist loadfile tests/$(ROOM) \
	  -m "not slow and not cluster and not browser and not docs"

# The same with the lowest versions of dependencies, in an environment of its own; PyTorch is left out.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet -c tests/lowest.txt \
	  -e '.[images,lightgbm,map,networkx,parquet,bench,dask]' dask-expr hypothesis mypy pandas pytest \
	  pytest-xdist websocket-client
	POTENTIA_DATA="$(POTENTIA_DATA)" .venv-lowest/bin/python -m pytest -n 2 --dist loadfile tests/base tests/graph \
	  tests/inference tests/gradients tests/learn tests/potentials tests/models -m "not docs"

# Tests of what runs on kernels, which are compiled by Numba's public compiler alone (see kernels/machine).
test-plain: .venv/installed
	POTENTIA_PLAIN=1 POTENTIA_DATA="$(POTENTIA_DATA)" $(BIN)/python -m pytest -n 2 --dist loadfile tests/graph \
	  tests/inference tests/gradients tests/learn

# Measure how long each test takes, which says what is slow and which files run first.
durations: .venv/installed
	POTENTIA_DATA="$(POTENTIA_DATA)" $(BIN)/python -m pytest -n 2 --dist loadfile --store-durations

# Kernels are compiled, so lines inside them do not count as covered.
coverage: .venv/installed
	$(BIN)/python -m pip install --quiet pytest-cov
	POTENTIA_DATA="$(POTENTIA_DATA)" $(BIN)/python -m pytest -n 2 --cov --cov-report=term --cov-report=html

# Every inference method on random small models against enumeration.
check: .venv/installed
	$(BIN)/python tests/faults/check_models.py --models 10000

# The whole campaign against faults (an hour or more); the tests run a short form of it.
faults: .venv/installed
	$(BIN)/python tests/faults/fuzz_files.py --trials 10000 --seed 1
	$(BIN)/python tests/faults/kills.py --kills 8 --pairs 20 --seed 1
	$(BIN)/python tests/faults/moves.py --kills 40 --seed 1
	$(BIN)/python tests/faults/workers.py
	$(BIN)/python tests/faults/bounds.py --models 5000
	$(BIN)/python tests/faults/soak.py --calls 20000 --seed 1
	$(BIN)/python tests/faults/api_calls.py --calls 4000 --seed 1

# Tables and numbers of README and docs from the rows of studies/results and benchmarks.
tables: .venv/installed
	$(BIN)/python -m potentia_studies.document

# INVENTORIES=1 links to the references of other libraries, which needs the network.
docs: .venv/installed mathjax
	INVENTORIES=$(INVENTORIES) $(BIN)/python -m sphinx -W -q -b html docs docs/_build
	$(BIN)/python docs/check_links.py docs/_build README.md CONTRIBUTING.md

# MathJax (Apache 2.0) for pages that show formulas without a network; without npm, browsers fetch it.
MATHJAX := docs/_static/mathjax
mathjax:
	@test -e $(MATHJAX)/tex-chtml.js || { mkdir -p build $(MATHJAX) && \
	  (cd build && npm pack --silent mathjax@3.2.2) >/dev/null 2>&1 && tar xzf build/mathjax-3.2.2.tgz -C $(MATHJAX) \
	  --strip-components=2 package/es5/tex-chtml.js package/es5/output/chtml/fonts/woff-v2; } || \
	  { rm -rf $(MATHJAX); echo "MathJax could not be fetched: formulas need the network"; }

# Links to other sites, which need the network.
links: .venv/installed
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

# Wheel and sdist, checked, and the wheel tried in an environment of its own; nothing is uploaded.
release: .venv/installed
	rm -rf dist build/release
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet dist/*.whl
	cd build/release && bin/python ../../tests/release/smoke.py
	@echo "dist/ is ready: set the version in CHANGELOG.md and CITATION.cff, then $(BIN)/python -m twine upload dist/*"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests of the report page need Chromium and are skipped without it; this installs it on Debian.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 || \
	  echo "Chromium is missing and could not be installed: tests in a browser are skipped"

# PyTorch first and exactly this build, which is for the CPU: a range would fetch several GB of CUDA packages.
.venv/installed: pyproject.toml studies/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e '.[dev]' -e ./studies
	touch $@

clean:
	rm -rf .venv .venv-lowest demo build dist docs/_build docs/reference docs/gallery htmlcov .coverage $(MATHJAX)
