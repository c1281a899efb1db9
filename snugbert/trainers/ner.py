"""`snugbert ner`: fine-tune on words that are tagged with entities, score the model entity by entity, tag.

    arguments -> sentences (ner_data.py) -> windows -> model -> metric (metrics/ner.py) -> finetuning/

The flags are those of `TrainingArguments` and of transformers' `run_ner.py`: a command line for that works with this.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)

from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.command_line import parse_arguments, set_up
from snugbert.trainers.files import hub_id, name_of_data_set, name_of_file
from snugbert.trainers.finetuning import report, sweep
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.run import EvaluationSet, Task, model_maker, settings_of_data
from snugbert.trainers.metrics import NerMetric
from snugbert.trainers.models import load_config, load_tokenizer, longest
from snugbert.trainers.ner_data import (
    DataArguments,
    Split,
    choose_labels,
    entities_of,
    load_splits,
    tags_of,
    write_tagged,
)

logger = logging.getLogger(__name__)

FIGURES = ("precision", "recall", "f1", "accuracy")  # of all types together
NAMES = {"train": "train", "validation": "eval", "test": "predict"}  # of the splits, in files and figures

# The tags of each sentence.
Tags = list[list[str]]


# --- windows ----------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """What the model reads of N windows, and where it reads each of the W words of all sentences together."""

    features: Dataset  # N rows: what the tokenizer's model reads, and labels if the tags are told
    window: np.ndarray  # [W] the window in which the word counts
    position: np.ndarray  # [W] the place of its first piece there


def windows_of(
    split: Split,
    labels: list[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    document_context: bool = False,
    label_all_tokens: bool = False,
) -> Windows:
    """Turns sentences into windows of word pieces: [CLS] pieces [SEP].

    A sentence that has room is one window. Of a longer one every window reads on about half a window's words, and has
    others of the sentence on both sides of them. With `document_context` a window reads on sentences that fill half of
    it, or one longer sentence, and is filled with the sentences before and after them. Each word counts in just one
    window: the others have no label for it.

    A word that the tokenizer makes nothing of, such as a control character, is an unknown word: it keeps its tag. One
    that is longer than a window loses its end.

    Args:
        split: the sentences, tagged in BIO or not.
        labels: in the order of their ids; a tag that is none of them is not learned.
        tokenizer: a fast one, of BERT's form.
        max_length: most tokens of a window, 4 at least.
        document_context: whether windows reach over the ends of sentences, within documents.
        label_all_tokens: whether all pieces of a word have a label: B- becomes I- behind the first. Otherwise only the
            first has one.
    """
    room = max_length - 2
    pieces = _pieces_of([word for sentence in split.sentences for word in sentence.words], tokenizer, room)
    lengths = np.array([len(ids) for ids in pieces])
    starts = np.concatenate([[0], np.cumsum(lengths)])  # of each word among all pieces, and their end
    ids = np.concatenate(pieces)
    piece_labels = _labels_of_pieces(split, labels, lengths, label_all_tokens) if split.labelled else None

    window, position = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    windows: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": []}
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for number, (core, around) in enumerate(_cores(split, lengths, room, document_context)):
        first, last = starts[core.start], starts[core.stop]
        begin, end = _fill(first, last, starts[around.start : around.stop + 1], room)
        window[core] = number
        position[core] = starts[core] - begin + 1  # behind [CLS]
        windows["input_ids"].append(np.concatenate([cls, ids[begin:end], sep]))
        if piece_labels is not None:
            counts = np.full(end - begin + 2, IGNORE_INDEX)
            counts[1 + first - begin : 1 + last - begin] = piece_labels[first:last]
            windows["labels"].append(counts)
    return Windows(_dataset(windows, tokenizer), window, position)


def _pieces_of(words: list[str], tokenizer: PreTrainedTokenizerBase, most: int) -> list[np.ndarray]:
    """The ids of the first `most` pieces of each word, one at least; words that recur are tokenized once."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer(
        [[word] for word in distinct], is_split_into_words=True, add_special_tokens=False, return_attention_mask=False
    )["input_ids"]
    unknown = [tokenizer.unk_token_id]
    pieces = {word: np.array(ids[:most] or unknown) for word, ids in zip(distinct, encoded, strict=True)}
    return [pieces[word] for word in words]


