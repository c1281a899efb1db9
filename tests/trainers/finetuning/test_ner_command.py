"""`snugbert ner`: whole runs, scoring a checkpoint, bad input."""

import json
import random
import re
from pathlib import Path

import pytest
from glue_examples import arguments as command_line
from glue_examples import checkpoint_of
from transformers import pipeline

import snugbert_cli
from snugbert import Predictor, SnugBertTokenizer
from snugbert.cli.main import run_command
from snugbert.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


FILLER = "the a of in met saw left and then about was".split()
GIVEN, FAMILY, PLACES, ENDINGS = ["anna", "otto"], ["berg", "stone"], ["oslo", "rome"], ["town", "port"]
NAMES = [*GIVEN, *FAMILY, *PLACES, *(f"##{ending}" for ending in ENDINGS)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLER, *NAMES]


def tagged_text(number: int, seed: int, endings: list[str] = ENDINGS) -> str:
    """IOB1 sentences in documents of five. People have one or two names. Places are one word of one or two tokens."""
    generator = random.Random(seed)
    lines = []
    for i in range(number):
        lines += ["-DOCSTART- O", ""] if i % 5 == 0 else []
        for _ in range(generator.randint(1, 5)):
            lines += [f"{word} O" for word in generator.choices(FILLER, k=generator.randint(1, 4))]
            if generator.random() < 0.5:
                lines.append(f"{generator.choice(GIVEN)} I-PER")
                lines += [f"{generator.choice(FAMILY)} I-PER"] if generator.random() < 0.5 else []
            else:
                lines.append(f"{generator.choice(PLACES)}{generator.choice(['', *endings])} I-LOC")
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tokenizer and data: 200 sentences to train on, 50 to score, 30 to tag."""
    folder = tmp_path_factory.mktemp("ner")
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(folder / "tokenizer")
    (folder / "train.txt").write_text(tagged_text(200, seed=1, endings=["town"]))
    (folder / "dev.txt").write_text(tagged_text(50, seed=2))
    (folder / "test.txt").write_text(re.sub(" [IO].*", "", tagged_text(30, seed=3)))
    return folder


def arguments(workshop: Path, output_dir: Path, **changes: object) -> list[str]:
    """A command line that trains a small model from random weights. None removes an argument."""
    files = {"train_file": workshop / "train.txt", "validation_file": workshop / "dev.txt"}
    settings = {"max_seq_length": 24, "num_train_epochs": 5, "learning_rate": 1e-2}
    return command_line(workshop, output_dir, **files | settings | changes)


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a run with document context."""
    extra = {"do_train": True, "do_eval": True, "do_predict": True, "test_file": workshop / "test.txt"}
    argv = ["ner", *arguments(workshop, workshop / "run", document_context=True, **extra)]
    assert snugbert_cli.main(argv) == 0
    return workshop / "run"


def test_a_run_learns_and_writes_everything(run, workshop):
    results = json.loads((run / "eval_results.json").read_text())
    assert results["eval_f1"] == 1.0 and results["eval_PER_f1"] == 1.0 and results["eval_samples"] == 50
    assert 0.5 < results["eval_baseline_f1"] < 0.9  # words ending in -port are not in the training data
    config = json.loads((run / "config.json").read_text())
    assert config["id2label"] == {"0": "O", "1": "B-LOC", "2": "I-LOC", "3": "B-PER", "4": "I-PER"}
    assert (run / "eval_predictions.txt").read_text() == tagged_text(50, seed=2)
    # The test sentences have no tags. The predictions are correct, in the scheme of the training file.
    assert (run / "predictions.txt").read_text() == tagged_text(30, seed=3)
    # Only the first token of a word was trained, so "first", not "simple".
    tag = pipeline("token-classification", model=str(run), aggregation_strategy="first", device="cpu")
    found = [(part["entity_group"], part["word"]) for part in tag("then anna berg met otto in romeport")]
    assert found == [("PER", "anna berg"), ("PER", "otto"), ("LOC", "romeport")]


def test_a_checkpoint_is_scored_without_training(run, workshop, tmp_path, capsys):
    scored = {**checkpoint_of(run), "train_file": None, "max_eval_samples": 20}
    for extra in ({}, {"pad_to_max_length": True}):
        run_command("ner", arguments(workshop, tmp_path, **scored, **extra))
        results = json.loads((tmp_path / "eval_results.json").read_text())
        assert results["eval_samples"] == 20 and results["eval_f1"] == 1.0
        assert "eval_baseline_f1" not in results
    assert "predictions  eval_predictions.txt\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("tags", [{"O": "O", "I-PER": "I", "I-LOC": "I"}, {"O": "IN", "I-PER": "NNP", "I-LOC": "S"}])
