"""models/mini-en opens as its card says, and the README's first snippets work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM, BertTokenizer

from snugbert import SnugBertForMaskedLM

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "models" / "mini-en"
WITHOUT_SNUGBERT = """
import sys
from transformers import pipeline

fill = pipeline("fill-mask", model=sys.argv[1], trust_remote_code=True)
assert "snugbert" not in sys.modules
print(*[answer["token_str"] for answer in fill(sys.argv[2])])
"""
TEXT = "She was very [MASK] to see him."


def read_snippets() -> list[tuple[str, str]]:
    """The Python code of the README's section "In 30 seconds", with its output."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In 30 seconds\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```.*?^```text\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def test_it_opens_with_snugbert_without_it_and_as_stock_bert(tmp_path):
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 12e6
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    ours, info = AutoModelForMaskedLM.from_pretrained(FOLDER, output_loading_info=True)
    assert type(ours) is SnugBertForMaskedLM and ours.dtype == torch.float32 and ours.num_parameters() < 6e6
    assert not info["unexpected_keys"]  # the first snippet of the README prints no report
    stock, stock_tokenizer = BertForMaskedLM.from_pretrained(FOLDER), BertTokenizer.from_pretrained(FOLDER)
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert stock_tokenizer(TEXT)["input_ids"] == inputs["input_ids"][0].tolist()
    with torch.no_grad():
        logits = ours(**inputs).logits
        torch.testing.assert_close(logits, stock(**inputs).logits, atol=2e-5, rtol=0)
    best = logits[0, inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)].topk(5).indices
    tokens = tokenizer.convert_ids_to_tokens(best.tolist())
    assert f"{tokens[:3]}\n" == read_snippets()[0][1]
    command = [sys.executable, "-c", WITHOUT_SNUGBERT, FOLDER, TEXT]
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.split() == tokens, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_first_snippets_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("models", "examples"):
        Path(name).symlink_to(ROOT / name)
    (fill_mask, filled), (fine_tune, accuracy) = read_snippets()
    names: dict = {}
    exec(fill_mask, names)
    assert capsys.readouterr().out == filled
    exec(fine_tune, names)
    assert float(capsys.readouterr().out.splitlines()[-1]) == pytest.approx(float(accuracy), abs=0.05)
