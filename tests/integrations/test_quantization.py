"""A real encoder in ONNX and in 8 bits, with the examples of docs/how-to/integrate.md, and the benchmark."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset
from scipy.stats import spearmanr
from torch.testing import assert_close
from transformers import AutoModel

import snugbert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # torch's warnings, see test_export.py.
    pytest.mark.filterwarnings("ignore:# The axis name:UserWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
]


def cosines(left, right):
    return (left * right).sum(1) / ((left**2).sum(1) * (right**2).sum(1)) ** 0.5


def test_the_onnx_example_embeds_texts_like_the_model(encoder_in_onnx):
    folder, names = encoder_in_onnx
    assert len(names["example"]["input_ids"]) == 1  # exported with one text, but accepts any number, see below
    model = AutoModel.from_pretrained(folder / "my-snugbert")
    assert type(model) is snugbert.SnugBertModel and model.config.num_hidden_layers == 6
    texts = ["One.", "Two words, or more.", "This is, of these " + 100 * "few and varied " + "texts, the longest."]
    for some in (texts[:1], texts):
        inputs = names["tokenizer"](some, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state  # zeros at padding
        expected = states.sum(1) / inputs["attention_mask"].sum(1, keepdim=True)
        assert_close(torch.from_numpy(names["embed"](some)), expected, atol=1e-5, rtol=0)
    assert names["embeddings"].shape == (2, 384) and np.abs(names["embeddings"]).max() > 0.1


def test_the_example_quarters_the_size_and_keeps_the_embeddings(example, encoder_in_onnx, data_dir, monkeypatch):
    """On STS-B, where the correlation with human scores hardly changes."""
    folder, names = encoder_in_onnx
    monkeypatch.chdir(folder)
    exec(example("8-bit quantization"), {})
    sizes = [(folder / file).stat().st_size for file in ("model.onnx", "model-8bit.onnx")]
    assert sizes[1] < 0.27 * sizes[0]

    pairs = load_dataset(
        "csv",
        data_files=str(data_dir / "glue/STS-B/dev.tsv"),
        split="train[:200]",
        delimiter="\t",
        quoting=3,
        keep_default_na=False,
    )
    embed, scores, firsts = names["embed"], [], []
    for file in ("model.onnx", "model-8bit.onnx"):
        monkeypatch.setitem(names, "session", names["onnxruntime"].InferenceSession(file))
        first, second = (embed(pairs[column][:]) for column in ("sentence1", "sentence2"))
        scores.append(cosines(first, second))
        firsts.append(first)
    assert cosines(*firsts).min() > 0.98
    assert abs(scores[0] - scores[1]).max() < 0.05
    float32, int8 = (spearmanr(score, pairs["score"][:]).statistic for score in scores)
    assert float32 > 0.8 and int8 > float32 - 0.01


def test_the_benchmark(minilm, data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import quantization

    config = snugbert.SnugBertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    torch.manual_seed(0)
    model = snugbert.SnugBertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(tmp_path)
    snugbert.SnugBertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    sizes = ["--max_samples", "50", "--timed_samples", "4", "--rounds", "1", "--batch_size", "2"]
    quantization.main(["--classifier", str(tmp_path), "--glue_dir", str(data_dir / "glue"), *sizes])
    quality, times = capsys.readouterr().out.split("\n\n")[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (quality + "\n" + times).splitlines()]
    quality, times = ({name: row for name, *row in rows[start : start + 6]} for start in (2, 10))
    assert list(quality) == list(times) and len(quality) == 6
    for side in ("SnugBERT", "BERT"):
        torch_32, onnx_32, onnx_8 = (row for name, row in quality.items() if name.startswith(side))
        assert torch_32[1:3] == onnx_32[1:3] == [quality[quantization.REFERENCE][1], "0 of 50"]
        assert float(onnx_8[0]) < 0.3 * float(torch_32[0]) and 0 < float(onnx_8[3]) < 0.1
    assert [cell.split(",")[0] for cell in times[quantization.REFERENCE]] == 3 * ["1.00 (1.00-1.00)"]

    runs = {quantization.REFERENCE: lambda batch: torch.zeros(2, 2), "other, float32": lambda batch: torch.ones(2, 2)}
    with pytest.raises(SystemExit, match="logits differ"):
        quantization.quality_table(runs, dict.fromkeys(runs, 1.0), [{}], torch.zeros(2))
