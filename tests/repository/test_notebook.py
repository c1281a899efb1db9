"""The notebook of examples/ runs offline, without warnings, and prints what is committed."""

import copy
import platform
import re
import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "text_to_classifier.ipynb"
PERCENTAGE = r"\d+\.\d(?=%)"
# Another CPU rounds differently, which changes a training run like another seed. This is three standard errors of an
# accuracy on 500 examples.
TOLERANCE = 7


def read_text(notebook) -> str:
    """Returns everything that the cells print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def list_kinds(notebook) -> list:
    """Returns what the cells show: streams, and the formats of tables and plots."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("name") or sorted(output.get("data", {})) for output in outputs]


@pytest.mark.long
def test_the_notebook_prints_the_committed_outputs(tmp_path):
    committed = nbformat.read(NOTEBOOK, as_version=4)
    notebook = copy.deepcopy(committed)
    shutil.copy(EXAMPLES / "pretrain_small_corpus.yaml", tmp_path)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert list_kinds(notebook) == list_kinds(committed)
    assert "stderr" not in list_kinds(notebook)  # warnings
    expected, printed = read_text(committed), read_text(notebook)
    if platform.python_version() == committed.metadata.language_info.version:  # the text depends on it
        assert re.sub(PERCENTAGE, "", printed) == re.sub(PERCENTAGE, "", expected)
    before, now = (list(map(float, re.findall(PERCENTAGE, text))) for text in (expected, printed))
    assert len(before) == 7 and now == pytest.approx(before, abs=TOLERANCE)
    assert now[-1] > now[2] + 4  # pretrained BERT, and the most frequent label
