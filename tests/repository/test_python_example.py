"""The Python example that pretrains, on a small corpus and for a few steps."""

import json
import re
import warnings
from pathlib import Path

import pytest

import snugbert

PAGE = Path(__file__).parents[2] / "docs/reference/python-api.md"


def find_example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "PretrainingTrainer(" in block)


@pytest.mark.usefixtures("pictures")
def test_the_python_example_pretrains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    document = "The cat sees a bird. The dog sees the cat.\nA bird sleeps and the dog sleeps.\n"
    Path("books.txt").write_text("\n".join([document] * 20))
    example = find_example()
    for setting, small in (
        ('"mini"', '"tiny"'),
        (r"max_steps=\d+", "max_steps=2, logging_steps=2, use_cpu=True, report_to='none'"),
    ):
        example, replaced = re.subn(setting, small, example)
        assert replaced == 1, setting
    names = {"__name__": "example", "snugbert": snugbert}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*pin_memory")
        exec(compile(example, str(PAGE), "exec"), names)
    model = snugbert.SnugBertForPreTraining.from_pretrained("pretrained")
    assert model.config.vocab_size == len(names["tokenizer"])
    assert [json.loads(line)["step"] for line in Path("pretrained/metrics.jsonl").read_text().splitlines()] == [2, 2]
    lines = capsys.readouterr().err.splitlines()
    assert any(re.match(r"step 2/2  epoch \d.* MLM accuracy .* tokens/s", line) for line in lines)
    assert Path("pretrained/training.png").stat().st_size > 10_000
    card = Path("pretrained/README.md").read_text()
    assert "20 documents, 60 sentences" in card and "| 2 of 2 |" in card and str(tmp_path) not in card

    # The metrics of a later evaluation.
    trainer = names["trainer"]
    metrics = trainer.evaluate(names["dataset"])
    assert f"| {metrics['eval_mlm_loss']:.3f} |" in Path("pretrained/README.md").read_text()

    # Another run, of the model in memory. Its configuration names a checkpoint, but its weights may be new.
    settings = {"model": model, "train_dataset": names["dataset"], "data_collator": trainer.data_collator.collate}
    trainer.args.overwrite_output_dir = True
    snugbert.PretrainingTrainer(args=trainer.args, **settings).train()
    assert "starting from" not in Path("pretrained/README.md").read_text()
