"""`snugbert squad`: whole runs, thresholds, bad input."""

import json
import random
import re
from pathlib import Path

import pytest
from glue_examples import arguments as command_line
from glue_examples import checkpoint_of
from squad_definition import definition_2
from squad_forms import flat, load_questions, nested

import snugbert_cli
from snugbert import SnugBertTokenizer
from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.tasks.task_arguments import SquadDataArguments

pytestmark = pytest.mark.usefixtures("one_thread")


FIRST = "anna ben carl dora emil fred gina hugo".split()
LAST = "reed stone wood".split()
FILLER = "the old man said that it was very cold and then a dog ran over the hill".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(FILLER), *FIRST, *LAST, "who"]


def stories(number: int, seed: int, negative: bool = False) -> list[dict]:
    """Filler around a first and a last name, the answer. Every second of the `negative` stories has no answer."""
    generator = random.Random(seed)
    rows = []
    for i in range(number):
        words = generator.choices(FILLER, k=generator.randint(3, 24))
        name, answers = f"{generator.choice(FIRST)} {generator.choice(LAST)}", []
        if not (negative and i % 2):
            words.insert(generator.randrange(len(words) + 1), name)
            answers = [(name, " ".join(words).index(name))]
        rows.append({"id": f"q{i}", "title": "T", "context": " ".join(words), "question": "who", "answers": answers})
    return rows


