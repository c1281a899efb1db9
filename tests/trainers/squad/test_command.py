"""`snugbert squad`: reading every kind of data, windows against plain references, a whole run, and bad input."""

import gzip
import json
import logging
import random
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from squad_definition import definition_2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from snugbert import SnugBertTokenizer, cli
from snugbert.errors import InputError
from snugbert.question_answering.windows import ContextWindows, Question, best_windows, find_best_spans, make_windows
from snugbert.trainers.squad import command as squad
from snugbert.trainers.squad.data import SquadDataArguments, find_answer, load_questions, read_questions

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer(minilm) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm)


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version_2", "sizes"),
    # Questions, paragraphs, articles, questions without an answer.
    [
        ("dev-v1.1", False, (10570, 2067, 48, 0)),
        ("train-v1.1-first44", False, (11877, 2429, 44, 0)),
        ("dev-v2.0-half", True, (6078, 646, 16, 3168)),
    ],
)
def test_nested_and_flat_files_have_the_same_questions(name, version_2, sizes, data_dir):
    loaded = []
    for form in ("json", "jsonl"):
        file = str(data_dir / "squad" / f"{name}.{form}.gz")
        split = {"train_file": [file]} if name.startswith("train") else {"validation_file": file}
        arguments = SquadDataArguments(**split, version_2_with_negative=version_2)
        (questions,) = load_questions(arguments, None).values()
        loaded.append([question._replace(row="", is_impossible=False) for question in questions])  # flat: not told
    nested, flat = loaded
    assert sorted(nested) == sorted(flat)
    columns = [{getattr(question, name) for question in nested} for name in ("id", "context", "title")]
    assert (*map(len, columns), sum(not question.answers for question in nested)) == sizes
    for question in nested:
        for text, start in zip(question.answers, question.answer_starts, strict=True):
            assert question.context[start : start + len(text)] == text


ROWS = [
    {
        "id": "a",
        "title": "T",
        "context": "Anna met  Ben.\n",
        "question": "Who?",
        "answers": [("Anna", 0), ("Ben", 10)],
    },
    {"id": "b", "title": "T", "context": "Anna met  Ben.\n", "question": "Why?", "answers": []},
    {
        "id": "c",
        "title": "U",
        "context": "\u00c9mile \u2028 slept.",
        "question": "Who?",
        "answers": [("\u00c9mile", 0)],
    },
]


def flat(row: dict) -> dict:
    texts, starts = [text for text, _ in row["answers"]], [start for _, start in row["answers"]]
    return {**row, "answers": {"text": texts, "answer_start": starts}}


def nested(rows: list[dict]) -> dict:
    """SQuAD's own form, a paragraph for each row."""
    articles = []
    for row in rows:
        answers = [{"text": text, "answer_start": start} for text, start in row["answers"]]
        qa = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        articles.append({"title": row["title"], "paragraphs": [{"context": row["context"], "qas": [qa]}]})
    return {"version": "v2.0", "data": articles}


def test_every_format_gives_the_same_questions(tmp_path):
    rows = [flat(row) for row in ROWS]
    lines = "\n".join(json.dumps(row) for row in rows)
    contents = {
        "lines.jsonl": "\ufeff" + lines,
        "lines.json": lines.replace("\n", "\r\n\r\n"),
        "list.json": json.dumps(rows, indent=1, ensure_ascii=False),
        "data.json": json.dumps({"data": rows}, indent=1),  # as run_qa.py wants it
        "nested.json": json.dumps(nested(ROWS)),
        "indented.json": json.dumps(nested(ROWS), indent=2, ensure_ascii=False),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "folder").mkdir()
    Dataset.from_list(rows).to_parquet(tmp_path / "folder" / "validation.parquet")
    sources = [{"validation_file": str(file)} for file in sorted(tmp_path.iterdir()) if file.is_file()]
    assert len(sources) == 12
    for source in [*sources, {"dataset_name": str(tmp_path / "folder")}]:
        arguments = SquadDataArguments(**source, version_2_with_negative=True)
        splits = load_questions(arguments, None, cache_dir=str(tmp_path / "cache"))
        assert [question._replace(row="", is_impossible=False) for question in splits["validation"]] == [
            Question("a", "Who?", "Anna met  Ben.\n", ("Anna", "Ben"), (0, 10), "T"),
            Question("b", "Why?", "Anna met  Ben.\n", (), (), "T"),
            Question("c", "Who?", "\u00c9mile \u2028 slept.", ("\u00c9mile",), (0,), "U"),
        ]


