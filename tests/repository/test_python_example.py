"""The tutorial's Python example pretrains, on a small corpus and for a few steps."""

import gzip
import json
import re
import warnings
from pathlib import Path

import pytest

import snugbert
from snugbert.errors import InputError

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def find_example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), flags=re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "PretrainingTrainer(" in block)


@pytest.mark.usefixtures("pictures")
def test_the_python_example_pretrains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["the", "cat", "dog", "sees", "a", "bird", "and", "sleeps", "."]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(vocabulary)}).save_pretrained("tokenizer")
    document = "The cat sees a bird. The dog sees the cat.\nA bird sleeps and the dog sleeps.\n"
    Path("corpus").mkdir()
    Path("corpus/text.txt.gz").write_bytes(gzip.compress("\n".join([document] * 20).encode()))
    example = find_example()
    assert len(example.splitlines()) <= 20
    for setting, small in (
        ('"mini"', '"tiny"'),
        (r"max_steps=\d+", "max_steps=2, logging_steps=2, use_cpu=True, report_to='none'"),
    ):
        example, replaced = re.subn(setting, small, example)
        assert replaced == 1, setting
    names = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*pin_memory")
        exec(compile(example, str(TUTORIAL), "exec"), names)
    model = snugbert.SnugBertForPreTraining.from_pretrained("pretrained")
    assert model.config.vocab_size == len(vocabulary)
    assert [json.loads(line)["step"] for line in Path("pretrained/metrics.jsonl").read_text().splitlines()] == [2, 2]
    lines = capsys.readouterr().err.splitlines()
    assert any(re.match(r"step 1/2  loss \d", line) for line in lines)
    assert any(re.match(r"step 2/2  epoch \d.* MLM accuracy .* tokens/s", line) for line in lines)
    assert Path("pretrained/training.png").stat().st_size > 10_000
    card = Path("pretrained/README.md").read_text()
    for fact in (
        "starting from random weights",
        "| training text | text.txt.gz: 20 documents, 60 sentences",
        "| objective | masked tokens, next sentence |",
        "| masking | 15% of the tokens: 80% replaced by ",
        "| steps done | 2 of 2 |",
        "![Losses and accuracies over the tokens seen](training.png)",
    ):
        assert fact in card
    assert str(tmp_path) not in card

    # The metrics of a later evaluation.
    trainer = names["trainer"]
    metrics = trainer.evaluate(names["dataset"])
    assert f"| {metrics['eval_mlm_loss']:.3f} |" in Path("pretrained/README.md").read_text()

    # Another run. The same trainer may continue its own.
    settings = {"model": model, "train_dataset": names["dataset"], "data_collator": trainer.data_collator.collate}
    other = snugbert.PretrainingTrainer(args=trainer.args, **settings)
    with pytest.raises(InputError, match=r"--output_dir: pretrained already contains a run"):
        other.train()
    other.args.overwrite_output_dir = True
    other.train()
    # The configuration names the checkpoint, but the weights may be new.
    assert "starting from" not in Path("pretrained/README.md").read_text()
