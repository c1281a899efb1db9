"""The forms of SQuAD's files, for tests."""


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
