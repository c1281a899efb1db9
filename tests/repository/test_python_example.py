"""The tutorial's Python example pretrains, on a small corpus and for a few steps."""

import gzip
import re
from pathlib import Path

import snugbert

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def find_example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), flags=re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if "PretrainingTrainer(" in block)


def test_the_python_example_pretrains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["the", "cat", "dog", "sees", "a", "bird", "and", "sleeps", "."]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(vocabulary)}).save_pretrained("tokenizer")
    document = "The cat sees a bird. The dog sees the cat.\nA bird sleeps and the dog sleeps.\n"
    Path("corpus").mkdir()
    Path("corpus/text.txt.gz").write_bytes(gzip.compress("\n".join([document] * 20).encode()))
    example = find_example()
    assert len(example.splitlines()) <= 20
    for setting, small in (('"mini"', '"tiny"'), (r"max_steps=\d+", "max_steps=2, use_cpu=True, report_to='none'")):
        example, replaced = re.subn(setting, small, example)
        assert replaced == 1, setting
    exec(compile(example, str(TUTORIAL), "exec"), {"__name__": "example"})
    model = snugbert.SnugBertForPreTraining.from_pretrained("pretrained")
    assert model.config.vocab_size == len(vocabulary)
    assert len(Path("pretrained/metrics.jsonl").read_text().splitlines()) >= 1
