"""`snugbert export`: every head and family in every engine, dtypes, scores and errors."""

from pathlib import Path

import family_checkpoints
import pytest
from parity import HEADS

from snugbert.export.check import TOLERANCE
from snugbert.export.export import export

pytestmark = pytest.mark.usefixtures("one_thread")
CTRANSLATE2_HEADS = [head for head in HEADS if head not in ("ForPreTraining", "ForMaskedLM")]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Returns a function that writes a tiny checkpoint of a family and head."""
    root = tmp_path_factory.mktemp("checkpoints")

    def write(head: str, family: str = "bert", **fields) -> Path:
        folder = root / f"{family}-{head}-{len(fields)}"
        if not folder.exists():
            family_checkpoints.write_checkpoint(folder, family, head, **fields)
        return folder

    return write


@pytest.mark.parametrize(
    ("head", "to"),
    [(head, to) for to in ("onnx", "openvino") for head in HEADS]
    + [(head, "ctranslate2") for head in CTRANSLATE2_HEADS],
)
def test_every_head_equals_the_original(checkpoint, tmp_path, head, to):
    done = export(checkpoint(head), tmp_path / "out", to)
    assert 0 < done.difference < TOLERANCE / 10
