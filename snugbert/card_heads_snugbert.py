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
        use: code that uses `tokenizer` and `model`. `{model}` is replaced by the arguments of `from_pretrained`, and
            `{fill_mask_example}` by a line in the language of the model. If this is not English, dots replace the
            texts in quotes, see `EXAMPLE_TEXT`.
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
FILLS_MASKS = "Predicted words reflect the training text. They may be factually wrong."
FILL_MASK = """
fill_mask = pipeline("fill-mask", model={model})
{fill_mask_example}"""
EXAMPLE_TEXT = re.compile(r'"[A-Z][^"]*[.?]"')  # "A text." in the code of `HEADS`
# By ISO 639-1 code.
EXAMPLE_SENTENCES = {
    "en": "Paris is the [MASK] of France.",
    "ar": "باريس هي [MASK] فرنسا.",
    "bg": "Париж е [MASK] на Франция.",  # noqa: RUF001
    "ca": "París és la [MASK] de França.",
    "cs": "Paříž je hlavní [MASK] Francie.",
    "da": "Paris er hovedstaden i [MASK].",
    "de": "Paris ist die [MASK] von Frankreich.",
    "el": "Το Παρίσι είναι η [MASK] της Γαλλίας.",  # noqa: RUF001
    "es": "París es la [MASK] de Francia.",
    "fa": "پاریس [MASK] فرانسه است.",
    "fi": "Pariisi on Ranskan [MASK].",
    "fr": "Paris est la [MASK] de la France.",
    "he": "פריז היא בירת [MASK].",
    "hi": "पेरिस फ्रांस की [MASK] है।",
    "hu": "Párizs [MASK] fővárosa.",
    "id": "Paris adalah ibu kota [MASK].",
    "it": "Parigi è la [MASK] della Francia.",
    "ja": "パリはフランスの[MASK]です。",
    "ko": "파리는 프랑스의 [MASK]입니다.",
    "nb": "Paris er hovedstaden i [MASK].",
    "nl": "Parijs is de [MASK] van Frankrijk.",
    "no": "Paris er hovedstaden i [MASK].",
    "pl": "Paryż jest [MASK] Francji.",
    "pt": "Paris é a [MASK] da França.",
    "ro": "Paris este [MASK] Franței.",
    "ru": "Париж — [MASK] Франции.",
    "sv": "Paris är huvudstaden i [MASK].",
    "th": "ปารีสเป็นเมืองหลวงของ[MASK]",
    "tr": "Fransa'nın [MASK] Paris'tir.",  # noqa: RUF001
    "uk": "Париж — [MASK] Франції.",
    "vi": "Paris là thủ đô của nước [MASK].",
    "zh": "巴黎是[MASK]国的首都。",
}

