"""Questions on paragraphs: SQuAD's own nested JSON, flat JSON, or a datasets name; versions 1.1 and 2.0.

Questions are held in memory, 130,000 at most in SQuAD (v2.0).
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from snugbert.errors import InputError
from snugbert.json_files import parse_json
from snugbert.question_answering.windows import Question
from snugbert.trainers.rows import LONGEST_LINE_OF_JSON, read_json_rows, read_rows, read_text_lines
from snugbert.trainers.splits import SPLITS, choose_splits, load_dataset_splits
from snugbert.trainers.squad.arguments import SquadDataArguments

logger = logging.getLogger(__name__)


def load_questions(
    data_args: SquadDataArguments, wanted: tuple[str, ...] | None, **download: Any
) -> dict[str, list[Question]]:
    """Reads the questions that the arguments name.

    Args:
        data_args: what to read.
        wanted: those of "train", "validation" and "test" to read; None: all files, of a data set train and validation.
        download: goes to `datasets.load_dataset`.

    Raises:
        InputError: a split or a data set does not exist, ids of questions to answer are not unique; or as in
            [`read_questions`] and [`check_answers`].
    """
    found = data_args.files or _load_dataset_splits(data_args, **download)
    wanted = choose_splits(wanted, found, bool(data_args.files), "questions")
    loaded = {}
    for split in wanted:
        names = [str(s) if isinstance(s, Path) else f"{data_args.dataset_name} ({split})" for s in found[split]]
        pairs = zip(found[split], names, strict=True)
        questions = [question for source, name in pairs for question in read_questions(source, name)]
        questions = questions[: data_args.max_samples[split]]
        if split != "train":
            _check_ids(questions)
        loaded[split] = check_answers(
            questions,
            " and ".join(names),
            training=split == "train",
            version_2=data_args.version_2_with_negative,
            skip=data_args.on_bad_answer == "skip",
        )
    return loaded


def _load_dataset_splits(data_args: SquadDataArguments, **download: Any) -> dict[str, list[Dataset]]:
    splits = load_dataset_splits(str(data_args.dataset_name), data_args.dataset_config_name, **download)
    return {split: [splits[split]] for split in SPLITS if split in splits}


# --- reading ----------------------------------------------------------------------------------------------------


def read_questions(source: Path | Dataset, name: str) -> list[Question]:
    """The questions of a file or a data set, with their answers as they are told.

    JSON may be SQuAD's own, `{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers":
    [{"text", "answer_start"}]}]}]}]}`, or flat, `{"id", "title", "context", "question", "answers": {"text": [...],
    "answer_start": [...]}}`: an object a line, a list of them, or a list under "data". A question without an id has
    its number as one. Blank answers are none: a question with no other is one without an answer.

    Args:
        source: a file, also .gz or .zst, or a data set with the columns of the flat form.
        name: of the source, for messages.

    Raises:
        InputError: no JSON, no questions, or another form than these; with file and row.
    """
    rows = enumerate(_rows(source, name), start=1)
    questions = [_question(values, row, number) for number, (row, values) in rows]
    if not questions:
        raise InputError(f"{name} holds no questions.")
    empty = [question for question in questions if not (question.question.strip() and question.context.strip())]
    if empty:
        logger.warning(
            "%s: %d questions or contexts are empty; without a context there is no answer; the first: %s",
            name,
            len(empty),
            empty[0].row,
        )
    return questions


def _rows(source: Path | Dataset, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each question stands, and its values in the flat form."""
    content = _object_in(source) if isinstance(source, Path) else None
    if content is None:
        rows = read_json_rows(source) if isinstance(source, Path) else read_rows(source)
        yield from ((f"{name}, row {row}", values) for row, values in rows)
        return
    if not isinstance(content.get("data"), list):
        yield f"{name}, row 1", content
        return
    for number, article in enumerate(content["data"]):
        where = f"{name}, data[{number}]"
        if isinstance(article, dict) and "paragraphs" not in article:  # flat, as run_qa.py reads it
            yield where, article
            continue
        for place, paragraph in _list_of(article, "paragraphs", where):
            for row, question in _list_of(paragraph, "qas", place):
                if not isinstance(question, dict):
                    raise InputError(f"{row}: a {type(question).__name__} where a question should be.")
                yield row, {"title": article.get("title"), "context": paragraph.get("context"), **question}


def _object_in(file: Path) -> dict[str, Any] | None:
    """The object that a JSON file is; None if it is made of lines, or is a list."""
    text = "".join(read_text_lines(file, LONGEST_LINE_OF_JSON)).strip()
    try:
        content = parse_json(text or "null")
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":  # after the first line's object
            return None
        raise InputError(
            f"{file}: not JSON ({error}); questions are in SQuAD's own JSON or in lines of JSON objects."
        ) from error
    return content if isinstance(content, dict) else None


def _list_of(values: Any, name: str, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(values, dict) or not isinstance(values.get(name), list):
        found = ", ".join(values) if isinstance(values, dict) else f"a {type(values).__name__}"
        raise InputError(f"{where}: expected a list {name!r}, as in SQuAD's own files, and found {found}.")
    for number, value in enumerate(values[name]):
        yield f"{where}.{name}[{number}]", value


def _question(values: dict[str, Any], row: str, number: int) -> Question:
    for name in ("question", "context"):
        if not isinstance(values.get(name), str):
            raise InputError(
                f"{row}: no text in {name!r}; expected are id, question, context and answers, "
                f"and found {', '.join(values)}."
            )
    answers = [(text, start) for text, start in _answers(values.get("answers"), row) if text.strip()]
    if answers and values.get("is_impossible"):
        raise InputError(f"{row}: 'is_impossible' says that there is no answer, but 'answers' has {answers[0][0]!r}.")
    return Question(
        id=str(number if values.get("id") is None else values["id"]),
        question=values["question"],
        context=values["context"],
        answers=tuple(text for text, _ in answers),
        answer_starts=tuple(start for _, start in answers),
        title=str(values.get("title") or ""),
        row=row,
        is_impossible=bool(values.get("is_impossible")),
    )


def _answers(told: Any, row: str) -> list[tuple[str, int]]:
    """Text and place of each answer, from a list of answers or from two lists, those of texts and of places."""
    if told is None:
        return []
    try:
        if isinstance(told, dict):
            answers = list(zip(told["text"], told["answer_start"], strict=True))
        else:
            answers = [(answer["text"], answer["answer_start"]) for answer in told]
    except (KeyError, TypeError, ValueError):
        answers = [(None, None)]
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in answers):
        raise InputError(
            f'{row}: \'answers\' must be {{"text": [...], "answer_start": [...]}} or a list of such pairs, '
            f"not {str(told)[:80]}."
        )
    return answers


# --- checking ---------------------------------------------------------------------------------------------------


def _check_ids(questions: list[Question]) -> None:
    rows: dict[str, str] = {}
    for question in questions:
        if question.id in rows:
            raise InputError(f"{question.row}: the id {question.id} is also that of {rows[question.id]}.")
        rows[question.id] = question.row


def check_answers(questions: list[Question], name: str, training: bool, version_2: bool, skip: bool) -> list[Question]:
    """Makes sure that answers are there and stand where they should, white space apart.

    Args:
        questions: from [`read_questions`].
        name: where they are from, for messages.
        training: whether the model is to learn them. Otherwise there may be no answers at all.
        version_2: whether a question may have no answer.
        skip: go on if an answer is not there. It is not learned, nor is a question that has no other, but scoring,
            which looks only at texts, has it still, as the official scripts do.

    Returns:
        The questions, each answer as the context has it, without white space around it.

    Raises:
        InputError: questions without answers where there must be some, or answers in the wrong place.
    """
    without = [question for question in questions if not question.answers]
    logger.info("%s: %d questions, %d of them without an answer", name, len(questions), len(without))
    if training and len(without) == len(questions):
        raise InputError(f"{name}: no question has an answer to learn; 'answers' must tell them.")
    if not answers_are_told(questions):
        logger.warning("%s: no answers are told; the questions are answered and not scored", name)
        return questions
    if without and not version_2:
        raise InputError(
            f"{without[0].row}: question {without[0].id} has no answer, like {len(without)} of {len(questions)}; "
            "give --version_2_with_negative (SQuAD v2.0), or remove them."
        )
    checked, bad = [], []
    for question in questions:
        answers = []
        for text, start in zip(question.answers, question.answer_starts, strict=True):
            span = find_answer(question.context, text, start)
            if span is not None:
                answers.append((question.context[slice(*span)], span[0]))
                continue
            stands = question.context[max(start, 0) : max(start, 0) + len(text)]
            bad.append(f"{question.row}, question {question.id}: {text!r} should be at {start}, where {stands!r} is")
            if not training:
                answers.append((text, start))
        if answers or not question.answers:
            texts, starts = tuple(text for text, _ in answers), tuple(start for _, start in answers)
            checked.append(question._replace(answers=texts, answer_starts=starts))
    if bad:
        message = f"{name}: {len(bad)} answers are not in their context at their place; the first: {bad[0]}"
        if not skip:
            raise InputError(f"{message}; correct them, or go on all the same: --on_bad_answer skip.")
        lost = f"left out, and {len(questions) - len(checked)} questions with them"
        logger.warning("%s; they are %s", message, lost if training else "scored by their text all the same")
    if training and not any(question.answers for question in checked):
        raise InputError(f"{name}: no question has an answer left to learn.")
    return checked


def answers_are_told(questions: list[Question]) -> bool:
    """Whether there is anything to score: answers, or questions all of which are said to have none."""
    return any(question.answers for question in questions) or all(question.is_impossible for question in questions)


def find_answer(context: str, text: str, start: int) -> tuple[int, int] | None:
    """Where an answer that is said to begin at `start` stands, white space apart.

    Returns:
        Its first character and the one behind its last, neither of them white space; None if it is not there.
    """
    if not 0 <= start <= len(context):
        return None
    begin = start + len(text) - len(text.lstrip())
    if context.startswith(text.strip(), begin):
        return begin, begin + len(text.strip())
    # run_squad.py of the original release compares words, too: a line end in a paragraph may be a space in the answer.
    words = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({words})").match(context, start)
    return match.span(1) if match else None