def test_tags_without_types_and_tags_that_mark_no_entities(tags, workshop, tmp_path, caplog):
    has_entities, files = tags["O"] == "O", {}
    metric = "ENTITY_f1" if has_entities else "accuracy"
    for name, number, new in (("train", 200, ""), ("validation", 50, "" if has_entities else "about UH\n\n")):
        lines = re.sub(" ([IO].*)", lambda match: f" {tags[match[1]]}", tagged_text(number, seed=1))
        files[f"{name}_file"] = tmp_path / f"{name}.txt"
        files[f"{name}_file"].write_text(lines + new)
    run, best = tmp_path / "run", {"load_best_model_at_end": True, "metric_for_best_model": metric}
    run_command("ner", arguments(workshop, run, **files, **best, num_train_epochs=2))
    state = json.loads((run / "trainer_state.json").read_text())
    scores = [line[f"eval_{metric}"] for line in state["log_history"] if f"eval_{metric}" in line]
    assert len(scores) == 2 and state["best_metric"] == max(scores)
    results = json.loads((run / "eval_results.json").read_text())
    card, labels = (run / "README.md").read_text(), json.loads((run / "config.json").read_text())["label2id"]
    source, predicted = files["validation_file"].read_text(), (run / "eval_predictions.txt").read_text()
    (row,) = Predictor(str(run))([{"tokens": ["then", "anna", "berg"]}])
    if has_entities:
        assert set(labels) == {"O", "B-ENTITY", "I-ENTITY"} and results["eval_ENTITY_f1"] == results["eval_f1"] == 1
        assert row["predicted_tags"] == ["O", "B-ENTITY", "I-ENTITY"] and "ENTITY" in card
        assert predicted == source
    else:
        assert set(labels) == {"IN", "NNP", "S"}
        words = len(re.findall("^[a-z].* ", source, re.MULTILINE))
        assert results["eval_accuracy"] == (words - 1) / words >= results["eval_baseline_accuracy"]
        assert not any("f1" in name or "recall" in name for name in results) and "f1" not in card
        assert predicted == source.replace("about UH", "about IN")
        assert row["predicted_tags"] == ["IN", "NNP", "NNP"]
        (row,) = Predictor(str(run))([{"text": "then anna"}])
        assert [(part["label"], part["text"]) for part in row["entities"]] == [("IN", "then"), ("NNP", "anna")]
        assert "the tags mark no entities (such as 'IN', " in caplog.text
        assert "1 word with a tag that is not in" in caplog.text and "such as 'UH'. Such words count" in caplog.text


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_with_another_tokenizer(run, workshop, tmp_path):
    """8 sentences have tags, all of one type. The teacher tags the others. Their own tags are not read."""
    tokens = [*VOCABULARY[:5], *reversed(VOCABULARY[5:])]
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(tokens)}).save_pretrained(tmp_path / "tokenizer")
    untagged = re.sub(" [IO].*|-DOCSTART- O", "", tagged_text(160, seed=4)).split("\n\n")
    rows = [json.dumps({"tokens": sentence.split(), "ner_tags": [7]}) for sentence in untagged]
    (tmp_path / "unlabeled.jsonl").write_text("\n".join(rows))
    sentences = (workshop / "train.txt").read_text().split("\n\n")
    (tmp_path / "people.txt").write_text("\n\n".join(text for text in sentences if "I-LOC" not in text))
    files = {"train_file": tmp_path / "people.txt", "unlabeled_file": tmp_path / "unlabeled.jsonl"}
    files |= {"tokenizer_name": tmp_path / "tokenizer", "max_train_samples": 8}
    run_command("ner", arguments(workshop, tmp_path / "out", teacher_name_or_path=run, **files))
    assert json.loads((tmp_path / "out/eval_results.json").read_text())["eval_f1"] > 0.95


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_file": "other.txt"}, r"other.txt, line 4: unknown entity type 'GPE'\..*train.txt: LOC, PER\.$"),
        ({"validation_file": "other.txt", "document_context": True}, "other.txt does not mark its documents"),
        ({"label_column_name": "ner_tags"}, "columns of a CoNLL file have no names. Use a number"),
        ({"train_file": None}, r"The labels of the model \(LABEL_0, LABEL_1\) are not entity tags"),
    ],
)
def test_bad_arguments(changes, message, workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("other.txt").write_text("anna I-PER\n\nin O\nrome I-GPE\n")
    with pytest.raises(InputError, match=message):
        run_command("ner", arguments(workshop, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