def test_several_files_and_limits(tmp_path):
    for name, rows in (("1.json", ROWS[:2]), ("2.json", ROWS[2:])):
        (tmp_path / name).write_text(json.dumps(nested(rows)))
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.json")]
    questions = load_questions(SquadDataArguments(train_file=files, version_2_with_negative=True), ("train",))["train"]
    assert [question.id for question in questions] == ["a", "b", "c"]
    assert questions[1].row == f"{files[0]}, data[1].paragraphs[0].qas[0]"
    # What is behind the limit is not looked at: not the question without an answer.
    questions = load_questions(SquadDataArguments(train_file=files, max_train_samples=1), ("train",))["train"]
    assert [question.id for question in questions] == ["a"]


def test_white_space_does_not_matter():
    context = "In  1066\n William came "
    assert find_answer(context, "1066", 4) == (4, 8)
    assert find_answer(context, " 1066 ", 3) == (4, 8)  # told with the spaces around it
    assert find_answer(context, "1066", 3) == (4, 8)
    assert find_answer(context, " 1066", 4) == (4, 8)  # or half of it
    assert find_answer(context, "1066 William", 4) == (4, 17)  # the line end was made a space
    assert find_answer(context, "106", 4) == (4, 7)
    assert find_answer(context, "1067", 4) is None
    assert find_answer(context, "1066", 5) is None
    assert find_answer(context, "In", -1) is None
    assert find_answer(context, "In", 99) is None


# --- windows ----------------------------------------------------------------------------------------------------


