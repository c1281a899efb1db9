"""The notebook of examples/ runs offline, without warnings, and prints what is committed."""

import copy
import platform
import re
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "text_to_classifier.ipynb"
PERCENTAGE = r"\d+\.\d(?=%)"
# Another CPU rounds differently, which changes a training run like another seed. This is three standard errors of an
# accuracy on 500 examples.
TOLERANCE = 7


def read_outputs(notebook) -> tuple[list, str]:
    """Returns what the cells show (streams, and the formats of tables and plots), and the text that they print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [output.get("name") or sorted(output.get("data", {})) for output in outputs]
    return kinds, "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.long
def test_the_notebook_prints_the_committed_outputs(tmp_path):
    nbformat = pytest.importorskip("nbformat")  # here, because it would take all tests seconds
    nbclient = pytest.importorskip("nbclient")
    committed = nbformat.read(NOTEBOOK, as_version=4)
    notebook = copy.deepcopy(committed)
    shutil.copy(EXAMPLES / "pretrain_small_corpus.yaml", tmp_path)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (expected_kinds, expected), (kinds, printed) = read_outputs(committed), read_outputs(notebook)
    assert kinds == expected_kinds and "stderr" not in kinds  # warnings
    if platform.python_version() == committed.metadata.language_info.version:  # the text depends on it
        assert re.sub(PERCENTAGE, "", printed) == re.sub(PERCENTAGE, "", expected)
    before, now = (list(map(float, re.findall(PERCENTAGE, text))) for text in (expected, printed))
    assert len(before) == 7 and now == pytest.approx(before, abs=TOLERANCE)
    assert now[-1] > now[2] + 4  # pretrained BERT, and the most frequent label
