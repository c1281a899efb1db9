"""The text of model cards about each head: what it does, its limits, and code that loads and uses it."""

import json
import re
from typing import Any, NamedTuple


class Head(NamedTuple):
    """Card text about a head.

    Attributes:
        auto_class: the Auto class that loads the model.
        task: the Hub's name for the head's task, if there is one.
        ability: what the model does. It completes "A BERT encoder that".
        limits: what the model cannot do.
        use: code that uses `tokenizer` and `model`. MODEL is replaced by the arguments of `from_pretrained`.
        use_of_package: more code, which needs the package snugbert.
    """

    auto_class: str
    task: str | None
    ability: str
    limits: str
    use: str
    use_of_package: str = ""


CLASSIFIES = (
    "The model predicts only the labels above, even if none of them fits the text. A score is the model's "
    "confidence. Unless the model is calibrated, it is not the probability that the label is correct."
)
# Arguments of a tokenizer that cuts a text into windows.
WINDOWS = "truncation=True, max_length={size}, stride={stride}, return_overflowing_tokens=True"
FINE_TUNE = "Fine-tune it to classify or tag text, to answer questions, or to embed sentences"
FILLS_MASKS = "Predicted words reflect the training text. They may be factually wrong."
FILL_MASK = """
fill_mask = pipeline("fill-mask", model=MODEL)
print(fill_mask(f"Paris is the {tokenizer.mask_token} of France."))"""
READ_PAIR = """
outputs = model(**tokenizer("The first text of a pair.", "The second text.", return_tensors="pt"))"""

# Code that applies the thresholds in a configuration, which a pipeline does not.
ONE_THRESHOLD = """((label, least),) = model.config.thresholds.items()
print(label if scores[label] >= least else min(scores.keys() - {label}))"""
THRESHOLDS = "print([label for label, least in model.config.thresholds.items() if scores[label] >= least])"


def classifier(
    is_regression: bool = False,
    text_pairs: bool | None = None,
    thresholds: int = 0,
    windows: tuple[int, int] | None = None,
) -> Head:
    """Returns the card text about a sequence classifier.

    Args:
        is_regression: whether the classifier predicts a number instead of labels.
        text_pairs: whether its inputs are pairs of texts. None: unknown, so the card shows both.
        thresholds: number of thresholds in its configuration. 1: two labels, and a threshold for the positive label.
            More: a threshold for each label.
        windows: maximum tokens of a window, and tokens that neighboring windows share, if the classifier reads long
            texts. The card then shows how to average the logits, because a pipeline reads one window.
    """
    texts = {None: "texts or pairs of texts", False: "texts", True: "pairs of texts"}[text_pairs]
    ability, use_of_package = f"predicts a number for {texts}" if is_regression else f"classifies {texts}", ""
    if windows is None:
        single, pair = '"A text."', '{"text": "The first text of a pair.", "text_pair": "The second text."}'
        examples = {None: (single, pair), False: (single,), True: (pair,)}[text_pairs]
        use = '\nclassify = pipeline("text-classification", model=MODEL, top_k=None)'
        use += "".join(f"\nprint(classify({example}))" for example in examples)
        scores = f'{{each["label"]: each["score"] for each in classify({examples[0]}, top_k=None)}}'
    else:
        size, stride = windows
        ability = f"{ability.replace('texts', 'long texts')}, in windows of {size} tokens that share {stride}"
        use = f"""
inputs = tokenizer("A long text.", padding=True, return_tensors="pt", {WINDOWS.format(size=size, stride=stride)})
del inputs["overflow_to_sample_mapping"]
logits = model(**inputs).logits.mean(0)  # the mean of all windows
print(logits)"""
        use_of_package = '\nprint(snugbert.Predictor(MODEL).predict([{"text": "A long text."}]))'
        chances = f"logits.double().{'softmax(-1)' if thresholds == 1 else 'sigmoid()'}"
        scores = f"{{label: {chances}[index].item() for index, label in model.config.id2label.items()}}"
    if thresholds:
        use += f"\nscores = {scores}\n{ONE_THRESHOLD if thresholds == 1 else THRESHOLDS}"
    limits = "The numbers are on the scale of the training data. Some may be slightly outside its range."
    return Head(
        "AutoModelForSequenceClassification",
        "text-classification",
        ability,
        limits if is_regression else CLASSIFIES,
        use,
        use_of_package,
    )


