"""`snugbert.demo.answers`: the same answers as transformers' pipelines and stock BERT."""

import re
from typing import Any

import pytest
import torch
from demo_checkpoints import FACTS, STORIES
from transformers import AutoModel, AutoTokenizer, pipeline

from snugbert.demo import answers
from snugbert.errors import InputError
from snugbert.modeling_snugbert import AUTO_CLASSES
from snugbert.prediction.predictor import QuestionAnswerer

pytestmark = pytest.mark.usefixtures("one_thread")


def test_answers_equal_transformers(checkpoints):
    """Compared with pipelines and stock BERT on the same folders."""

    def by_pipeline(task: str, name: str, *arguments: Any, **options: Any) -> Any:
        return pipeline(
            task, model=str(checkpoints[name]), tokenizer=AutoTokenizer.from_pretrained(checkpoints[name])
        )(*arguments, **options)

    loaded = {name: answers.load_checkpoint(str(folder)) for name, folder in checkpoints.items()}
    assert {type(checkpoint.model) for checkpoint in loaded.values()} == set(AUTO_CLASSES.values())

    text = "the [MASK] drinks [MASK]."
    expected = [
        {guess["token_str"]: guess["score"] for guess in guesses}
        for guesses in by_pipeline("fill-mask", "mask", text, top_k=answers.MOST_GUESSES)
    ]
    for name in ("mask", "pretrained"):
        guesses = answers.fill_masks(loaded[name], text)
        assert [list(words) for words in guesses] == [list(words) for words in expected]
        for words, theirs in zip(guesses, expected, strict=True):
            assert words == pytest.approx(theirs, abs=1e-5)
    for name, function in (("labels", "softmax"), ("several", "sigmoid")):
        pair = ("a bad film", "a good play") if name == "labels" else ("a bad film", "")
        scores = by_pipeline(
            "text-classification",
            name,
            {"text": pair[0], "text_pair": pair[1] or None},
            top_k=None,
            function_to_apply=function,
        )
        assert answers.classify(loaded[name], *pair) == pytest.approx(
            {s["label"]: s["score"] for s in scores}, abs=1e-5
        )
    number = by_pipeline("text-classification", "number", "a good play", function_to_apply="none")[0]["score"]
    assert float(answers.classify(loaded["number"], "a good play", "")) == pytest.approx(number, abs=1e-3)
    text = "Bob met Ada Byron in London; London met Ada Bob in Paris."
    entities = by_pipeline("ner", "tags", text, aggregation_strategy="first")
    tagged = [(piece, kind) for piece, kind in answers.tag(loaded["tags"], text) if kind]
    assert tagged == [(text[e["start"] : e["end"]], e["entity_group"]) for e in entities] and len(tagged) > 4
    assert "".join(piece for piece, _ in answers.tag(loaded["tags"], text)) == text

    stock = AutoModel.from_pretrained(checkpoints["encoder"]).eval()
    tokenizer = loaded["encoder"].tokenizer
    with torch.inference_mode():
        vectors = [stock(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in FACTS[:2]]
    cosine = vectors[0] @ vectors[1] / vectors[0].norm() / vectors[1].norm()
    assert answers.similarity(loaded["encoder"], *FACTS[:2]) == pytest.approx(cosine.item(), abs=1e-5)


def test_next_sentences_and_answers(checkpoints):
    for name in ("pretrained", "next"):
        checkpoint = answers.load_checkpoint(str(checkpoints[name]))
        for story, expected in zip(STORIES, ("follows", "is random"), strict=True):
            scores = answers.next_sentence(checkpoint, STORIES[0][0], story[1])
            assert max(scores, key=scores.__getitem__) == expected
    answerer = QuestionAnswerer(*answers.load_checkpoint(str(checkpoints["answers"])))
    context = f"{FACTS[2]} " * 15 + FACTS[0] + f" {FACTS[2]}" * 15  # 150 words in windows of 72
    marked, scores = answers.answer(answerer, "Who wrote it?", context, True)
    assert [text for text, label in marked if label] == ["Ada Byron"] == [max(scores, key=scores.__getitem__)]
    assert "".join(text for text, _ in marked) == context
    marked, scores = answers.answer(answerer, "Who sleeps?", " ".join(FACTS), True)
    assert max(scores, key=scores.__getitem__) == answers.NO_ANSWER and all(label is None for _, label in marked)
    marked, scores = answers.answer(answerer, "Who sleeps?", " ".join(FACTS), False)
    assert answers.NO_ANSWER not in scores and any(label for _, label in marked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The text has no words. Enter some text."),
        ("milk " * 70 + "[MASK]", "The text has 73 tokens. The model's limit is 72. Shorten the text."),
    ],
)
def test_text_that_is_refused(text, message, checkpoints):
    with pytest.raises(InputError, match=re.escape(message)):
        answers.fill_masks(answers.load_checkpoint(str(checkpoints["mask"])), text)