def run_qa_features(question: Question, tokenizer: PreTrainedTokenizerBase, length: int, overlap: int) -> list[dict]:
    """Windows and positions of a question, by the tokenizer's own truncation and token by token."""
    encoded = tokenizer(
        question.question,
        question.context,
        truncation="only_second",
        max_length=length,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    features = []
    for window, offsets in enumerate(encoded["offset_mapping"]):
        context = [token for token, segment in enumerate(encoded.sequence_ids(window)) if segment == 1]
        covered = []
        if question.answers:
            start, end = question.answer_starts[0], question.answer_starts[0] + len(question.answers[0])
            if offsets[context[0]][0] <= start and end <= offsets[context[-1]][1]:
                covered = [token for token in context if offsets[token][1] > start and offsets[token][0] < end]
        features.append(
            {
                **{name: encoded[name][window] for name in tokenizer.model_input_names},
                "start_positions": covered[0] if covered else 0,
                "end_positions": covered[-1] if covered else 0,
                "first": context[0],
                "offsets": [offsets[token] for token in context],
            }
        )
    return features


def check_is_max_context(spans: list[tuple[int, int]], window: int, position: int) -> bool:
    """The definition of the original release's run_squad.py; spans: first token and number of tokens."""
    best_score, best_span = None, None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span = score, number
    return window == best_span


@pytest.mark.parametrize(("length", "overlap"), [(384, 128), (128, 32), (96, 0)])
def test_windows_are_those_of_the_tokenizer(length, overlap, data_dir, tokenizer):
    file = data_dir / "squad" / "dev-v2.0-half.jsonl.gz"
    questions = random.Random(1).sample(read_questions(file, "dev"), 150)
    windows = make_windows(questions, tokenizer, length, overlap, training=True)
    expected = [
        (number, feature)
        for number, question in enumerate(questions)
        for feature in run_qa_features(question, tokenizer, length, overlap)
    ]
    assert windows.question.tolist() == [number for number, _ in expected]
    assert windows.first.tolist() == [feature["first"] for _, feature in expected]
    names = [*tokenizer.model_input_names, "start_positions", "end_positions"]
    assert windows.features[:] == {name: [feature[name] for _, feature in expected] for name in names}
    offsets = [
        list(zip(*map(np.ndarray.tolist, pair), strict=True))
        for pair in zip(windows.starts, windows.ends, strict=True)
    ]
    assert offsets == [feature["offsets"] for _, feature in expected]
    assert sum(feature["start_positions"] > 0 for _, feature in expected) > 50


def found_again(questions: list[Question], windows: ContextWindows) -> int:
    """How many windows hold an answer; it must stand there."""
    found = 0
    positions = zip(windows.features["start_positions"], windows.features["end_positions"], strict=True)
    for row, (start, end) in enumerate(positions):
        if start:
            question, first = questions[windows.question[row]], windows.first[row]
            begin, behind = windows.starts[row][start - first], windows.ends[row][end - first]
            answer = question.answer_starts[0], question.answer_starts[0] + len(question.answers[0])
            assert begin <= answer[0] and answer[1] <= behind
            # No further token is needed for it.
            assert windows.ends[row][start - first] > answer[0] and windows.starts[row][end - first] < answer[1]
            found += 1
    return found


def test_every_answer_is_in_a_window(data_dir, tokenizer):
    file = str(data_dir / "tydiqa_goldp_en" / "train.jsonl.gz")
    questions = load_questions(SquadDataArguments(train_file=[file], max_train_samples=300), ("train",))["train"]
    windows = make_windows(questions, tokenizer, max_seq_length=192, doc_stride=64, training=True)
    assert found_again(questions, windows) > len(questions)
    answered = windows.question[np.array(windows.features["start_positions"][:]) > 0]
    assert set(answered.tolist()) == set(range(len(questions)))
    # Every token of a context has its most context in just one window.
    for number, question in enumerate(questions):
        rows = np.flatnonzero(windows.question == number)
        most = np.concatenate([windows.starts[row][windows.max_context[row]] for row in rows])
        tokens = tokenizer(question.context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        assert sorted(most.tolist()) == [start for start, _ in tokens["offset_mapping"]]


@pytest.mark.parametrize(
    ("tokens", "size", "overlap", "expected"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (3, 6)]),
        (8, 5, 2, [(0, 5), (3, 8)]),
        (9, 5, 2, [(0, 5), (3, 8), (6, 9)]),
        (9, 3, 0, [(0, 3), (3, 6), (6, 9)]),
        (23, 9, 7, [(0, 9), (2, 11), (4, 13), (6, 15), (8, 17), (10, 19), (12, 21), (14, 23)]),
    ],
)
def test_spans_and_their_best(tokens, size, overlap, expected):
    spans = find_best_spans(tokens, size, overlap)
    assert spans == expected
    lengths = [(begin, end - begin) for begin, end in spans]
    for window, ((begin, end), best) in enumerate(zip(spans, best_windows(spans), strict=True)):
        assert best.tolist() == [check_is_max_context(lengths, window, token) for token in range(begin, end)]


def test_unusual_questions(tokenizer, caplog):
    questions = [
        Question("0", "", "Anna slept."),
        Question("1", "Who slept?", " \n "),
        Question("2", "who " * 70, "Anna unbelievably slept.", ("believ",), (7,), row="dev.jsonl, row 3"),
    ]
    with caplog.at_level(logging.WARNING, logger="snugbert"):
        windows = make_windows(questions, tokenizer, training=True)
    assert (
        "1 questions have more than 64 tokens (--max_query_length) and lose their ends; the first: dev.jsonl, row 3"
        in (caplog.text)
    )
    pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in windows.features["input_ids"]]
    assert pieces[0] == ["[CLS]", "[SEP]", "anna", "slept", ".", "[SEP]"]
    assert pieces[1] == ["[CLS]", "who", "slept", "?", "[SEP]", "[SEP]"]
    assert windows.features["token_type_ids"][1] == [0, 0, 0, 0, 0, 1]
    assert [len(values) for values in (windows.starts[1], windows.ends[1], windows.max_context[1])] == [0, 0, 0]
    assert pieces[2][:66] == ["[CLS]", *["who"] * 64, "[SEP]"]
    # Part of a word: the pieces that hold it.
    start, end = windows.features["start_positions"][2], windows.features["end_positions"][2]
    assert "".join(pieces[2][start : end + 1]).replace("##", "") in "unbelievably"
    assert found_again(questions, windows) == 1