def _labels_of_pieces(split: Split, labels: list[str], lengths: np.ndarray, label_all_tokens: bool) -> np.ndarray:
    """The label id of each piece of all words, -100 where it has none."""
    ids = {label: i for i, label in enumerate(labels)}
    # Tokens of a checkpoint whose labels lack a B- or an I- have none here; they are scored all the same.
    inside = {tag: ids.get(f"I-{tag[2:]}" if tag != "O" else "O", IGNORE_INDEX) for tag in labels}
    tags = [tag for sentence in split.sentences for tag in sentence.tags or ()]
    of_pieces = np.repeat(
        [inside.get(tag, IGNORE_INDEX) if label_all_tokens else IGNORE_INDEX for tag in tags], lengths
    )
    of_pieces[np.cumsum(lengths) - lengths] = [ids.get(tag, IGNORE_INDEX) for tag in tags]
    return of_pieces


def _cores(split: Split, lengths: np.ndarray, room: int, document_context: bool) -> list[tuple[slice, slice]]:
    """Which words count in each window, and which others of their sentence or document may stand around them."""
    cores = []
    end = 0
    for _, sentences in groupby(split.sentences, key=lambda sentence: sentence.document):
        document = []
        begin = end
        for sentence in sentences:
            first, end = end, end + len(sentence.words)
            whole = lengths[first:end].sum() <= room
            parts = [(0, end - first)] if whole else _groups(lengths[first:end], room // 2)
            document += [(slice(first + a, first + b), slice(first, end)) for a, b in parts]
        if document_context:
            sums = [int(lengths[core].sum()) for core, _ in document]
            document = [
                (slice(document[a][0].start, document[b - 1][0].stop), slice(begin, end))
                for a, b in _groups(sums, room // 2)
            ]
        cores += document
    return cores


def _groups(lengths: Sequence[int] | np.ndarray, most: int) -> list[tuple[int, int]]:
    """Start and end of groups of neighbours whose lengths add up to `most` at most; a longer one stands alone."""
    groups = []
    begin = total = 0
    for i, length in enumerate(lengths):
        if i > begin and total + length > most:
            groups.append((begin, i))
            begin, total = i, 0
        total += length
    return [*groups, (begin, len(lengths))]


def _fill(first: int, last: int, starts: np.ndarray, room: int) -> tuple[int, int]:
    """Start and end of a window of whole words around the pieces from `first` to `last`, with as many on both sides.

    Args:
        first: of the pieces that count.
        last: the end of them, which leaves out the piece itself.
        starts: of the words that may be within, and their end.
        room: pieces of a window.
    """
    free = room - (last - first)
    right = min(max(free // 2, free - (first - starts[0])), starts[-1] - last)
    left = min(free - right, first - starts[0])
    return starts[np.searchsorted(starts, first - left)], starts[
        np.searchsorted(starts, last + right, side="right") - 1
    ]


def _dataset(windows: dict[str, list[np.ndarray]], tokenizer: PreTrainedTokenizerBase) -> Dataset:
    flat = np.concatenate(windows["input_ids"])
    columns = {
        "input_ids": flat.astype(np.int32),
        "token_type_ids": np.zeros(len(flat), dtype=np.int8),
        "attention_mask": np.ones(len(flat), dtype=np.int8),
    }
    columns = {name: column for name, column in columns.items() if name in tokenizer.model_input_names}
    if windows["labels"]:
        columns["labels"] = np.concatenate(windows["labels"])
    ends = np.cumsum([0, *map(len, windows["input_ids"])]).astype(np.int32)
    return Dataset(pa.table({name: pa.ListArray.from_arrays(ends, column) for name, column in columns.items()}))


# --- metric -----------------------------------------------------------------------------------------------------


def predicted_tags(logits: Any, windows: Windows, split: Split, labels: list[str]) -> Tags:
    """The tags of each word of each sentence in BIO, made valid as `conlleval` reads them.

    Entities score the same; the accuracy of tags counts an I- that is read as the B- that it must be as right.

    Args:
        logits: *Shape:* (windows, tokens, labels)
        windows: made of `split`.
        split: the sentences.
        labels: tags of any scheme, in the order of their ids.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    ids = iter(logits[windows.window, windows.position].argmax(axis=-1).tolist())
    raw = [[labels[next(ids)] for _ in sentence.words] for sentence in split.sentences]
    return [tags_of(entities_of(tags), len(tags), "bio") for tags in raw]


def score(split: Split, tags: Tags) -> dict[str, float]:
    """The figures of [`NerMetric`], `conlleval`'s: micro average, accuracy, and those of each type."""
    references = [sentence.tags for sentence in split.sentences]
    return NerMetric(keep_in_memory=True).compute(predictions=tags, references=references)


def most_frequent_tags(train: Split, split: Split) -> Tags:
    """A tagger to compare with: the most frequent tag of each word in training, O for others."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train.sentences:
        for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
            counts[word][tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    return [[usual.get(word, "O") for word in sentence.words] for sentence in split.sentences]


def make_judge(
    name: str, split: Split, windows: Windows, labels: list[str], each_type: bool
) -> Callable[[Any, Path | None], dict[str, float]]:
    """What scores and writes the predictions for `windows`, see [`EvaluationSet`].

    Args:
        name: of the set: "eval" or "predict".
        split: the sentences.
        windows: made of them.
        labels: in the order of their ids.
        each_type: whether there are figures of each type during training, too.
    """

    def judge(logits: Any, folder: Path | None) -> dict[str, float]:
        tags = predicted_tags(logits, windows, split, labels)
        if folder is not None:
            # The file of run_ner.py for test sentences, and one beside it.
            file = folder / ("predictions.txt" if name == "predict" else f"{name}_predictions.txt")
            write_tagged(file, split, tags)
            print(f"predictions: {file}")
        if not split.labelled:
            return {}
        figures = score(split, tags)
        if folder is not None:
            prefix = "" if name == "eval" else f"{name}_"
            report.draw_entity_scores(report.apart(figures)[1], folder / f"{prefix}entity_scores.png")
            _draw_confusion(split, tags, folder / f"{prefix}confusion_matrix.png")
        return figures if each_type or folder is not None else {figure: figures[figure] for figure in FIGURES}

    return judge


def _draw_confusion(split: Split, tags: Tags, file: Path) -> None:
    """Which types the words of each type were taken for."""
    right = [tag[2:] for sentence in split.sentences for tag in sentence.tags or ()]
    given = [tag[2:] for of_sentence in tags for tag in of_sentence]
    ids = {kind: i for i, kind in enumerate(sorted({"", *right, *given}))}  # "": O, the first
    names = ["O", *list(ids)[1:]]
    report.draw_confusion_matrix(np.array([ids[k] for k in right]), np.array([ids[k] for k in given]), names, file)


# --- command ----------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Runs `snugbert ner` with the arguments `argv`.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, DataArguments, FineTuningArguments), argv, "snugbert ner", __doc__ or ""
    )
    set_up(training_args)
    sweep.run(make_task(model_args, data_args, training_args), model_args, training_args)


def make_task(
    model_args: FineTunedModelArguments, data_args: DataArguments, training_args: FineTuningArguments
) -> Task:
    """The task of the data that the arguments name.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    splits = load_splits(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    labels = choose_labels(splits, [label for _, label in sorted((config.id2label or {}).items())])
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = longest(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: windows_of(split, labels, tokenizer, max_length, data_args.document_context, data_args.label_all_tokens)
        for name, split in splits.items()
    }

    def evaluation_set(split_name: str) -> EvaluationSet:
        name, split, of_split = NAMES[split_name], splits[split_name], windows[split_name]
        judge = make_judge(name, split, of_split, labels, data_args.return_entity_level_metrics)
        baseline = None
        if "train" in splits and split.labelled:
            figures = score(split, most_frequent_tags(splits["train"], split))
            baseline = ("words' most frequent tags", {figure: figures[figure] for figure in FIGURES})
        return EvaluationSet(name, of_split.features, judge, len(split.sentences), baseline)

    types = (
        sorted(splits["validation"].types) if data_args.return_entity_level_metrics and "validation" in splits else []
    )
    if data_args.dataset_name is not None:
        dataset_name = name_of_data_set(data_args.dataset_name)
    else:
        dataset_name = name_of_file(next(iter(data_args.files.values())))
    return Task(
        name=dataset_name,
        make_model=model_maker(AutoModelForTokenClassification, model_args, config, trained="train" not in splits),
        tokenizer=tokenizer,
        train_features=windows["train"].features if "train" in windows else None,
        evaluation_sets=[evaluation_set(name) for name in ("validation", "test") if name in splits],
        main_metric="f1",
        metrics=(*FIGURES, *(f"{kind}_{figure}" for kind in types for figure in FIGURES[:3])),
        pipeline_tag="token-classification",
        padding_collator=DataCollatorForTokenClassification(tokenizer, **training_args.padding(max_length)),
        labels=labels,
        dataset=(dataset_name, hub_id(data_args.dataset_name), data_args.dataset_config_name),
        settings=settings_of_data(data_args),
    )
