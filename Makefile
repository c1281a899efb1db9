# Everything below sets up its own virtual environment first. On a machine without a GPU, point pip at torch's CPU
# wheels (PIP_EXTRA_INDEX_URL) to save a few gigabytes.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check clean

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
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo-output .pytest_cache .mypy_cache .ruff_cache *.egg-info