def write_stories(file: Path, rows: list[dict]) -> Path:
    file.write_text("\n".join(json.dumps(flat(row)) for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tokenizer and data."""
    folder = tmp_path_factory.mktemp("squad")
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(folder / "tokenizer")
    write_stories(folder / "train.jsonl", stories(200, seed=1))
    (folder / "dev.json").write_text(json.dumps(nested(stories(60, seed=2))))
    write_stories(folder / "test.jsonl", [{**row, "answers": []} for row in stories(20, seed=3)])
    write_stories(folder / "train-v2.jsonl", stories(200, seed=1, negative=True))
    write_stories(folder / "dev-v2.jsonl", stories(60, seed=2, negative=True))
    return folder


def arguments(workshop: Path, output_dir: Path, **changes: object) -> list[str]:
    """A command line that trains a small model from random weights. None removes an argument."""
    files = {"train_file": workshop / "train.jsonl", "validation_file": workshop / "dev.json"}
    settings = {"max_seq_length": 20, "doc_stride": 6, "learning_rate": 1e-2}
    return command_line(workshop, output_dir, **files | settings | changes)


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a complete run. All questions have answers."""
    output_dir = workshop / "run"
    extra = {"do_train": True, "do_eval": True, "do_predict": True, "test_file": workshop / "test.jsonl"}
    assert snugbert_cli.main(["squad", *arguments(workshop, output_dir, **extra)]) == 0
    return output_dir


def test_a_run_learns_and_writes_everything(run):
    results = json.loads((run / "eval_results.json").read_text())
    assert results["eval_samples"] == 60
    assert results["eval_exact_match"] == results["eval_f1"] == 100.0
    answers = json.loads((run / "predictions.json").read_text())
    assert answers == {row["id"]: row["answers"][0][0] for row in stories(60, seed=2)}
    assert not (run / "null_odds.json").exists()
    # The test questions have no answers.
    expected = {row["id"]: row["answers"][0][0] for row in stories(20, seed=3)}
    assert json.loads((run / "predict_predictions.json").read_text()) == expected


@pytest.mark.slow
def test_a_student_learns_from_unlabeled_questions(run, workshop, tmp_path):
    """8 questions have an answer. The teacher answers the others. Their own answers are not read."""
    rows = [{**flat(row), "answers": "unknown", "is_impossible": True} for row in stories(160, seed=4)]
    unlabeled = tmp_path / "unlabeled.jsonl"
    unlabeled.write_text("\n".join(map(json.dumps, rows)))
    changes = {"teacher_name_or_path": run, "max_train_samples": 8, "unlabeled_file": unlabeled}
    run_command("squad", arguments(workshop, tmp_path / "out", **changes))
    assert json.loads((tmp_path / "out/eval_results.json").read_text())["eval_f1"] > 95
    vocabulary = {word: i for i, word in enumerate([*VOCABULARY, "##s"])}
    SnugBertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "other")
    write_stories(tmp_path / "other.jsonl", [{**row, "question": "whos"} for row in stories(20, seed=5)])
    changes |= {"unlabeled_file": tmp_path / "other.jsonl", "tokenizer_name": tmp_path / "other"}
    with pytest.raises(InputError, match="teacher and student split the text differently"):
        run_command("squad", arguments(workshop, tmp_path / "other-out", **changes))


@pytest.mark.slow
def test_the_best_threshold_gives_the_best_score(workshop, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    files = {
        f"{name}_file": workshop / f"{part}-v2.jsonl" for name, part in (("train", "train"), ("validation", "dev"))
    }
    files["version_2_with_negative"] = True
    run_command("squad", arguments(workshop, first, **files, max_steps=9))  # too few to give an answer at odds of 0
    results = json.loads((first / "eval_results.json").read_text())
    assert results["eval_f1"] + 20 < results["eval_best_f1"]
    assert results["eval_baseline_exact"] == results["eval_baseline_f1"] == 50.0
    threshold = results["eval_best_f1_thresh"]
    changes = {**files, **checkpoint_of(first), "train_file": None, "null_score_diff_threshold": threshold}
    run_command("squad", arguments(workshop, second, **changes))
    again = json.loads((second / "eval_results.json").read_text())
    assert again["eval_f1"] == pytest.approx(results["eval_best_f1"], abs=1e-9)
    assert again["eval_best_f1"] == results["eval_best_f1"]
    odds = json.loads((second / "null_odds.json").read_text())
    answers = json.loads((second / "predictions.json").read_text())
    assert {question for question in odds if odds[question] > threshold} == {q for q in answers if answers[q] == ""}
    # The metrics of the official script for these files.
    golds = {row["id"]: [text for text, _ in row["answers"]] for row in stories(60, seed=2, negative=True)}
    official = definition_2(answers, golds, odds, threshold)
    metrics = {name: again[f"eval_{name}"] for name in official if not name.startswith("best_")}
    assert metrics == {name: official[name] for name in metrics} and len(metrics) == 9
    n_best = json.loads((second / "nbest_predictions.json").read_text())
    for question, candidates in n_best.items():
        (null,) = (c for c in candidates if c["text"] == "")
        best = max(c["start_logit"] + c["end_logit"] for c in candidates if c["text"])
        assert odds[question] == pytest.approx(null["start_logit"] + null["end_logit"] - best)


def test_answers_in_the_wrong_place(run, workshop, tmp_path, caplog):
    rows = stories(6, seed=5)
    rows[1]["answers"] = [("nobody", 4)]
    rows[4]["answers"] = [("nothing", 0), rows[4]["answers"][0]]
    file = write_stories(tmp_path / "bad.jsonl", rows)
    misplaced = f"{file}, row 2, question q1: expected 'nobody' at 4, found {rows[1]['context'][4:10]!r}."
    message = f"{misplaced} Answers that are not at their position in the context: 2. Fix these answers, or set"
    for split in ("train_file", "validation_file"):
        with pytest.raises(InputError, match=re.escape(message)):
            run_command("squad", arguments(workshop, tmp_path / "out", **{split: file}))

    loaded = load_questions(SquadDataArguments(train_file=[str(file)], on_bad_answer="skip"), ("train",))["train"]
    assert [question.id for question in loaded] == ["q0", "q2", "q3", "q4", "q5"]
    assert all(len(question.answers) == 1 for question in loaded)
    assert f"Such answers are skipped. Skipped questions: 1. The first: {misplaced}" in caplog.text
    # Scoring compares texts, not positions.
    changes = {**checkpoint_of(run), "train_file": None, "validation_file": file, "on_bad_answer": "skip"}
    changes |= {"n_best_size": 9, "max_answer_length": 2}
    run_command("squad", arguments(workshop, tmp_path / "out", **changes))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_samples"] == 6 and results["eval_exact_match"] == pytest.approx(100 * 5 / 6)
    n_best = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text()).values()
    assert max(map(len, n_best)) == 9
    assert {len(candidate["text"].split()) for candidates in n_best for candidate in candidates} == {1, 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": None}, "--model_name_or_path is missing. This command needs trained weights"),
        ({"train_file": "test.jsonl"}, "no question has an answer"),
        ({"validation_file": "test.jsonl", "early_stopping_patience": 1}, "--validation_file: no examples"),
    ],
)
def test_bad_arguments(changes, message, workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(workshop)
    with pytest.raises(InputError, match=message):
        run_command("squad", arguments(workshop, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
