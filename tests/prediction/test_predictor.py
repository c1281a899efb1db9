"""`Predictor` and `QuestionAnswerer` in Python: rows, columns, scores, a handmade model, stock BERT and bad input."""

import re

import family_checkpoints
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from scipy.special import softmax
from transformers import BertConfig, BertForQuestionAnswering

from snugbert import SnugBertConfig, SnugBertForQuestionAnswering, SnugBertTokenizer, Tagging, TextClassification
from snugbert.errors import InputError
from snugbert.prediction.predictor import Predictor, QuestionAnswerer

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS, LABELS = family_checkpoints.WORDS, {0: "no", 1: "yes"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    fields = {"id2label": LABELS, "label2id": {"no": 0, "yes": 1}, "text_columns": ["question", "title"]}
    family_checkpoints.write_checkpoint(folder, "bert", "ForSequenceClassification", initializer_range=0.2, **fields)
    return folder


def rows(number: int = 20) -> list[dict[str, str]]:
    words = [WORDS[index % len(WORDS)] for index in range(3 * number)]
    return [{"title": words[index], "question": " ".join(words[index : 2 * index])} for index in range(1, number)]


def test_rows_are_predicted_from_the_columns_that_the_model_was_trained_on(classifier):
    predictor = Predictor(classifier)
    predictions = predictor(rows())
    assert {prediction["predicted_label"] for prediction in predictions} == set(LABELS.values())
    named = Predictor(classifier, columns=("question", "title"), max_batch_tokens=8)(rows())
    for ours, other in zip(predictions, named, strict=True):
        assert ours["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    # No row, and then a dataset. A model that is already loaded.
    again = Predictor(predictor.model, predictor.tokenizer)
    assert again([]) == [] and again.tokenizer is predictor.tokenizer
    again = again(Dataset.from_list(rows()))
    assert [row["predicted_label"] for row in again] == [row["predicted_label"] for row in predictions]
    with pytest.raises(InputError, match="tokenizer is missing"):
        Predictor(predictor.model)
    with pytest.raises(InputError, match=r"unexpected class SnugBertModel\. Expected a fine-tuned model"):
        Predictor(predictor.model.base_model, predictor.tokenizer)


def test_a_task_names_the_columns_and_fits_the_head(classifier):
    expected = Predictor(classifier)(rows())
    renamed = [{"a": row["question"], "b": row["title"], "text": "no"} for row in rows()]
    task = TextClassification(text_column_names="a, b")
    assert Predictor(classifier, task=task)(renamed) == expected
    with pytest.raises(InputError, match=r"no column 'a'\. Columns: 'title', 'question'"):
        Predictor(classifier, task=task)(rows())
    with pytest.raises(InputError, match="model: a SnugBertForSequenceClassification does not fit the task Tagging"):
        Predictor(classifier, task=Tagging())
    one = Predictor(classifier, columns="question")  # a name, not a list of letters
    assert [len(row) for row in one(rows())] == [2] * len(rows())


TEXTS = [row["question"] for row in rows()]
TITLES = [{"title": text} for text in TEXTS]


@pytest.mark.parametrize(
    "given",
    [
        map(str.upper, TEXTS),
        np.array(TEXTS),
        Dataset.from_list(TITLES)["title"],
        pd.DataFrame(TITLES, index=range(7, 7 + len(TITLES))),
        Dataset.from_list(TITLES).with_format("pandas"),
        Dataset.from_list(TITLES).to_iterable_dataset(),
        [*TEXTS[:5], *TITLES[5:]],
    ],
    ids=lambda given: type(given).__name__,
)
def test_texts_and_rows_of_all_kinds_are_predicted(given, classifier):
    predictor = Predictor(classifier, columns="title")
    assert predictor(given) == predictor(TITLES)


def test_rows_that_cannot_be_read_are_named_with_what_is_expected(classifier, tmp_path):
    family_checkpoints.write_checkpoint(tmp_path, "bert", "ForTokenClassification", id2label={0: "O", 1: "B-PER"})
    pairs, titles, tagger = Predictor(classifier), Predictor(classifier, columns="title"), Predictor(tmp_path)
    for predictor, given, words in (
        (pairs, [{"title": None, "question": "a"}], "no text in column 'title'"),
        (pairs, "a", "row 1: expected a dict with the columns 'question' and 'title', not a str."),
        (titles, ("a", 7), "row 2: expected a text or a dict, not a int."),
        (tagger, ("Ada wrote.", 7), "row 2: expected a text or a dict, not a int."),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            predictor(given)
    assert len(tagger(iter([{"tokens": ["a", "b"]}]))[0]["predicted_tags"]) == 2
    assert tagger("Ada wrote.") == tagger([{"text": "Ada wrote."}])[0] != {"entities": []}
    pairs.model.config.text_columns = None  # a model of another library
    other = Predictor(pairs.model, pairs.tokenizer)
    assert [other(TEXTS[3])] == other([TEXTS[3]]) == [other({"text": TEXTS[3]})]


# --- questions ---


ANSWERS = "who wrote it when was the book written by ada byron in 1843 london ? , . ##s".split()
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ANSWERS])}
TEXT = "The books, written by Ada  Byron in London. In 1843 it was the book."
SMALL = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 48, "max_position_embeddings": 48}