# Keys: the name of the class without SnugBert.
HEADS = {
    "Model": Head(
        "AutoModel",
        "feature-extraction",
        "returns a vector for each token of a text",
        "The vectors are a starting point for fine-tuning. Texts with the same meaning may have different vectors.",
        """
outputs = model(**tokenizer("A text.", return_tensors="pt"))
print(outputs.last_hidden_state.shape)""",
    ),
    "ForPreTraining": Head(
        "AutoModelForPreTraining",
        "fill-mask",
        f"predicts masked words and whether one text follows another. {FINE_TUNE}",
        FILLS_MASKS,
        f"""{FILL_MASK}
{READ_PAIR}
print(outputs.seq_relationship_logits.softmax(-1))  # follows, does not follow""",
    ),
    "ForMaskedLM": Head(
        "AutoModelForMaskedLM", "fill-mask", f"predicts masked words. {FINE_TUNE}", FILLS_MASKS, FILL_MASK
    ),
    "ForReplacedTokenDetection": Head(
        "AutoModelForPreTraining",
        None,
        f"detects words that do not fit a text. {FINE_TUNE}",
        "The model learned from words that a small language model chose. It may not notice other changes of a text.",
        """
outputs = model(**tokenizer("The chef ate the meal.", return_tensors="pt"))
print(outputs.logits.sigmoid())  # for each token, the probability that it was replaced""",
    ),
    "ForNextSentencePrediction": Head(
        "AutoModelForNextSentencePrediction",
        None,
        "predicts whether one text follows another",
        "The model often predicts that two texts on the same subject are consecutive.",
        f"{READ_PAIR}\nprint(outputs.logits.softmax(-1))  # follows, does not follow",
    ),
    "ForSequenceClassification": classifier(),
    "ForTokenClassification": Head(
        "AutoModelForTokenClassification",
        "token-classification",
        "labels the words of a text, for example as named entities",
        CLASSIFIES,
        """
tag = pipeline("token-classification", model=MODEL, aggregation_strategy="first")
print(tag("Ada Lovelace was born in London."))""",
    ),
    "ForQuestionAnswering": Head(
        "AutoModelForQuestionAnswering",
        "question-answering",
        "answers questions about a text",
        "An answer is always a span of the given text, and the model does not check whether the text is true. A score "
        "is the model's confidence, not the probability that the answer is correct.",
        """
inputs = tokenizer("Where was Ada Lovelace born?", "Ada Lovelace was born in London.", return_tensors="pt")
outputs = model(**inputs)
first, last = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs.input_ids[0, first : last + 1]))""",
        """
answer = snugbert.QuestionAnswerer(MODEL)  # also for long texts; returns a score
print(answer(question="Where was Ada Lovelace born?", context="Ada Lovelace was born in London."))""",
    ),
    "ForMultipleChoice": Head(
        "AutoModelForMultipleChoice",
        "multiple-choice",
        "chooses which of several texts best fits a given text",
        "The model always chooses one of the texts, even if none fits.",
        """
inputs = tokenizer(["The street is wet."] * 2, ["It rained.", "It is dry."], padding=True, return_tensors="pt")
outputs = model(**{name: values[None] for name, values in inputs.items()})
print(outputs.logits.softmax(-1))""",
    ),
}


def how_to_load(name: str, head: Head, language: Any = None) -> str:
    """Returns the section on how to load the model, with the package snugbert and without it.

    `language` is the entry in the header of the card. If it is not English, dots replace the texts in the code.
    """
    model, languages = json.dumps(name), language if isinstance(language, list) else [language or "en"]
    has_english = not languages or any(re.split("[-_]", str(each).lower())[0] == "en" for each in languages)
    uses = [head.use, f"{head.use}\n{head.use_of_package}".rstrip()]
    if not has_english:
        uses = [_replace_texts(use) for use in uses]
    plain, package = _code(head, f"{model}, trust_remote_code=True", uses[0]), _code(head, model, uses[1])
    return (
        "## How to load it\n\n"
        "Without the package snugbert: `trust_remote_code=True` runs the code in this repository. To pin a version of "
        f"the code, pass a commit hash as `revision`.\n\n```python\n{plain}\n```\n\n"
        f"With the package snugbert installed:\n\n```python\nimport snugbert\n{package}\n```"
    )


def _code(head: Head, model: str, use: str) -> str:
    pipeline = ", pipeline" if "pipeline(" in use else ""
    return (
        f"from transformers import {head.auto_class}, AutoTokenizer{pipeline}\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({model})\n"
        f"model = {head.auto_class}.from_pretrained({model})\n"
        f"{use.replace('MODEL', model)}"
    )


def _replace_texts(code: str) -> str:
    code = code.replace("Paris is the {tokenizer.mask_token} of France.", "... {tokenizer.mask_token} ...")
    code = re.sub(r'"[A-Z][^"]*[.?]"', '"..."', code)
    comment = "# Replace the dots with text in the language of the model.\n"
    return re.sub(r"^(?=.*\.\.\.)", comment, code, count=1, flags=re.MULTILINE)
