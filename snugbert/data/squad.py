"""Reads questions and contexts of SQuAD v1.1 and v2.0, from nested JSON, flat JSON, or a dataset.

Questions are kept in memory. SQuAD v2.0 has 130,000 training questions.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from snugbert.data.tables import read_json_rows, read_rows
from snugbert.data.text_lines import explaining_bad_data, read_text_lines
from snugbert.errors import InputError
from snugbert.files import parse_json

logger = logging.getLogger(__name__)


class Question(NamedTuple):
    """A question about a context."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()  # empty if there is no answer or it is unknown
    answer_starts: tuple[int, ...] = ()  # the first character of each answer in the context
    source: str = ""
    row: str = ""  # the place in the source, for messages: "dev.jsonl, row 3"
    is_impossible: bool = False


# --- reading ----------------------------------------------------------------------------------------------------


def read_questions(source: Path | Dataset, name: str, answered: bool = True) -> list[Question]:
    """Reads the questions of a file or a dataset, with unchecked answers.

    JSON is nested, as in SQuAD, or flat: an object with id, context, question and answers per line, a list of such
    objects, or a list under "data". Answers are {"text": [...], "answer_start": [...]} or
    [{"text": ..., "answer_start": ...}]. Blank answers are dropped. A question without an id gets its position,
    counted from 1. With `answered` false, answers are not read.
    """
    rows = enumerate(_read_rows(source, name), start=1)
    dropped = {} if answered else {"answers": None, "is_impossible": False}
    questions = [_make_question({**values, **dropped}, name, where, number) for number, (where, values) in rows]
    if not questions:
        raise InputError(f"{name}: no questions.")
    empty = [question for question in questions if not (question.question.strip() and question.context.strip())]
    if empty:
        message = "%s: questions without text or context: %d. The first: %s. Without context, there is no answer."
        logger.warning(message, name, len(empty), empty[0].row)
    return questions


def _read_rows(source: Path | Dataset, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the location of each question, for messages, and its values in the flat form."""
    content = _read_object(source) if isinstance(source, Path) else None
    if content is None:
        rows = read_json_rows(source) if isinstance(source, Path) else read_rows(source)
        yield from ((f"{name}, row {row}", values) for row, values in rows)
    elif not isinstance(content.get("data"), list):
        yield f"{name}, row 1", content
    else:
        for article_where, article in _read_list(content, "data", f"{name}, "):
            if "paragraphs" not in article:  # flat, the format of run_qa.py
                yield article_where, article
                continue
            for paragraph_where, paragraph in _read_list(article, "paragraphs", f"{article_where}."):
                for where, question in _read_list(paragraph, "qas", f"{paragraph_where}."):
                    yield where, {"context": paragraph.get("context"), **question}


def _read_object(file: Path) -> dict[str, Any] | None:
    """Reads a JSON file with a single object. None: the file has JSON lines or a list of rows."""
    text = "".join(read_text_lines(file)).strip()
    with explaining_bad_data(lambda: str(file), "Expected SQuAD's JSON or JSON lines."):
        try:
            content = parse_json(text or "null")
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":  # this error means JSON lines
                raise
            return None
    return content if isinstance(content, dict) else None


def _read_list(values: Mapping[str, Any], name: str, prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the objects in a list of SQuAD's format, and their places, which begin with `prefix`."""
    objects = values.get(name)
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise InputError(f"{prefix}{name}: expected a list of objects, as in SQuAD's format. Found: {objects!r:.60}.")
    return [(f"{prefix}{name}[{index}]", each) for index, each in enumerate(objects)]


def _make_question(values: Mapping[str, Any], source: str, where: str, number: int) -> Question:
    for name in ("question", "context"):
        if not isinstance(values.get(name), str):
            found = ", ".join(values)
            raise InputError(
                f"{where}: {name!r} must be text. Expected id, question, context, answers. Found: {found}."
            )
    answers = [(text, start) for text, start in _read_answers(values.get("answers"), where) if text.strip()]
    is_impossible = values.get("is_impossible") or False
    if is_impossible not in (True, False) or (answers and is_impossible):  # the text "false" would be true
        raise InputError(
            f"{where}: 'is_impossible' is {is_impossible!r:.60}. Expected true or false, and false if there are "
            "answers."
        )
    return Question(
        id=str(number if values.get("id") is None else values["id"]),
        question=values["question"],
        context=values["context"],
        answers=tuple(text for text, _ in answers),
        answer_starts=tuple(start for _, start in answers),
        source=source,
        row=where,
        is_impossible=bool(is_impossible),
    )


def _read_answers(value: Any, where: str) -> list[tuple[str, int]]:
    """Reads text and start of each answer from a list of answers, or from a list of texts and a list of starts."""
    if value is None:
        return []
    try:
        if isinstance(value, dict):
            answers = list(zip(value["text"], value["answer_start"], strict=True))
        else:
            answers = [(answer["text"], answer["answer_start"]) for answer in value]
    except (KeyError, TypeError, ValueError):
        answers = [(None, None)]
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in answers):
        raise InputError(
            f"{where}: cannot read 'answers': {str(value)[:80]}. Expected "
            '{"text": [...], "answer_start": [...]} or [{"text": ..., "answer_start": ...}].'
        )
    return answers


