# Everything below sets up its own virtual environment first. On a machine without a GPU, point pip at torch's CPU
# wheels (PIP_EXTRA_INDEX_URL) to save a few gigabytes.
PYTHON ?= python3
BIN = .venv/bin
PIP = pip install --quiet --disable-pip-version-check

.PHONY: demo test check release-check clean

demo: .venv/installed  ## raw text -> vocabulary -> pretraining -> fine-tuning -> AutoModel, in ten minutes
	$(BIN)/python examples/demo.py demo-output

test: .venv/installed-dev  ## the test suite
	$(BIN)/pytest --numprocesses auto --dist loadfile

check: .venv/installed-dev  ## lint, format, types, and the commands of the README
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_readme.py

# torch goes first and alone, so that no other requirement chooses its build.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) 'pip>=25.1'
	$(BIN)/$(PIP) $$(grep '^torch==' constraints.txt)
	$(BIN)/$(PIP) --constraint constraints.txt --editable '.[train]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/$(PIP) --constraint constraints.txt --editable '.[train,demo,lamb,tensorflow]' --group dev
	touch $@

release-check: .venv/installed-dev  ## build a release, check it, and use it in an environment of its own
	rm -rf dist .release
	$(BIN)/$(PIP) --constraint constraints.txt --group release
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/release_check.py files dist
	$(PYTHON) -m venv .release
	.release/bin/$(PIP) $$(grep '^torch==' constraints.txt)
	.release/bin/$(PIP) --constraint constraints.txt dist/*.whl
	.release/bin/python tests/release_check.py light
	.release/bin/$(PIP) --constraint constraints.txt "$$(echo dist/*.whl)[train]"
	.release/bin/python tests/release_check.py train

clean:
	rm -rf .venv .release dist demo-output .pytest_cache .mypy_cache .ruff_cache *.egg-info