def test_windows_that_are_too_small(tokenizer):
    question = Question("0", "Who slept?", "Anna slept.")
    with pytest.raises(InputError, match=r"beside a question of 3 tokens, a window of 128 .* has room for 122 of"):
        make_windows([question], tokenizer, max_seq_length=128)
    assert len(make_windows([question], tokenizer, max_seq_length=128, doc_stride=121).question) == 1


# --- a whole run ------------------------------------------------------------------------------------------------

FIRST = "anna ben carl dora emil fred gina hugo".split()
LAST = "reed stone wood".split()
FILLER = "the old man said that it was very cold and then a dog ran over the hill".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(FILLER), *FIRST, *LAST, "who"]
SMALL = (
    "num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2,"
    "hidden_dropout_prob=0,attention_probs_dropout_prob=0"
)


def stories(number: int, seed: int, negative: bool = False) -> list[dict]:
    """Filler around a first and a last name, the answer; every second of the `negative` stories has none."""
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
    """A command line that trains a small model of random weights; None takes an argument away."""
    values = {
        "config_name": "tiny",
        "config_overrides": SMALL,
        "tokenizer_name": workshop / "tokenizer",
        "train_file": workshop / "train.jsonl",
        "validation_file": workshop / "dev.json",
        "max_seq_length": 20,
        "doc_stride": 6,
        "output_dir": output_dir,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 4,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


def checkpoint_of(run: Path) -> dict[str, object]:
    """Changes to `arguments` that answer with the model in `run`."""
    return {
        "model_name_or_path": run,
        "config_name": None,
        "config_overrides": None,
        "tokenizer_name": None,
        "train_file": None,
    }


@pytest.fixture(scope="module")
def run(workshop) -> Path:
    """The output folder of a whole run on questions that all have answers."""
    output_dir = workshop / "run"
    extra = {"do_train": True, "do_eval": True, "do_predict": True, "test_file": workshop / "test.jsonl"}
    assert cli.main(["squad", *arguments(workshop, output_dir, **extra)]) == 0
    return output_dir


def test_a_run_learns_and_writes_everything(run):
    results = json.loads((run / "eval_results.json").read_text())
    assert results["eval_samples"] == 60
    assert results["eval_exact_match"] == results["eval_f1"] == 100.0
    answers = json.loads((run / "predictions.json").read_text())
    assert answers == {row["id"]: row["answers"][0][0] for row in stories(60, seed=2)}
    n_best = json.loads((run / "nbest_predictions.json").read_text())
    assert all(n_best[question][0]["text"] == answer for question, answer in answers.items())
    assert max(map(len, n_best.values())) == 20
    assert not (run / "null_odds.json").exists()
    # The answers of the test questions are not told.
    expected = {row["id"]: row["answers"][0][0] for row in stories(20, seed=3)}
    assert json.loads((run / "predict_predictions.json").read_text()) == expected
    assert not (run / "predict_results.json").exists()
    assert (run / "f1_by_answer_length.png").stat().st_size > 5000
    assert not (run / "predict_f1_by_answer_length.png").exists()
    card = (run / "README.md").read_text()
    assert "question-answering" in card and "f1_by_answer_length.png" in card


@pytest.mark.usefixtures("pictures")
def test_the_best_threshold_is_what_a_run_with_it_scores(workshop, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    files = {
        "train_file": workshop / "train-v2.jsonl",
        "validation_file": workshop / "dev-v2.jsonl",
        "version_2_with_negative": True,
    }
    squad.main(arguments(workshop, first, **files, max_steps=9))  # too few to give an answer at odds of 0
    results = json.loads((first / "eval_results.json").read_text())
    assert results["eval_f1"] + 20 < results["eval_best_f1"]
    assert results["eval_baseline_exact"] == results["eval_baseline_f1"] == 50.0
    assert "always no answer: exact 50.0000, f1 50.0000" in capsys.readouterr().out
    assert (first / "thresholds.png").stat().st_size > 5000
    threshold = results["eval_best_f1_thresh"]
    changes = {**files, **checkpoint_of(first), "null_score_diff_threshold": threshold}
    squad.main(arguments(workshop, second, **changes))
    again = json.loads((second / "eval_results.json").read_text())
    assert again["eval_f1"] == pytest.approx(results["eval_best_f1"], abs=1e-9)
    assert again["eval_best_f1"] == results["eval_best_f1"]
    assert again["eval_HasAns_total"] == again["eval_NoAns_total"] == 30
    odds = json.loads((second / "null_odds.json").read_text())
    answers = json.loads((second / "predictions.json").read_text())
    assert {question for question in odds if odds[question] > threshold} == {q for q in answers if answers[q] == ""}
    # What the official script says of these files.
    golds = {row["id"]: [text for text, _ in row["answers"]] for row in stories(60, seed=2, negative=True)}
    official = definition_2(answers, golds, odds, threshold)
    figures = {name: again[f"eval_{name}"] for name in official if not name.startswith("best_")}
    assert figures == {name: official[name] for name in figures} and len(figures) == 9
    n_best = json.loads((second / "nbest_predictions.json").read_text())
    for question, candidates in n_best.items():
        (null,) = (c for c in candidates if c["text"] == "")
        best = max(c["start_logit"] + c["end_logit"] for c in candidates if c["text"])
        assert odds[question] == pytest.approx(null["start_logit"] + null["end_logit"] - best)


def test_limits_of_answers(run, workshop, tmp_path):
    squad.main(arguments(workshop, tmp_path, **checkpoint_of(run), n_best_size=3, max_answer_length=1))
    n_best = json.loads((tmp_path / "nbest_predictions.json").read_text())
    assert max(map(len, n_best.values())) == 3
    assert {len(candidate["text"].split()) for candidates in n_best.values() for candidate in candidates} == {1}


def test_defaults_are_the_original_releases(tmp_path):
    assert squad.SquadTrainingArguments(output_dir=str(tmp_path)).learning_rate == 5e-5
    limits = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    limits |= {"n_best_size": 20, "max_answer_length": 30, "null_score_diff_threshold": 0.0}
    data_args = SquadDataArguments(dataset_name="squad")
    assert {name: getattr(data_args, name) for name in limits} == limits


def test_answers_in_the_wrong_place(run, workshop, tmp_path, caplog):
    rows = stories(6, seed=5)
    rows[1]["answers"] = [("nobody", 4)]
    rows[4]["answers"] = [("nothing", 0), rows[4]["answers"][0]]
    file = write_stories(tmp_path / "bad.jsonl", rows)
    stands = rows[1]["context"][4:10]
    message = (
        f"{file}: 2 answers are not in their context at their place; the first: {file}, row 2, question q1: 'nobody' "
        f"should be at 4, where {stands!r} is"
    )
    for split in ("train_file", "validation_file"):
        with pytest.raises(InputError, match=re.escape(message)):
            squad.main(arguments(workshop, tmp_path / "out", **{split: file}))
    assert not (tmp_path / "out").exists()

    loaded = load_questions(SquadDataArguments(train_file=[str(file)], on_bad_answer="skip"), ("train",))["train"]
    assert [question.id for question in loaded] == ["q0", "q2", "q3", "q4", "q5"]
    assert all(len(question.answers) == 1 for question in loaded)
    assert f"{message}; they are left out, and 1 questions with them" in caplog.text
    # Scoring compares texts, wherever they are.
    changes = {**checkpoint_of(run), "validation_file": file, "on_bad_answer": "skip"}
    squad.main(arguments(workshop, tmp_path / "out", **changes))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_samples"] == 6 and results["eval_exact_match"] == pytest.approx(100 * 5 / 6)


def test_empty_questions_and_contexts_are_answered(run, workshop, tmp_path, caplog):
    rows = [
        {"id": "a", "context": " \n ", "question": "who"},
        {"id": "b", "context": "then anna reed ran", "question": " "},
        {"id": "c", "context": "then anna reed ran", "question": "who " * 99},
    ]
    (tmp_path / "test.json").write_text(json.dumps(rows))
    changes = {**checkpoint_of(run), "validation_file": tmp_path / "test.json", "max_query_length": 3}
    squad.main(arguments(workshop, tmp_path / "out", **changes))
    assert "2 questions or contexts are empty; without a context there is no answer; the first: " in caplog.text
    assert "1 questions have more than 3 tokens (--max_query_length) and lose their ends" in caplog.text
    assert "no answers are told; the questions are answered and not scored" in caplog.text
    answers = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert answers["a"] == "" and set(answers) == {"a", "b", "c"}
    assert all(answer in "then anna reed ran" for answer in answers.values())


# --- bad input --------------------------------------------------------------------------------------------------

QA = {"id": "1", "question": "who", "context": "then anna ran", "answers": {"text": ["anna"], "answer_start": [5]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "dev.json holds no questions"),
        ('{"data": []}', "dev.json holds no questions"),
        ("id,question\n", "dev.json: not JSON"),
        ('{"data": [', "dev.json: not JSON"),
        (f"{json.dumps(QA)}\n{{", "dev.json, row 2: not JSON"),
        (f"{json.dumps(QA)}\n3", "dev.json, row 2: a int where an object with columns should be"),
        (
            {**QA, "context": None},
            "row 1: no text in 'context'; expected are id, question, context and answers, and found",
        ),
        ({"id": "1", "query": "who", "passage": "x"}, "row 1: no text in 'question'; .* found id, query, passage"),
        ({**QA, "answers": "anna"}, "row 1: 'answers' must be .* not anna"),
        ({**QA, "answers": {"text": ["anna"], "answer_start": []}}, "row 1: 'answers' must be"),
        ({**QA, "answers": {"text": ["anna"], "answer_start": ["5"]}}, "row 1: 'answers' must be"),
        ({**QA, "answers": [{"text": "anna"}]}, "row 1: 'answers' must be"),
        (
            {**QA, "is_impossible": True},
            "row 1: 'is_impossible' says that there is no answer, but 'answers' has 'anna'",
        ),
        ([QA, QA], "row 2: the id 1 is also that of .*row 1"),
        (
            [QA, {**QA, "id": "2", "answers": None}],
            "row 2: question 2 has no answer, .* give --version_2_with_negative",
        ),
        ([QA, {**QA, "id": "2", "answers": [{"text": " ", "answer_start": 0}]}], "row 2: question 2 has no answer"),
        (
            {"data": [{"title": "T", "paragraphs": {}}]},
            r"data\[0\]: expected a list 'paragraphs', .* found title, paragraphs",
        ),
        (
            {"data": [{"paragraphs": [{"context": "x"}]}]},
            r"data\[0\].paragraphs\[0\]: expected a list 'qas', .* found context",
        ),
        (
            {"data": [{"paragraphs": [{"qas": [QA, "who"]}]}]},
            r"paragraphs\[0\].qas\[1\]: a str where a question should be",
        ),
    ],
)
def test_bad_files(content, message, workshop, tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=message):
        squad.main(arguments(workshop, tmp_path / "out", validation_file=file))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": "missing.json"}, "--train_file: there is no file missing.json"),
        ({"train_file": None, "validation_file": None}, "there are no data; give --train_file"),
        (
            {"train_file": None, "do_train": True},
            "there are no train questions; name a file of them with --train_file",
        ),
        ({"train_file": None}, "nothing trains the model, and --config_name alone gives it random weights"),
        ({"dataset_name": "squad"}, "--dataset_name: give either the name of a data set or files"),
        (
            {"dataset_name": "./no", "train_file": None, "validation_file": None},
            r"--dataset_name: there is no folder \./no\.",
        ),
        (
            {"dataset_name": "./broken", "train_file": None, "validation_file": None},
            "the data set ./broken cannot be loaded",
        ),
        ({"train_file": "{workshop}/test.jsonl"}, "no question has an answer to learn"),
        (
            {"validation_file": "{workshop}/test.jsonl", "early_stopping_patience": 1},
            "no validation question has an answer to choose the best model by",
        ),
        ({"on_bad_answer": "ignore"}, "invalid choice: 'ignore'"),
        ({"max_answer_length": 0}, "--max_answer_length must be at least 1, not 0"),
        ({"max_seq_length": 10}, r"beside a question of 1 tokens, a window of 10 .* has room for 6 of the context"),
        (
            {"metric_for_best_model": "accuracy"},
            "there is no metric 'accuracy'; those of squad.* are exact_match, f1",
        ),
        ({"class_weights": "balanced"}, "--class_weights: squad.* has no classes"),
    ],
)
def test_bad_arguments(changes, message, workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.json").write_text("{")
    changes = {
        name: value.format(workshop=workshop) if isinstance(value, str) else value for name, value in changes.items()
    }
    with pytest.raises(InputError, match=message):
        squad.main(arguments(workshop, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
