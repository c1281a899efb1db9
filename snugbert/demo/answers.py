"""Text in, the model's answer out: what the page shows, without the page.

Every function takes one text, or as many as the head reads, and returns plain Python values. What a user typed wrong
is an [`InputError`] for the page to show.

Shapes in comments: T tokens.
"""

from typing import NamedTuple, cast

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.checkpoints import CLASSES
from snugbert.entity_tags import TAG, decode_tags
from snugbert.errors import InputError
from snugbert.modeling_snugbert import SnugBertForPreTraining
from snugbert.models import ModelArguments, load_config, load_model, load_tokenizer
from snugbert.question_answering.answerer import ExtractedAnswer, QuestionAnswerer

# A text in pieces, each with its label, or None: the form of Gradio's HighlightedText.
Marked = list[tuple[str, str | None]]

MOST_GUESSES = 8  # for a mask
MOST_ANSWERS = 3  # to a question
NO_ANSWER = "(no answer)"


class LoadedCheckpoint(NamedTuple):
    """A model in evaluation mode, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_checkpoint(name: str) -> LoadedCheckpoint:
    """The checkpoint of a folder or Hub name with the head that its configuration names, as SnugBERT, in float32.

    It is on the accelerator if there is one, and keeps attention weights.

    Raises:
        InputError: there is no such checkpoint, it is no SnugBERT's or BERT's, or its head is none of theirs or has no
            weights.
    """
    args = ModelArguments(model_name_or_path=name, attn_implementation="eager")
    tokenizer = load_tokenizer(args)
    config = load_config(args, tokenizer)
    classes = CLASSES["snugbert"]
    known = ", ".join(model_class.__name__ for model_class in classes.values())
    if not config.architectures:
        raise InputError(f'the config.json of {name} does not name its head; add "architectures", one of {known}.')
    head = config.architectures[0].removeprefix("Snug").removeprefix("Bert")
    if head not in classes:
        raise InputError(
            f"the config.json of {name} names the architecture {config.architectures[0]}, not one of {known}."
        )
    # The bare encoder is read at its tokens; many checkpoints of it have no pooler.
    bare = {"add_pooling_layer": False} if head == "Model" else {}
    model = load_model(classes[head], args, config, trained=True, **bare)
    device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    return LoadedCheckpoint(model.to(device).eval(), tokenizer)  # type: ignore[arg-type]


def encode(checkpoint: LoadedCheckpoint, text: str, second: str = "") -> BatchEncoding:
    """One text, or a pair of them, as the model reads it; [1, T] each.

    Raises:
        InputError: the first text has no word, or the model does not read that many tokens.
    """
    model, tokenizer = checkpoint
    for given in (text, second) if second.strip() else (text,):
        if not tokenizer.tokenize(given):
            raise InputError("There is no word in the text: type some.")
    encoding = tokenizer(
        text,
        second if second.strip() else None,
        return_tensors="pt",
        return_token_type_ids=model.config.type_vocab_size > 1,
        verbose=False,  # says itself that a text is too long
    )
    tokens = encoding["input_ids"].shape[1]
    if tokens > longest(checkpoint):
        raise InputError(
            f"The text has {tokens} tokens, and the model reads {longest(checkpoint)} at most: shorten it."
        )
    return encoding.to(model.device)


def longest(checkpoint: LoadedCheckpoint) -> int:
    """How many tokens the model reads at once."""
    return min(checkpoint.model.config.max_position_embeddings, checkpoint.tokenizer.model_max_length)


@torch.inference_mode()
def fill_masks(checkpoint: LoadedCheckpoint, text: str) -> list[dict[str, float]]:
    """The likeliest words for each mask of a text, with their probabilities.

    Raises:
        InputError: a text without a mask, or see [`encode`].
    """
    model, tokenizer = checkpoint
    inputs = encode(checkpoint, text)
    masks = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    if not len(masks):
        mask = tokenizer.mask_token
        raise InputError(f"There is no {mask} in the text: write {mask}, just so, where a word is to be guessed.")
    outputs = model(**inputs)
    logits = outputs.prediction_logits if isinstance(model, SnugBertForPreTraining) else outputs.logits
    best = logits[0, masks].softmax(dim=-1).topk(min(MOST_GUESSES, logits.shape[-1]))
    return [
        {str(tokenizer.decode(token)): probability for token, probability in zip(tokens, probabilities, strict=True)}
        for tokens, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@torch.inference_mode()
def next_sentence(checkpoint: LoadedCheckpoint, first: str, second: str) -> dict[str, float]:
    """How likely the second text follows the first one, and how likely it was drawn at random.

    Raises:
        InputError: one of the texts is missing, or see [`encode`].
    """
    if not second.strip():
        raise InputError("There is no second sentence: type one.")
    outputs = checkpoint.model(**encode(checkpoint, first, second))
    pretraining = isinstance(checkpoint.model, SnugBertForPreTraining)
    logits = outputs.seq_relationship_logits if pretraining else outputs.logits
    follows, random = logits[0].softmax(dim=-1).tolist()
    return {"follows": follows, "is random": random}


@torch.inference_mode()
def classify(checkpoint: LoadedCheckpoint, text: str, second: str) -> dict[str, float] | str:
    """The labels of a text or a pair, with their probabilities; numbers as text, if that is what the model predicts.

    Args:
        checkpoint: `problem_type` of its configuration says what the outputs are; if it says nothing, one output is a
            number, as for transformers.
        text: the text.
        second: that of a pair, or "".

    Raises:
        InputError: see [`encode`].
    """
    config = checkpoint.model.config
    logits = checkpoint.model(**encode(checkpoint, text, second)).logits[0]
    if config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1):
        return ", ".join(f"{number:.4g}" for number in logits.tolist())
    several = config.problem_type == "multi_label_classification"
    probabilities = logits.sigmoid() if several else logits.softmax(dim=-1)
    return dict(zip(list_labels(checkpoint), probabilities.tolist(), strict=True))


def list_labels(checkpoint: LoadedCheckpoint) -> list[str]:
    """The labels that a model tells apart, in the order of its outputs."""
    id2label: dict[int, str] = checkpoint.model.config.id2label  # type: ignore[assignment]
    return [id2label[index] for index in range(len(id2label))]


@torch.inference_mode()
def tag(checkpoint: LoadedCheckpoint, text: str) -> Marked:
    """A text with its entities. As in training, a word is what its first piece is.

    Args:
        checkpoint: labels that are tags of any scheme (BIO, IOB1, IOBES) make entities; of others each word has its
            own, "O" apart.
        text: the text.

    Raises:
        InputError: see [`encode`].
    """
    encoding = encode(checkpoint, text)
    labels = list_labels(checkpoint)
    predicted = checkpoint.model(**encoding).logits[0].argmax(dim=-1).tolist()
    words: dict[int, str] = {}
    for number, word in zip(predicted, encoding.word_ids(), strict=True):
        if word is not None:
            words.setdefault(word, labels[number])
    tags = list(words.values())
    if all(TAG.fullmatch(label) for label in labels):
        entities = decode_tags(tags)
    else:
        entities = [(label, word, word) for word, label in enumerate(tags) if label != "O"]
    numbers = list(words)
    marked: Marked = []
    done = 0
    for kind, first, last in entities:
        start, end = encoding.word_to_chars(numbers[first]).start, encoding.word_to_chars(numbers[last]).end
        marked += [(text[done:start], None), (text[start:end], kind)]
        done = end
    return [piece for piece in [*marked, (text[done:], None)] if piece[0]]


def answer(
    answerer: QuestionAnswerer, question: str, context: str, may_be_none: bool
) -> tuple[Marked, dict[str, float]]:
    """Where in a text of any length the answer is, and the likeliest answers with their scores.

    Args:
        answerer: the model.
        question: the question.
        context: the text.
        may_be_none: the text may not hold the answer.

    Raises:
        InputError: a question or a text without a word, or a question that is too long.
    """
    try:
        answers = answerer(question, context, top_k=MOST_ANSWERS, handle_impossible_answer=may_be_none)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = cast(list[ExtractedAnswer], answers)  # a list, because `top_k` is above 1
    start, end = found[0]["start"], found[0]["end"]
    pieces = [(context[:start], None), (context[start:end], "answer"), (context[end:], None)]
    return [piece for piece in pieces if piece[0]], {each["answer"] or NO_ANSWER: each["score"] for each in found}


@torch.inference_mode()
def choose(checkpoint: LoadedCheckpoint, text: str, choices: str) -> dict[str, float]:
    """Which of the choices, one a line, goes on from a text, with probabilities.

    Raises:
        InputError: fewer than two choices, or see [`encode`].
    """
    lines = list(dict.fromkeys(line.strip() for line in choices.splitlines() if line.strip()))
    if len(lines) < 2:
        raise InputError("There must be two choices at least: write each on a line of its own.")
    encodings = [encode(checkpoint, text, line) for line in lines]
    # One sequence after the other: padding would change nothing.
    logits = torch.cat(
        [checkpoint.model(**{name: ids[:, None] for name, ids in encoding.items()}).logits for encoding in encodings],
        dim=1,
    )
    return dict(zip(lines, logits[0].softmax(dim=-1).tolist(), strict=True))


@torch.inference_mode()
def similarity(checkpoint: LoadedCheckpoint, first: str, second: str) -> float:
    """Cosine of the angle between two texts, each the mean of its tokens' last hidden states; -1 to 1.

    Raises:
        InputError: see [`encode`].
    """
    one, other = (
        checkpoint.model(**encode(checkpoint, text)).last_hidden_state[0].mean(dim=0) for text in (first, second)
    )
    return torch.cosine_similarity(one, other, dim=0).item()


@torch.inference_mode()
def attention(checkpoint: LoadedCheckpoint, text: str, second: str = "") -> tuple[list[str], torch.Tensor]:
    """Tokens of a text or a pair, and how much each of them reads of each.

    Returns:
        T tokens, and weights that add up to 1 in the last dimension. *Shape:* (layers, heads, T, T)

    Raises:
        InputError: see [`encode`].
    """
    model, tokenizer = checkpoint
    inputs = encode(checkpoint, text, second)
    weights = model.base_model(**inputs, output_attentions=True).attentions
    return [str(tokenizer.decode(token)) for token in inputs["input_ids"][0].tolist()], torch.cat(weights).cpu()


def headline(checkpoint: LoadedCheckpoint) -> str:
    """Head and size in one line."""
    config, parameters = checkpoint.model.config, checkpoint.model.num_parameters()
    count = f"{parameters / 1e6:.3g} million" if parameters >= 1e6 else f"{parameters:,}"
    return (
        f"`{type(checkpoint.model).__name__}` · {count} parameters · hidden size {config.hidden_size}, "
        f"layers {config.num_hidden_layers}, heads {config.num_attention_heads} · vocabulary {config.vocab_size:,} · "
        f"up to {longest(checkpoint)} tokens"
    )