# Code that applies the thresholds in a configuration, which a pipeline does not.
ONE_THRESHOLD = """((label, least),) = model.config.thresholds.items()
print(label if scores[label] >= least else min(scores.keys() - {{label}}))"""
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
        single, pair = '"A text."', '{{"text": "The first text of a pair.", "text_pair": "The second text."}}'
        examples = {None: (single, pair), False: (single,), True: (pair,)}[text_pairs]
        use = '\nclassify = pipeline("text-classification", model={model}, top_k=None)'
        use += "".join(f"\nprint(classify({example}))" for example in examples)
        scores = f'{{{{each["label"]: each["score"] for each in classify({examples[0]}, top_k=None)}}}}'
    else:
        size, stride = windows
        ability = f"{ability.replace('texts', 'long texts')}, in windows of {size} tokens that share {stride}"
        use = f"""
inputs = tokenizer("A long text.", padding=True, return_tensors="pt", {WINDOWS.format(size=size, stride=stride)})
del inputs["overflow_to_sample_mapping"]
logits = model(**inputs).logits.mean(0)  # the mean of all windows
print(logits)"""
        use_of_package = '\nprint(snugbert.Predictor({model}).predict([{{"text": "A long text."}}]))'
        chances = f"logits.double().{'softmax(-1)' if thresholds == 1 else 'sigmoid()'}"
        scores = f"{{{{label: {chances}[index].item() for index, label in model.config.id2label.items()}}}}"
    if thresholds:
        use += f"\nscores = {scores}\n{ONE_THRESHOLD if thresholds == 1 else THRESHOLDS}"
    return Head(
        "AutoModelForSequenceClassification",
        "text-classification",
        ability,
        "The numbers are on the scale of the training data. Some may be slightly outside its range."
        if is_regression
        else CLASSIFIES,
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
        "predicts masked words and whether one text follows another. Fine-tune it to classify or tag text, to answer "
        "questions, or to embed sentences",
        FILLS_MASKS,
        f"""{FILL_MASK}

outputs = model(**tokenizer("The first text of a pair.", "The second text.", return_tensors="pt"))
print(outputs.seq_relationship_logits.softmax(-1))  # follows, does not follow""",
    ),
    "ForMaskedLM": Head(
        "AutoModelForMaskedLM",
        "fill-mask",
        "predicts masked words. Fine-tune it to classify or tag text, to answer questions, or to embed sentences",
        FILLS_MASKS,
        FILL_MASK,
    ),
    "ForReplacedTokenDetection": Head(
        "AutoModelForPreTraining",
        None,
        "detects words that do not fit a text. Fine-tune it to classify or tag text, to answer questions, or to embed "
        "sentences",
        "The model learned from words that a small language model chose. It may not notice other changes of a text.",
        """
inputs = tokenizer("The chef ate the meal.", return_tensors="pt")
outputs = model(**inputs)
print(outputs.logits.sigmoid())  # for each token, the probability that it was replaced""",
    ),
    "ForNextSentencePrediction": Head(
        "AutoModelForNextSentencePrediction",
        None,
        "predicts whether one text follows another",
        "The model often predicts that two texts on the same subject are consecutive.",
        """
outputs = model(**tokenizer("The first text of a pair.", "The second text.", return_tensors="pt"))
print(outputs.logits.softmax(-1))  # follows, does not follow""",
    ),
    "ForSequenceClassification": classifier(),
    "ForTokenClassification": Head(
        "AutoModelForTokenClassification",
        "token-classification",
        "labels the words of a text, for example as named entities",
        CLASSIFIES,
        """
tag = pipeline("token-classification", model={model}, aggregation_strategy="first")
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
answer = snugbert.QuestionAnswerer({model})  # also for long texts; returns a score
print(answer(question="Where was Ada Lovelace born?", context="Ada Lovelace was born in London."))""",
    ),
    "ForMultipleChoice": Head(
        "AutoModelForMultipleChoice",
        "multiple-choice",
        "chooses which of several texts best fits a given text",
        "The model always chooses one of the texts, even if none fits.",
        """
inputs = tokenizer(["The street is wet."] * 2, ["It rained.", "It is dry."], padding=True, return_tensors="pt")
outputs = model(**{{name: values[None] for name, values in inputs.items()}})
print(outputs.logits.softmax(-1))""",
    ),
}


def how_to_load(name: str, head: Head, language: Any = None) -> str:
    """Returns the section on how to load the model, with the package snugbert and without it.

    Args:
        name: the repository or folder.
        head: the model's head.
        language: the language of the examples, as in the header of a card. None: English.
    """
    quoted = json.dumps(name)
    if isinstance(language, list):
        language = language[0] if len(language) == 1 else None
    code = re.split("[-_]", str(language or "en").lower())[0]
    head = _translate(head, code)
    return (
        "## How to load it\n\n"
        "Without the package snugbert: `trust_remote_code=True` runs the code in this repository. To pin a version of "
        "the code, pass a commit hash as `revision`.\n\n"
        f"{_code(head, f'{quoted}, trust_remote_code=True')}\n\n"
        "With the package snugbert installed:\n\n"
        f"{_code(head, quoted, head.use_of_package, 'import snugbert')}"
    )


def _code(head: Head, model: str, more: str = "", first_line: str = "") -> str:
    use = head.use + (f"\n{more}" if more else "")
    pipeline = ", pipeline" if "pipeline(" in use else ""
    lines = [
        *([first_line] if first_line else []),
        f"from transformers import {head.auto_class}, AutoTokenizer{pipeline}",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({model})",
        f"model = {head.auto_class}.from_pretrained({model})",
        use.format(model=model),
    ]
    return "```python\n" + "\n".join(lines) + "\n```"


def _translate(head: Head, language: str) -> Head:
    """Uses a fill-mask sentence in the model's language. For languages except English, dots replace example texts."""
    sentence = EXAMPLE_SENTENCES.get(language, "... [MASK] ...").replace("[MASK]", "{{tokenizer.mask_token}}")
    use, use_of_package = head.use, head.use_of_package
    if language != "en":
        use, use_of_package = (EXAMPLE_TEXT.sub('"..."', code) for code in (use, use_of_package))
    use = use.replace("{fill_mask_example}", f'print(fill_mask(f"{sentence}"))')
    comment = "# Replace the dots with text in the language of the model.\n"
    use = re.sub(r"^(?=.*\.\.\.)", comment, use, count=1, flags=re.MULTILINE)
    return head._replace(use=use, use_of_package=use_of_package)
