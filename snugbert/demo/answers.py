"""Computes a model's answers as plain Python values, which the page displays.

Bad input raises an [`InputError`]. The page shows its message.

Shapes: T tokens.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import get_windows
from snugbert.data.languages import DEFAULT, SEVERAL, primary_language, read_language
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_model, load_tokenizer, max_tokens
from snugbert.families.reading import CLASSES, HEADS_BY_CLASS
from snugbert.modeling_snugbert import SnugBertForPreTraining
from snugbert.prediction.predictor import Predictor, QuestionAnswerer

# Spans of a text with their labels (None: no label), as in Gradio's HighlightedText.
Marked = list[tuple[str, str | None]]

MOST_GUESSES = 8  # per mask
MOST_ANSWERS = 3  # per question
NO_ANSWER = "(no answer)"


class LoadedCheckpoint(NamedTuple):
    """A model in evaluation mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_checkpoint(name: str) -> LoadedCheckpoint:
    """Loads a checkpoint of the BERT family with its head, in float32, on the accelerator if there is one."""
    args = ModelArguments(model_name_or_path=name)
    tokenizer = load_tokenizer(args)
    config = load_config(args, tokenizer)
    classes, (architecture, *_) = CLASSES["snugbert"], config.architectures or ["none"]
    if architecture not in HEADS_BY_CLASS:
        known = ", ".join(model_class.__name__ for model_class in classes.values())
        raise InputError(f'{name}/config.json: unsupported "architectures": {architecture}. Expected one of {known}.')
    head = HEADS_BY_CLASS[architecture]
    # Many checkpoints of the bare encoder have no pooler. The page does not need it.
    bare = {"add_pooling_layer": False} if head == "Model" else {}
    model = load_model(classes[head], args, config, trained=True, **bare)
    device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    return LoadedCheckpoint(model.to(device).eval(), tokenizer)  # type: ignore[arg-type]


def is_english(checkpoint: LoadedCheckpoint | QuestionAnswerer) -> bool:
    """Whether the model reads English, or stores no language, or several."""
    stored = read_language(checkpoint.model.config) or read_language(checkpoint.tokenizer)
    return stored in (None, SEVERAL) or primary_language(stored) == DEFAULT


def encode(checkpoint: LoadedCheckpoint, text: str, second: str = "", *, limits_length: bool = True) -> BatchEncoding:
    """Tokenizes a text or a pair. Each tensor has shape (1, T)."""
    model, tokenizer = checkpoint
    for given in (text, second) if second.strip() else (text,):
        if not tokenizer.tokenize(given):
            raise InputError("The text has no words. Enter some text.")
    encoding = tokenizer(
        text,
        second if second.strip() else None,
        return_tensors="pt",
        verbose=False,  # no warning about long texts, which are refused below
    )
    tokens = encoding["input_ids"].shape[1]
    if limits_length and tokens > (limit := max_tokens(model, tokenizer)):
        raise InputError(f"The text has {tokens} tokens. The model's limit is {limit}. Shorten the text.")
    return encoding.to(model.device)


