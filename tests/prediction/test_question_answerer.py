"""`QuestionAnswerer`: a handmade model, stock BERT and SnugBERT, the former pipeline's values, and bad input."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from transformers import BertConfig, BertForQuestionAnswering

from snugbert import SnugBertConfig, SnugBertForQuestionAnswering, SnugBertTokenizer
from snugbert.prediction.predictor import Predictor, QuestionAnswerer

WORDS = "who wrote it when was the book written by ada byron in 1843 london ? , . ##s".split()
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
TEXT = "The books, written by Ada  Byron in London. In 1843 it was the book."
SMALL = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 48, "max_position_embeddings": 48}
pytestmark = pytest.mark.usefixtures("one_thread")


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
    (row,) = Predictor(model, tokenizer).predict([{"question": "Who wrote it?", "context": context}])
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
    contexts = [" ".join(generator.choice(WORDS[:-1], generator.integers(1, 200))) for _ in range(12)]
    questions = [" ".join(generator.choice(WORDS[:-1], generator.integers(1, 8))) for _ in range(12)]
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