@pytest.fixture(scope="module")
def tokenizer() -> SnugBertTokenizer:
    return SnugBertTokenizer(vocab=VOCABULARY)


def handmade(starts: dict[str, float], ends: dict[str, float]) -> SnugBertForQuestionAnswering:
    """A model whose logits depend only on the word: these start and end logits, and 0 for other words."""
    model = SnugBertForQuestionAnswering(SnugBertConfig(**SMALL))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name:
                parameter.zero_()  # the layers change nothing
        model.bert.embeddings.word_embeddings.weight.copy_(torch.eye(len(VOCABULARY), 32))
        one, other = torch.nn.functional.layer_norm(torch.eye(32)[0], (32,))[:2].tolist()
        for row, scores in enumerate((starts, ends)):
            for word, score in scores.items():
                model.qa_outputs.weight[row, VOCABULARY[word]] = score / (one - other)
            model.qa_outputs.bias[row] = -other * model.qa_outputs.weight[row].sum()
    return model


def random_model(model_class: type, config_class: type) -> torch.nn.Module:
    torch.manual_seed(0)
    return model_class(config_class(**SMALL, initializer_range=0.5)).eval()


def test_answers_of_a_handmade_model(tokenizer):
    model = handmade({"ada": 8.0, "london": 7.0, "who": 20.0, "byron": 1.0}, {"byron": 6.0, "london": 6.0})
    answerer = QuestionAnswerer(model.train(), tokenizer)
    answer = answerer(question="Who wrote it?", context=TEXT)  # the question contains a higher start logit
    assert not model.training
    assert (answer["start"], answer["end"], answer["answer"]) == (22, 32, "Ada  Byron")
    assert answer["answer"] == TEXT[answer["start"] : answer["end"]]
    best = answerer(question="Who wrote it?", context=TEXT, top_k=4)
    assert [found["answer"] for found in best] == ["Ada  Byron", "Ada  Byron in London", "London", "Ada"]
    assert best[0] == answer and best == sorted(best, key=lambda found: -found["score"])
    assert answerer(question="Who wrote it?", context=TEXT, max_answer_len=1)["answer"] == "London"
    assert [len(answerer("Who?", "Ada Byron.", top_k=k)) for k in (2, 6, 50)] == [2, 6, 6]


def test_one_question_or_several(tokenizer):
    answerer = QuestionAnswerer(handmade({"ada": 8.0, "1843": 9.0}, {"byron": 6.0, "1843": 8.0}), tokenizer)
    texts = [TEXT, "In 1843.", "by Ada"]
    one = answerer(question="When?", context=texts[0])
    assert answerer(["When?"], texts[0]) == [one] == answerer(["When?"], texts[:1])
    assert [found["answer"] for found in answerer(["When?", "Who?", "Who?"], texts)] == ["1843", "1843", "Ada"]
    assert [len(found) for found in answerer(["Who?", "When?"], "by Ada", top_k=3)] == [3, 3]
    assert answerer([], "by Ada") == []


def test_no_answer(tokenizer):
    certain = QuestionAnswerer(handmade({"[CLS]": 9.0, "ada": 8.0}, {"[CLS]": 9.0, "byron": 6.0}), tokenizer)
    assert certain("Who?", TEXT)["answer"] == "Ada  Byron"
    null, second = certain("Who?", TEXT, top_k=2, handle_impossible_answer=True)
    assert (null["answer"], null["start"], null["end"]) == ("", 0, 0) and second["answer"] == "Ada  Byron"
    assert null["score"] == pytest.approx(second["score"] * np.exp(18 - 14), rel=0.01)
    uncertain = QuestionAnswerer(handmade({"[CLS]": 7.0, "ada": 8.0}, {"byron": 6.0}), tokenizer)
    answers = uncertain("Who?", TEXT, top_k=20, handle_impossible_answer=True)
    assert answers[0]["answer"] == "Ada  Byron" and [a["answer"] for a in answers].count("") == 1


