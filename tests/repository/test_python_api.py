"""The examples of docs/reference/python-api.md run, with tiny models and small datasets."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from datasets import ClassLabel, Dataset
from glue_examples import VOCABULARY, WORDS, sentences
from transformers import AutoModelForSequenceClassification

import snugbert

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n[^#]*?^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M))
FAST = "use_cpu=True, report_to='none', disable_tqdm=True, max_steps=2, "


def write_models(folder: Path) -> None:
    """Writes the checkpoints that the examples start from."""
    torch.manual_seed(0)
    tokenizer = snugbert.SnugBertTokenizer({word: i for i, word in enumerate([*VOCABULARY, "?", "."])})
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = snugbert.SnugBertConfig(vocab_size=len(tokenizer), initializer_range=0.1, **sizes)
    for name in ("bert-base-uncased", "bert-base-cased"):
        tokenizer.save_pretrained(folder / name)
        snugbert.SnugBertForMaskedLM(config).save_pretrained(folder / name)


def make_data() -> dict[str, Dataset]:
    """Returns the data sets of fine-tuning. Reviews have class labels, as datasets on the Hub have them."""
    rows = sentences(96, seed=1)
    texts = [row["sentence"] for row in rows[:32]]
    words = [text.split() for text in texts]
    reviews = Dataset.from_list(rows).cast_column("label", ClassLabel(names=list(WORDS)))
    tags = [["B-GOOD" if word in WORDS["cheerful"] else "O" for word in row] for row in words]
    answers = [{"text": [row[0]], "answer_start": [0]} for row in words]
    columns = {"id": [*map(str, range(32))], "context": texts, "question": ["a story?"] * 32, "answers": answers}
    pairs = [{"text": "good", "choices": [*pair], "label": 0} for pair in zip(texts, texts[::-1], strict=True)]
    data = {
        "train": reviews,
        "sentences": Dataset.from_dict({"tokens": words, "ner_tags": tags}),
        "questions": Dataset.from_dict(columns),
        "choices": Dataset.from_list(pairs),
    }
    smaller = {f"dev_{name}": dataset.select(range(12)) for name, dataset in data.items()}
    return data | smaller | {"dev": reviews.select(range(48)), "test": reviews.select(range(24))}


def run_examples(names: dict, chosen) -> None:
    """Runs the examples with these titles, with a tiny model and few steps. They share their variables."""
    for title in filter(chosen, EXAMPLES):
        example = EXAMPLES[title]
        assert len(example.splitlines()) <= 10, title
        example = example.replace("FineTuningArguments(", f"FineTuningArguments({FAST}")
        example = example.replace("PretrainingArguments(", f"PretrainingArguments({FAST}logging_steps=2, ")
        example = example.replace(" max_steps=100,", "").replace('"mini"', '"tiny"')
        exec(compile(example, f"{PAGE}: {title}", "exec"), names)


def is_pretraining(title: str) -> bool:
    return title in ("Pretrain", "Score a masked language model")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_examples_of_fine_tuning_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write_models(tmp_path)
    names = make_data()
    Dataset.from_list(sentences(96, seed=1)).to_csv("train.csv")
    run_examples(names, lambda title: not is_pretraining(title))
    assert AutoModelForSequenceClassification.from_pretrained("sst2-bert").config.id2label[0] == "cheerful"
    card = Path("sst2/README.md").read_text()
    assert "| validation | " in card and "Labels: `cheerful`, `gloomy`." in card
    saved = {path.parent.name for path in Path().glob("*/model.safetensors")}
    assert {"sst2", "sst2-tiny", "ner", "squad", "swag"} <= saved
    printed = capsys.readouterr().out
    assert re.search(r"^(cheerful|gloomy) \{", printed, re.MULTILINE)
    assert "{'accuracy': 0.6666666666666666, 'f1': 0.6666666666666666," in printed


@pytest.mark.slow
@pytest.mark.usefixtures("pictures", "one_thread")
def test_the_examples_of_pretraining_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    document = "The cat sees a bird. The dog sees the cat.\nA bird sleeps and the dog sleeps.\n"
    for name in ("books.txt", "held_out.txt"):
        Path(name).write_text("\n".join([document] * 20))
    names = {"__name__": "example", "snugbert": snugbert}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*pin_memory")
        run_examples(names, is_pretraining)
    assert snugbert.SnugBertForPreTraining.from_pretrained("pretrained").config.vocab_size == len(names["tokenizer"])
    assert [json.loads(line)["step"] for line in Path("pretrained/metrics.jsonl").read_text().splitlines()] == [2, 2]
    assert re.search(r"^step 2/2  epoch \d.* MLM accuracy .* tokens/s", capsys.readouterr().err, re.MULTILINE)
    assert Path("pretrained/training.png").stat().st_size > 10_000
    card = Path("pretrained/README.md").read_text()
    assert "20 documents, 60 sentences" in card and str(tmp_path) not in card