# --- checking ---------------------------------------------------------------------------------------------------


def check_answers(questions: list[Question], name: str, training: bool, version_2: bool, skip: bool) -> list[Question]:
    """Checks that answers exist and are in their context at the given position, ignoring white space.

    With `version_2`, questions may have no answer. With `skip`, answers that are not at their position only cause a
    warning. Training drops such answers, and questions that have no answers left. Scoring keeps such answers, as in
    the official scripts, because it compares only texts. Returns the questions, with each answer written as in the
    context, without surrounding white space.
    """
    unanswered = [question for question in questions if not question.answers]
    logger.info("%s: %d questions, %d without an answer", name, len(questions), len(unanswered))
    if not training:
        counts = Counter(question.id for question in questions)
        for question in questions:
            if counts[question.id] > 1:
                raise InputError(
                    f"{question.row}: another question has the same id, {question.id}. Ids must be unique."
                )
        if not can_be_scored(questions):
            logger.warning("%s: no reference answers. Predictions are not scored.", name)
            return questions
    elif len(unanswered) == len(questions):
        raise InputError(f"{name}: no question has an answer. Training needs 'answers'.")
    if unanswered and not version_2:
        raise InputError(
            f"{unanswered[0].row}: question {unanswered[0].id} has no answer ({len(unanswered)} of "
            f"{len(questions)} have none). Set --version_2_with_negative (SQuAD v2.0), or remove these questions."
        )
    checked, misplaced = [], []
    for question in questions:
        answers = []
        for text, start in zip(question.answers, question.answer_starts, strict=True):
            span = find_answer(question.context, text, start)
            if span is not None:
                answers.append((question.context[slice(*span)], span[0]))
                continue
            found = question.context[max(start, 0) : max(start, 0) + len(text)]
            misplaced.append(f"{question.row}, question {question.id}: expected {text!r} at {start}, found {found!r}")
            if not training:
                answers.append((text, start))
        if answers or not question.answers:
            texts, starts = tuple(text for text, _ in answers), tuple(start for _, start in answers)
            checked.append(question._replace(answers=texts, answer_starts=starts))
    if misplaced:
        message = f"Answers that are not at their position in the context: {len(misplaced)}"
        if not skip:
            raise InputError(f"{misplaced[0]}. {message}. Fix these answers, or set --on_bad_answer skip.")
        dropped = f"Such answers are skipped. Skipped questions: {len(questions) - len(checked)}"
        outcome = dropped if training else "Such answers are scored by their text"
        logger.warning("%s: %s. %s. The first: %s.", name, message, outcome, misplaced[0])
    if training and not any(question.answers for question in checked):
        raise InputError(f"{name}: no question has an answer in its context. Check 'answers' and 'answer_start'.")
    return checked


def can_be_scored(questions: list[Question]) -> bool:
    """Whether the questions can be scored: some have answers, or all are marked as impossible."""
    return any(question.answers for question in questions) or all(question.is_impossible for question in questions)


def find_answer(context: str, text: str, start: int) -> tuple[int, int] | None:
    """Returns the span of an answer at character `start` of the context, without surrounding white space, or None."""
    if not 0 <= start <= len(context):
        return None
    begin = start + len(text) - len(text.lstrip())
    if context.startswith(text.strip(), begin):
        return begin, begin + len(text.strip())
    # As in the original release's run_squad.py, words may be separated by other white space, such as a line break.
    words = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({words})").match(context, start)
    return match.span(1) if match else None
