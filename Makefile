# Everything below sets up its own virtual environment first. On a machine without a GPU, point pip at torch's CPU
# wheels (PIP_EXTRA_INDEX_URL) to save a few gigabytes.
PYTHON ?= python3
BIN = .venv/bin
PIP = pip install --quiet --disable-pip-version-check
DEV = --editable '.[train,demo,embeddings,onnx,openvino,ctranslate2,lamb,optuna,sentencepiece,tensorflow]' --group dev
# By file, because models that a file's fixtures train stay in one process.
PYTEST = pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
# Every command and every required package, in a third of the time.
FAST = -m "not slow"

.PHONY: demo test test-fast test-lowest test-newest test-serve test-stock check docs notebook release-check clean

demo: .venv/installed  ## raw text -> vocabulary -> pretraining -> fine-tuning -> AutoModel, in 6 minutes
	$(BIN)/python examples/demo.py demo-output

test: .venv/installed-dev  ## the test suite
	$(BIN)/$(PYTEST)

test-fast: .venv/installed-dev  ## the fast half of the suite
	$(BIN)/$(PYTEST) $(FAST)

test-lowest: .venv-lowest/installed  ## the fast half on the lowest versions that pyproject.toml allows
	.venv-lowest/bin/$(PYTEST) $(FAST)

test-newest: .venv-newest/installed  ## the fast half on the newest versions
	.venv-newest/bin/$(PYTEST) $(FAST)

test-stock: .venv/installed-dev  ## transformers' own tests of BERT, on stock BERT and on SnugBERT
	$(BIN)/$(PIP) --constraint constraints.txt --group stock-suite
	$(BIN)/python tests/stock_suite.py $(STOCK_SUITE)

test-serve: .venv/installed-dev .venv-serve/installed  ## exported models in servers, in an environment of their own
	$(BIN)/pytest -m long tests/serving

check: .venv/installed-dev docs  ## lint, format, types, documentation, and the commands in the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/repository/test_readme.py tests/repository/test_docs.py tests/repository/test_packaging.py

docs: .venv/installed-dev  ## the documentation as a site, in site/; broken links and anchors are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebook: .venv/installed-dev  ## run the notebook in examples/, and keep its outputs
	$(BIN)/jupyter nbconvert --to notebook --inplace --execute --ExecutePreprocessor.record_timing=False examples/*.ipynb

release-check: .venv/installed-dev  ## build a release, check it, and use it in an environment of its own
	rm -rf dist .venv-release
	$(BIN)/$(PIP) --constraint constraints.txt --group release
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/release_check.py files dist
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/$(PIP) $$(grep '^torch==' constraints.txt)
	.venv-release/bin/$(PIP) --constraint constraints.txt dist/*.whl
	.venv-release/bin/python tests/release_check.py light
	.venv-release/bin/$(PIP) --constraint constraints.txt "$$(echo dist/*.whl)[train]"
	.venv-release/bin/python tests/release_check.py train

# torch goes first and alone, so that no other requirement chooses its build. pip 25.1 is the first with --group.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) 'pip>=25.1'
	$(BIN)/$(PIP) $$(grep '^torch==' constraints.txt)
	$(BIN)/$(PIP) --constraint constraints.txt --editable '.[train]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/$(PIP) --constraint constraints.txt $(DEV) --group minicons --group reporters --group docs
	touch $@

.venv-lowest/installed: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/$(PIP) 'pip>=25.1'
	.venv-lowest/bin/$(PIP) --constraint constraints-lowest.txt torch
	.venv-lowest/bin/$(PIP) --constraint constraints-lowest.txt $(DEV)
	touch $@

.venv-newest/installed: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/$(PIP) 'pip>=25.1'
	.venv-newest/bin/$(PIP) --upgrade torch
	.venv-newest/bin/$(PIP) --upgrade $(DEV) --group minicons --group reporters
	touch $@

.venv-serve/installed: pyproject.toml
	$(PYTHON) -m venv .venv-serve
	.venv-serve/bin/$(PIP) 'pip>=25.1'
	.venv-serve/bin/$(PIP) $$(grep '^torch==' constraints.txt)
	.venv-serve/bin/$(PIP) --group serve
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-newest .venv-serve .venv-release dist site demo-output examples/notebook-output .pytest_cache .mypy_cache .ruff_cache *.egg-info
