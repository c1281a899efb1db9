# Everything below sets up its own virtual environment first. On a machine without a GPU, point pip at torch's CPU
# wheels (PIP_EXTRA_INDEX_URL) to save a few gigabytes.
PYTHON ?= python3
BIN = .venv/bin
PIP = pip install --quiet --disable-pip-version-check
# Every file that pip installs must have a hash from the lock.
LOCKED = $(PIP) --require-hashes --constraint
# The package itself. pip then installs what snugbert[train] needs, without looking for it on an index.
PACKAGE = $(PIP) --no-deps --build-constraint constraints.txt
EXTRAS = [train,demo,embeddings,onnx,openvino,lamb,sentencepiece,tensorflow]
DEV = 'snugbert$(EXTRAS)' --group dev
# By file, because models that a file's fixtures train stay in one process.
PYTEST = pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
# Every command and every required package, in less than half of the time.
FAST = -m "not slow and not long"

.PHONY: demo test test-fast test-lowest test-newest test-benchmarks test-serve test-stock check docs notebook
.PHONY: release-check lock clean

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

test-benchmarks: .venv/installed-dev  ## scripts of benchmarks/ on little data, and the notebook
	$(BIN)/$(PYTEST) -m long tests/repository/test_notebook.py tests/benchmarks

test-stock: .venv/installed-dev  ## transformers' own tests of BERT, on stock BERT and on SnugBERT
	$(BIN)/python tests/stock_suite.py $(STOCK_SUITE)

test-serve: .venv/installed-dev .venv-serve/installed  ## exported models in servers, in an environment of their own
	$(BIN)/pytest -m long tests/serving

check: .venv/installed-dev docs  ## lint, format, types, documentation, and the commands in the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/repository/test_docs.py tests/repository/test_packaging.py

docs: .venv/installed-dev  ## the documentation as a site, in site/; broken links and anchors are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebook: .venv/installed-dev  ## run the notebook in examples/, and keep its outputs
	$(BIN)/jupyter nbconvert --to notebook --inplace --execute --ExecutePreprocessor.record_timing=False examples/*.ipynb

release-check: .venv/installed  ## build a release, check it, and use it in an environment of its own
	rm -rf dist .venv-release
	$(BIN)/$(LOCKED) constraints.txt --group stock-suite --group release --group install
	$(BIN)/python tests/licenses.py --check
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/release_check.py files dist
	$(call new-venv,.venv-release)
	$(call install-torch,.venv-release,constraints.txt)
	.venv-release/bin/$(PIP) --no-deps --no-index --find-links dist snugbert
	.venv-release/bin/$(LOCKED) constraints.txt snugbert
	.venv-release/bin/python tests/release_check.py light
	.venv-release/bin/$(LOCKED) constraints.txt 'snugbert[train]'
	.venv-release/bin/python tests/release_check.py train
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file dist/train.cdx.json .venv-release/bin/python
	$(BIN)/python tests/release_check.py bill dist/train.cdx.json

lock:  ## the lock files again, after a change of pyproject.toml; LOCK=--upgrade takes new versions
	$(call new-venv,.venv-lock)
	.venv-lock/bin/$(LOCKED) constraints.txt uv
	.venv-lock/bin/python tests/lock.py $(LOCK)
	rm -rf .venv-lock

# The locked pip is the first that reads hashes from a constraints file.
define new-venv
$(PYTHON) -m venv $(1)
sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > $(1)/pip.txt
$(1)/bin/$(PIP) --require-hashes --requirement $(1)/pip.txt
endef

# torch goes first and alone. Otherwise pip would prefer PyPI's wheel to one in a folder (PIP_FIND_LINKS), because a
# folder does not list hashes.
define install-torch
$(1)/bin/pip download --quiet --no-deps --dest $(1)/torch $$(grep -o '^torch==[^ ]*' $(2))
$(1)/bin/$(LOCKED) $(2) --no-index --no-deps --find-links $(1)/torch torch
rm -r $(1)/torch
endef

.venv/installed: pyproject.toml constraints.txt
	$(call new-venv,.venv)
	$(call install-torch,.venv,constraints.txt)
	$(BIN)/$(PACKAGE) --editable .
	$(BIN)/$(LOCKED) constraints.txt 'snugbert[train]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/$(LOCKED) constraints.txt $(DEV) --group minicons --group reporters --group docs --group stock-suite
	touch $@

.venv-lowest/installed: pyproject.toml constraints.txt constraints-lowest.txt
	$(call new-venv,.venv-lowest)
	.venv-lowest/bin/$(PACKAGE) --editable .
	.venv-lowest/bin/$(LOCKED) constraints-lowest.txt $(DEV)
	touch $@

.venv-newest/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/$(PIP) --upgrade pip
	.venv-newest/bin/$(PIP) --upgrade torch
	.venv-newest/bin/$(PIP) --upgrade --editable '.$(EXTRAS)' --group dev --group minicons --group reporters
	touch $@

.venv-serve/installed: pyproject.toml constraints.txt constraints-serve.txt
	$(call new-venv,.venv-serve)
	$(call install-torch,.venv-serve,constraints-serve.txt)
	.venv-serve/bin/$(LOCKED) constraints-serve.txt --group serve
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-newest .venv-serve .venv-release .venv-lock dist site demo-output examples/notebook-output
	rm -rf .pytest_cache .mypy_cache .ruff_cache *.egg-info