def test_a_long_context_is_read_in_windows(tokenizer):
    context = "the book was written in London. " * 60 + "It was  Ada Byron, " + "by the book. " * 40
    model = handmade({"ada": 8.0}, {"byron": 8.0})
    answerer = QuestionAnswerer(model, tokenizer, max_seq_length=384)
    assert (answerer.max_seq_length, answerer.doc_stride) == (48, 16)  # the model's maximum
    answer = answerer("Who wrote it?", context)
    assert answer["answer"] == "Ada Byron" == context[answer["start"] : answer["end"]]
    (row,) = Predictor(model, tokenizer)([{"question": "Who wrote it?", "context": context}])
    assert row == answer  # with the same windows
    small = QuestionAnswerer(model, tokenizer, max_seq_length=16, doc_stride=3, batch_size=7)
    assert small("Who wrote it?", context)["start"] == answer["start"]
    # The softmax runs over all windows. In its own window the answer would have a probability near 1.
    assert answer["score"] < 0.9


def former_pipeline(model, tokenizer, question: str, context: str, top_k: int, length: int) -> list[dict]:
    """The pipeline of transformers 4 on a text in one window: softmax over [CLS] and context, best products."""
    encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    is_context = np.array([sequence == 1 for sequence in encoded.sequence_ids(0)])
    with torch.no_grad():
        output = model(**encoded)
    probabilities = []
    for logits in (output.start_logits, output.end_logits):
        masked = np.where(is_context | (np.arange(len(offsets)) == 0), logits[0].double().numpy(), -np.inf)
        probabilities.append(softmax(masked) * is_context)
    products = np.tril(np.triu(np.outer(*probabilities)), length - 1)
    found, seen = [], set()
    for flat in np.argsort(-products.ravel()):
        start, end = divmod(int(flat), len(offsets))
        begin, stop = offsets[start][0], offsets[end][1]
        if products[start, end] > 0 and context[begin:stop] not in seen:
            seen.add(context[begin:stop])
            found.append({"score": products[start, end], "start": begin, "end": stop, "answer": context[begin:stop]})
    return found[:top_k]


def test_answers_equal_the_former_pipeline(tokenizer):
    model = random_model(SnugBertForQuestionAnswering, SnugBertConfig)
    answerer = QuestionAnswerer(model, tokenizer)
    for question in ("Who wrote it?", "when", "the book was by Ada ?"):
        found = answerer(question, TEXT, top_k=10, max_answer_len=5)
        expected = former_pipeline(model, tokenizer, question, TEXT, top_k=10, length=5)
        for ours, theirs in zip(found, expected, strict=True):
            assert list(ours) == list(theirs)
            assert ours == {**theirs, "score": pytest.approx(theirs["score"], rel=1e-4)}


def test_packed_equals_padded_equals_one_by_one(tokenizer, tmp_path):
    """Stock BERT with padding, on either side, and SnugBERT with packing give the same answers in any batch."""
    stock = random_model(BertForQuestionAnswering, BertConfig)
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generator = np.random.default_rng(0)
    contexts = [" ".join(generator.choice(ANSWERS[:-1], generator.integers(1, 200))) for _ in range(12)]
    questions = [" ".join(generator.choice(ANSWERS[:-1], generator.integers(1, 8))) for _ in range(12)]
    ours = QuestionAnswerer(tmp_path, batch_size=5, device="cpu")
    assert isinstance(ours.model, SnugBertForQuestionAnswering) and ours.model.dtype == torch.float32
    answers = ours(questions, contexts, top_k=3, handle_impossible_answer=True)
    assert answers == [
        [{**a, "score": pytest.approx(a["score"], rel=1e-4)} for a in ours(*pair, 3, True)]
        for pair in zip(questions, contexts, strict=True)
    ]
    left = SnugBertTokenizer.from_pretrained(tmp_path, padding_side="left")
    for padded in (QuestionAnswerer(stock, tokenizer), QuestionAnswerer(stock, left, batch_size=3)):
        for mine, theirs in zip(answers, padded(questions, contexts, 3, True), strict=True):
            assert mine == [{**answer, "score": pytest.approx(answer["score"], rel=1e-4)} for answer in theirs]


@pytest.mark.parametrize(
    ("question", "context", "message"),
    [
        (" ", TEXT, "' ': the question has 0 tokens. Expected 1 to 6"),
        ("who wrote the book in 1843 ?", TEXT, r"'who wrote .* has 7 tokens. Expected 1 to 6"),
        ("who", " \n", "'who': no .* in column 'context'"),
        (["who", "when"], [TEXT], "argument 2 is shorter"),
    ],
)
def test_questions_and_contexts_that_are_refused(question, context, message, tokenizer):
    answerer = QuestionAnswerer(handmade({}, {}), tokenizer, max_query_length=6)
    with pytest.raises(ValueError, match=message):
        answerer(question, context)
    with pytest.raises(ValueError, match="tokenizer is missing"):
        QuestionAnswerer(handmade({}, {}))