@torch.inference_mode()
def fill_masks(checkpoint: LoadedCheckpoint, text: str) -> list[dict[str, float]]:
    """Predicts the most likely tokens of each mask, with their probabilities."""
    model, tokenizer = checkpoint
    inputs = encode(checkpoint, text)
    masks = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    if not len(masks):
        mask = tokenizer.mask_token
        raise InputError(f"The text has no {mask}. Enter {mask} in place of a word.")
    outputs = model(**inputs)
    logits = outputs.prediction_logits if isinstance(model, SnugBertForPreTraining) else outputs.logits
    best = logits[0, masks].softmax(dim=-1).topk(min(MOST_GUESSES, logits.shape[-1]))
    return [
        {str(tokenizer.decode(token)): probability for token, probability in zip(tokens, probabilities, strict=True)}
        for tokens, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@torch.inference_mode()
def next_sentence(checkpoint: LoadedCheckpoint, first: str, second: str) -> dict[str, float]:
    """Predicts whether the second text follows the first or is random, with probabilities."""
    if not second.strip():
        raise InputError("Enter a second sentence.")
    outputs = checkpoint.model(**encode(checkpoint, first, second))
    pretraining = isinstance(checkpoint.model, SnugBertForPreTraining)
    logits = outputs.seq_relationship_logits if pretraining else outputs.logits
    follows, random = logits[0].softmax(dim=-1).tolist()
    return {"follows": follows, "is random": random}


def predict(checkpoint: LoadedCheckpoint, *texts: str) -> dict[str, Any]:
    """Predicts a text or a pair with a fine-tuned model, as `snugbert predict` does."""
    encode(checkpoint, *texts, limits_length=get_windows(checkpoint.model.config) is None)
    predictor = Predictor(*checkpoint, cuda_graphs=False)
    predictor.columns = next(names for names in predictor.task.default_columns if len(names) == len(texts))
    (prediction,) = predictor.predict([dict(zip(predictor.columns, texts, strict=True))])
    return prediction


def classify(checkpoint: LoadedCheckpoint, text: str, second: str) -> dict[str, float] | str:
    """Classifies a text or a pair: labels with their probabilities. For regression, the predicted values as text."""
    prediction = predict(checkpoint, *((text, second) if second.strip() else (text,)))
    if "probabilities" in prediction:
        return prediction["probabilities"]
    return ", ".join(f"{value:.4g}" for value in np.atleast_1d(prediction["predicted_label"]).tolist())


def tag(checkpoint: LoadedCheckpoint, text: str) -> Marked:
    """Tags the entities of a text. A word takes the label predicted for its first token, as in training.

    Tags of a scheme (BIO, IOB1, IOBES) are merged into entities. With other labels, each word is marked separately,
    except words with the label "O".
    """
    entities = predict(checkpoint, text)["entities"]
    return _mark(text, [(entity["type"], entity["start"], entity["end"]) for entity in entities])


@torch.inference_mode()
def find_replaced(checkpoint: LoadedCheckpoint, text: str) -> Marked:
    """Marks the words with a token that was probably replaced."""
    encoding = encode(checkpoint, text)
    is_replaced = (checkpoint.model(**encoding).logits[0] > 0).tolist()
    pairs = zip(encoding.word_ids(), is_replaced, strict=True)
    found = sorted({word for word, replaced in pairs if replaced and word is not None})
    words = [encoding.word_to_chars(word) for word in found]
    return _mark(text, [("replaced", word.start, word.end) for word in words])


def _mark(text: str, spans: list[tuple[str, int, int]]) -> Marked:
    """Marks spans of characters, in their order: label, start and end."""
    marked: Marked = []
    position = 0
    for label, start, end in spans:
        marked += [(text[position:start], None), (text[start:end], label)]
        position = end
    return [span for span in [*marked, (text[position:], None)] if span[0]]


def answer(
    answerer: QuestionAnswerer, question: str, context: str, may_be_none: bool
) -> tuple[Marked, dict[str, float]]:
    """Answers a question from a text of any length.

    Returns the text with the best answer marked, and the most likely answers with their scores.
    """
    try:
        found = answerer(question, context, top_k=MOST_ANSWERS, handle_impossible_answer=may_be_none)
    except ValueError as error:
        raise InputError(str(error)) from error
    marked = _mark(context, [("answer", found[0]["start"], found[0]["end"])])
    return marked, {each["answer"] or NO_ANSWER: each["score"] for each in found}


def choose(checkpoint: LoadedCheckpoint, text: str, choices: str) -> dict[str, float]:
    """Predicts which choice continues the text, with probabilities. There is one choice per line."""
    lines = list(dict.fromkeys(line.strip() for line in choices.splitlines() if line.strip()))
    if len(lines) < 2:
        raise InputError("At least two choices are needed. Enter one choice per line.")
    for line in lines:
        encode(checkpoint, text, line)
    predictor = Predictor(*checkpoint, columns=("text", "choices"), cuda_graphs=False)
    (prediction,) = predictor.predict([{"text": text, "choices": lines}])
    return dict(zip(lines, prediction["probabilities"], strict=True))


@torch.inference_mode()
def similarity(checkpoint: LoadedCheckpoint, first: str, second: str) -> float:
    """Computes the cosine similarity of two texts, from -1 to 1.

    The vector of a text is the mean of its last hidden states.
    """
    one, other = (
        checkpoint.model(**encode(checkpoint, text)).last_hidden_state[0].mean(dim=0) for text in (first, second)
    )
    return torch.cosine_similarity(one, other, dim=0).item()


def headline(checkpoint: LoadedCheckpoint) -> str:
    """Describes the head and the size of the model in one line."""
    config = checkpoint.model.config
    return (
        f"`{type(checkpoint.model).__name__}` · {checkpoint.model.num_parameters():,} parameters · "
        f"hidden size {config.hidden_size}, layers {config.num_hidden_layers}, heads {config.num_attention_heads} · "
        f"vocabulary {config.vocab_size:,}"
    )
