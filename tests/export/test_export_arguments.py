"""The command with every engine, on every supported version of its packages. `test_export.py` has the details."""

import re

import family_checkpoints
import pytest

from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("to", "dtype"), [("onnx", "int8"), ("openvino", "int8"), ("bert", "float16")])
def test_every_engine(tmp_path, capsys, to, dtype):
    family_checkpoints.write_checkpoint(tmp_path / "model", "bert", "ForSequenceClassification", num_hidden_layers=1)
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", to, "--dtype", dtype]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"Weights: {dtype}," in printed
    assert 1e-5 < float(re.search(r"Check: outputs differ by at most (\S+)", printed)[1]) < 1
