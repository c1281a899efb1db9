"""The commands open checkpoints of the family as they open BERT's, on rows of real data."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
import torch
import transformers
from family_checkpoints import write_checkpoint
from tables import write_csv

import snugbert
import snugbert_cli
from snugbert import demo
from snugbert.families.reading import STOCK_NAMES
from snugbert.families_snugbert import FAMILY_TYPES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SHORT_RUN = {
    "use_cpu": True,
    "disable_tqdm": True,
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "save_strategy": "no",
}


def run_command(name: str, **flags: object) -> int:
    """Runs a command, with `flags` as on the command line."""
    arguments = [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]
    return snugbert_cli.main([name, *arguments])


@pytest.fixture(scope="module")
def data(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of MRPC, CoNLL-2003, SQuAD and Wikipedia."""
    folder = tmp_path_factory.mktemp("data")
    with (data_dir / "glue/MRPC/dev.tsv").open(encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in islice(file, 1, 17)]
    fields = [{"sentence1": row[3], "sentence2": row[4], "label": "yes" if row[0] == "1" else "no"} for row in rows]
    write_csv(folder / "pairs.csv", fields)
    for source, name, lines in (
        ("conll2003/valid.txt.gz", "entities.txt", 60),
        ("squad/dev-v1.1.jsonl.gz", "questions.jsonl", 4),
        ("wiki_en/validation.txt.gz", "text.txt", 12),
    ):
        with gzip.open(data_dir / source, "rt", encoding="utf-8") as file:
            (folder / name).write_text("".join(islice(file, lines)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("family", FAMILY_TYPES)
def test_glue_scores_pairs_as_stock_does(family, data, tmp_path):
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    folder = write_checkpoint(tmp_path / "model", family, "ForSequenceClassification", initializer_range=0.5, **labels)
    flags = {"model_name_or_path": folder, "validation_file": data / "pairs.csv", "output_dir": tmp_path / "glue"}
    assert run_command("glue", **flags, do_eval=True, use_cpu=True) == 0
    predicted = [json.loads(line) for line in (tmp_path / "glue/eval_predictions.jsonl").read_text().splitlines()]
    stock = getattr(transformers, f"{STOCK_NAMES[family]}ForSequenceClassification").from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options = {"truncation": True, "max_length": 128, "padding": True, "return_tensors": "pt"}
    with torch.no_grad():
        batch = tokenizer(*([row[name] for row in predicted] for name in ("sentence1", "sentence2")), **options)
        expected = stock(**batch).logits.softmax(-1)
    ours = torch.tensor([[row["probabilities"][label] for label in ("no", "yes")] for row in predicted])
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    assert expected.std(0).min() > 1e-3


def open_result(folder: Path, auto_class: type) -> tuple:
    """Opens the result of a command as users do. No weight is missing, and the model runs."""
    model, info = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.eval()(**tokenizer("It was a film.", return_tensors="pt"))[0].isfinite().all()
    return model, tokenizer


@pytest.mark.parametrize(
    ("family", "command", "file", "auto_class", "flags"),
    [
        ("roberta", "squad", "questions.jsonl", "QuestionAnswering", {"max_seq_length": 512}),
        ("deberta-v2", "squad", "questions.jsonl", "QuestionAnswering", {"max_seq_length": 512}),
        ("roberta", "ner", "entities.txt", "TokenClassification", {}),
        ("camembert", "ner", "entities.txt", "TokenClassification", {}),
        ("camembert", "pretrain", "text.txt", "MaskedLM", {"objective": "mlm", "max_seq_length": 64}),
        ("electra", "pretrain", "text.txt", "MaskedLM", {"objective": "mlm", "max_seq_length": 64}),
    ],
)
def test_commands_train(family, command, file, auto_class, flags, data, tmp_path):
    flags |= {"model_name_or_path": write_checkpoint(tmp_path / "model", family), "output_dir": tmp_path / "trained"}
    flags |= {"train_file": data / file, "validation_file": data / file, "cache_dir": tmp_path}
    assert run_command(command, **flags, **SHORT_RUN) == 0
    _, tokenizer = open_result(tmp_path / "trained", getattr(transformers, f"AutoModelFor{auto_class}"))
    if command == "ner":  # the first word of a text has the same tokens as in a list of words
        words = tokenizer(["said"], is_split_into_words=True, add_special_tokens=False)
        assert tokenizer("said", add_special_tokens=False) == words and len(words["input_ids"]) == 1


def test_one_token_type_and_a_tokenizer_with_two(data, tmp_path):
    """Models like KLUE's RoBERTa: pairs of their tokenizer have segments that the model does not have."""
    folder = write_checkpoint(tmp_path / "model", "roberta", tokenizer_class="BertTokenizer", pad_token_id=0)
    assert max(transformers.AutoTokenizer.from_pretrained(folder)("a", "b")["token_type_ids"]) == 1
    flags = {"model_name_or_path": folder, "output_dir": tmp_path / "glue"}
    assert run_command("glue", **flags, train_file=data / "pairs.csv", **SHORT_RUN) == 0
    model, tokenizer = open_result(tmp_path / "glue", transformers.AutoModelForSequenceClassification)
    assert model(**tokenizer("a", "b", return_tensors="pt")).logits.isfinite().all()


def test_pairs_need_two_token_types(data, tmp_path, capsys):
    folder = write_checkpoint(tmp_path / "model", "roberta")
    assert run_command("pretrain", train_file=data / "text.txt", model_name_or_path=folder, show=1) == 2
    assert f"need two token types, but {folder} has 1" in capsys.readouterr().err


def test_the_demo_finds_replaced_words(tmp_path):
    folder = write_checkpoint(tmp_path, "electra", "ForPreTraining", initializer_range=0.3)
    text = "It was like a film, who said?"
    model = snugbert.SnugBertForReplacedTokenDetection.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stock = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    encoding = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = stock(**encoding).logits[0]
        middle = logits.sort().values[4:6].mean()
        model.discriminator_predictions.dense_prediction.bias -= middle
    replaced = {word for word, logit in zip(encoding.word_ids(), logits, strict=True) if logit > middle}
    expected = {encoding.word_to_chars(word) for word in replaced - {None}}
    marked = demo.find_replaced(model, tokenizer, text)
    found = {(each["start"], each["end"]) for each in marked["entities"]}
    assert found == expected and 0 < len(found) < 8 and marked["text"] == text


def test_vocabulary_extends_tokenizer_and_model(data, tmp_path):
    folder = write_checkpoint(tmp_path / "model", "roberta")
    flags = {"init": folder, "train_file": data / "text.txt", "output_dir": tmp_path / "new"}
    assert run_command("vocabulary", **flags, vocab_size=600) == 0
    old, new = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (folder, tmp_path / "new"))
    assert new.get_vocab().items() >= old.get_vocab().items() and len(new) == 600
    text = f"who said {old.mask_token} it"
    inputs = new(text, return_tensors="pt")
    assert inputs["input_ids"].tolist() == old(text, return_tensors="pt")["input_ids"].tolist()
    stock = transformers.RobertaForMaskedLM.from_pretrained(folder).eval()
    ours = snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        expected = stock(**inputs).logits
        torch.testing.assert_close(ours(**inputs).logits[..., : len(old)], expected, atol=1e-5, rtol=0)
