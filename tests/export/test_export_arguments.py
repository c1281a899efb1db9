"""The command with every engine, on every supported version of its packages. `test_export.py` has the details."""

import family_checkpoints
import pytest

from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("to", "dtype"), [("onnx", "int8"), ("openvino", "int8"), ("ctranslate2", "int8"), ("bert", "float16")]
)
def test_every_engine(tmp_path, capsys, to, dtype):
    family_checkpoints.write_checkpoint(tmp_path / "model", "bert", "ForSequenceClassification", num_hidden_layers=1)
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", to]
    assert main(arguments) == 0
    assert main([*arguments, "--dtype", dtype, "--overwrite_output_dir"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines if line.startswith("Weights")] == [
        "Weights: float32",
        f"Weights: {dtype}",
    ]
    differences = [float(line.split()[6]) for line in lines if line.startswith("Check: outputs differ by at most")]
    assert 0 < differences[0] < 1e-5 < differences[1] < 1
