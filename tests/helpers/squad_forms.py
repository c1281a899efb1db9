"""The forms of SQuAD's files, and questions read from them."""

from typing import Any

from snugbert.data.squad import Question
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.tasks.task_arguments import SquadDataArguments


def load_questions(
    arguments: SquadDataArguments, wanted: tuple[str, ...] | None = None, **download: Any
) -> dict[str, list[Question]]:
    """The questions of each split that the arguments select."""
    task = QuestionAnswering(arguments)
    splits = task.read_splits(task.find_sources(wanted, **download))
    return {name: split.questions for name, split in splits.items()}


def flat(row: dict) -> dict:
    """The flat form of a row."""
    texts, starts = [text for text, _ in row["answers"]], [start for _, start in row["answers"]]
    return {**row, "answers": {"text": texts, "answer_start": starts}}


def nested(rows: list[dict]) -> dict:
    """SQuAD's nested form, with one paragraph per row."""
    articles = []
    for row in rows:
        answers = [{"text": text, "answer_start": start} for text, start in row["answers"]]
        qa = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
        articles.append({"title": row["title"], "paragraphs": [{"context": row["context"], "qas": [qa]}]})
    return {"version": "v2.0", "data": articles}
