"""`snugbert evaluate`, from files to results."""

import json

import pytest
import torch
import yaml

from snugbert import SnugBertConfig, SnugBertForMaskedLM, SnugBertTokenizer
from snugbert_cli import main

WORDS = "the cat cats sleep ##s walk ##ed in garden , .".split()
PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "linguistics_term": phenomenon}
    for good, bad, paradigm, phenomenon in (
        ("The cat sleeps.", "The cats sleeps.", "number", "agreement"),
        ("The cats sleep.", "The cats sleep.", "tie", "agreement"),
        ("The cat walked.", "The cat in.", "verb", "verbs"),
    )
]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = SnugBertConfig.from_size("tiny", vocab_size=len(vocabulary), initializer_range=0.2)
    SnugBertForMaskedLM(config).save_pretrained(tmp_path / "model")
    SnugBertTokenizer(vocab={token: id for id, token in enumerate(vocabulary)}).save_pretrained(tmp_path / "model")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs/all.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    return tmp_path


def evaluate(folder, *argv) -> int:
    return main(["evaluate", "--pairs_file", str(folder / "pairs/*.jsonl"), *map(str, argv)])


def test_table_results_and_card_metadata(folder, capsys):
    model = ["--model_name_or_path", folder / "model"]
    assert evaluate(folder, *model, "--output_dir", folder / "out") == 0
    out = capsys.readouterr().out
    results = json.loads((folder / "out/results.json").read_text())
    pairs = results["minimal_pairs"]
    assert results["model"] == "model" and pairs["dataset"] == "all" and pairs["pairs"] == 3
    assert list(pairs["paradigms"]) == ["number", "tie", "verb"] and list(pairs["phenomena"]) == ["agreement", "verbs"]
    assert pairs["paradigms"]["tie"]["accuracy"] == {"original": 0, "within_word_l2r": 0}  # a tie is wrong
    mean = 100 * pairs["accuracy"]["original"]
    assert f"| mean over paradigms | 3 | 3 | {mean:.1f} |" in out and "agreement" in out
    assert "| tie | agreement | 1 | 0.0 | 0.0 |" in (folder / "out/results.md").read_text()
    metadata = yaml.safe_load((folder / "out/card_metadata.yaml").read_text())
    scores = [result["value"] for result in metadata["model-index"][0]["results"][0]["metrics"]]
    assert scores == pytest.approx([*pairs["accuracy"].values()], abs=1e-5)


def score(folder, *flags):
    assert evaluate(folder, *flags, "--output_dir", folder / "out", "--overwrite_output_dir") == 0
    return json.loads((folder / "out/results.json").read_text())


def test_random_weights_are_the_same_for_a_seed(folder):
    flags = ["--config_name", "tiny", "--tokenizer_name", folder / "model", "--config_overrides"]
    first, second = (score(folder, *flags, "initializer_range=0.5")["minimal_pairs"] for _ in range(2))
    assert first["paradigms"] == second["paradigms"]


def test_bf16_gives_nearly_the_same_scores(folder):
    (folder / "text.txt").write_text("The cat sleeps. The cats sleep in the garden.\n" * 20)
    data = ["--model_name_or_path", folder / "model", "--validation_file", folder / "text.txt"]
    results = [score(folder, *data, *flags) for flags in ([], ["--bf16"])]
    exact, rounded = (result["held_out_text"]["metrics"]["mlm_loss"] for result in results)
    assert exact != rounded == pytest.approx(exact, rel=0.02)


def test_errors(folder, capsys):
    model = ["--model_name_or_path", folder / "model"]
    (folder / "out").mkdir()
    long = json.dumps({"sentence_good": "The cat.", "sentence_bad": "the " * 511})
    for file, text, flags, words in (
        (folder / "file", "", ["--config_name", "tiny"], "--config_name (random weights) cannot be combined with"),
        (folder / "out/results.json", "{}", ["--output_dir", folder / "out"], "already contains results"),
        (folder / "pairs/long.jsonl", long, [], "at most 512 tokens (the model's limit), found 513 tokens."),
    ):
        file.write_text(text)
        assert evaluate(folder, *model, *flags) == 2
        assert words in capsys.readouterr().err
    assert main(["evaluate", *map(str, model)]) == 2
    assert "no data. Pass --pairs_file, --validation_file, or both." in capsys.readouterr().err
