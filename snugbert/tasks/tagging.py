"""Tagging: predicts a tag for each word. Tags mark entities. This is the task of `snugbert ner`.

    rows -> sentences -> windows -> logits -> tags -> counts of entities -> precision, recall and F1

Shapes: N sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import List, Value
from scipy.special import softmax
from transformers import DataCollatorForTokenClassification, PreTrainedConfig, PreTrainedTokenizerBase

from snugbert.data.conll import Sentence, Tags, parse_column_number, tag_lines, tag_records
from snugbert.data.tables import read_text, read_texts
from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.reports.plots import draw_confusion_matrix, plot_file
from snugbert.tasks.base import Baseline, Sources, Task, check_teacher_labels, list_labels, store_labels
from snugbert.tasks.entity_spans import Text, find_words, list_spans
from snugbert.tasks.outputs import TOKENS, UNLABELED, Logits
from snugbert.tasks.tag_windows import TagWindows, make_tag_windows, put_space_before_words
from snugbert.tasks.tagged_sentences import (
    TAG,
    TagSplit,
    add_type,
    are_bare,
    are_entity_tags,
    check_tags,
    check_types,
    convert_tags,
    decode_tags,
    list_types,
    read_tagged_sentences,
)
from snugbert.tasks.task_arguments import NerDataArguments

METRICS = ("precision", "recall", "f1", "accuracy")  # metrics of all types together


class TagAnswers(NamedTuple):
    """The answers to the sentences of a split."""

    tags: Tags  # tags in the scheme of the data
    scores: Sequence[np.ndarray] = ()  # probabilities of the predicted labels, (words,) each. Empty if unknown


class Tagging(Task[TagSplit, TagWindows, TagAnswers]):
    """Tags the words of sentences, to find entities.

    The labels are O, and B- and I- for each entity type. If the tags mark no entities, the tags themselves are the
    labels, and the metric is accuracy. A checkpoint that this run does not train may have other tags.
    """

    arguments = NerDataArguments
    head = "ForTokenClassification"
    output = TOKENS
    padding_collator = DataCollatorForTokenClassification
    noun = "sentences"
    name = "Token classification"
    main_metric = "f1"
    metrics: tuple[str, ...] = METRICS
    training_metrics: tuple[str, ...] | None = METRICS
    default_columns = (("tokens",), ("text",))
    predicted_columns = ("predicted_tags", "entities")
    scheme: str | None = None  # scheme of the data, to which predictions are converted. None: no conversion

    # --- data ---------------------------------------------------------------------------------------------------

    def read_splits(self, sources: Sources, trained_columns: tuple[str, ...] = ()) -> dict[str, TagSplit]:
        """Reads the sentences of all splits, and converts their tags to BIO. Sets `scheme`. See [`Task`]."""
        splits = {
            name: read_tagged_sentences(
                data, name, self.describe_place(data, name), self.args, getattr(self, "tokenizer", None)
            )
            for name, (data,) in sources.items()
        }
        self.scheme = check_tags(splits, self.args.tag_scheme, self.args.on_bad_tag)
        return splits

    def choose_labels(
        self,
        splits: Mapping[str, TagSplit],
        config: PreTrainedConfig,
        teacher: Task[Any, Any, Any] | None = None,
        is_teacher: bool = False,
    ) -> None:
        """Sets the labels: O, and B- and I- for each entity type in the training data, or all tags. See [`Task`].

        If a checkpoint has these labels, their order is kept, so that its classifier stays valid. Without training
        data, the checkpoint's labels are used.
        """
        known = list_labels(config) if teacher is None else list(teacher.labels or ())
        labels = known = [*map(add_type, known)] if are_bare(known) else known
        labeled = [split for split in splits.values() if split.labeled]
        has_entities = labeled[0].has_entities if labeled else are_entity_tags(known)
        if not has_entities:
            self.scheme, self.main_metric, self.metrics = None, "accuracy", ("accuracy",)
        known_types = list_types(known) if has_entities else set(known)
        types, origin = known_types, "the checkpoint"
        if "train" in splits:
            types, origin = set(splits["train"].types), splits["train"].source
            labels = ["O", *(f"{mark}-{kind}" for kind in sorted(types) for mark in "BI")]
            labels = labels if has_entities else sorted(types)
            if len(labels) == 1:
                raise InputError(f"{origin}: no entities. All tags are {labels[0]}. Check --label_column_name.")
            if set(labels) == set(known):
                labels = known
            elif (is_teacher or teacher is not None) and set(labels) < set(known):
                labels, types, origin = known, known_types, "the teacher"
        elif (not types or "O" not in labels) if has_entities else known[0] == "LABEL_0":
            raise InputError(
                f"--train_file is missing. The labels of the model ({', '.join(labels)}) are not entity tags, so the "
                "model must be fine-tuned first."
            )
        for split in splits.values():
            check_types(split, types, origin)
        if is_teacher:
            check_teacher_labels(known, labels)
        self.labels = labels
        store_labels(config, labels)
        if self.args.return_entity_level_metrics:
            self.metrics += self.list_label_metrics(splits["validation"]) if "validation" in splits else ()
            self.training_metrics = None

    @property
    def given_columns(self) -> tuple[str, ...]:
        """The column of words. See [`Task`]."""
        name = self.args.text_column_name
        return () if name is None or name.isdecimal() else (name,)  # CoNLL's columns are numbers

    def text_columns(self, splits: Mapping[str, TagSplit]) -> tuple[str, ...]:
        """Returns the column of words or texts. See [`Task`]."""
        has_texts = any(split.texts for split in splits.values())
        return self.given_columns or (("text",) if has_texts else ("tokens",))

    def list_texts(self, split: TagSplit) -> tuple[list[list[str]], list[Any]]:
        """Returns the sentences, with spaces between words, and their tags. See [`Task`]."""
        return [[" ".join(each.words) for each in split.sentences]], [each.tags for each in split.sentences]

    # --- model inputs and outputs -------------------------------------------------------------------------------

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """Sets `tokenizer` and `max_length`. RoBERTa's tokenizer is changed, see [`put_space_before_words`]."""
        put_space_before_words(tokenizer)
        super().use_tokenizer(tokenizer, max_length)

    def encode(self, split: TagSplit) -> TagWindows:
        """Cuts sentences into windows, see [`make_tag_windows`] and [`Task`]."""
        first = other = None
        if split.name == "unlabeled":
            first = [UNLABELED for sentence in split.sentences for _ in sentence.words]
        elif split.labeled:
            tags = [tag for sentence in split.sentences for tag in sentence.tags or ()]
            # If a checkpoint lacks a B- or I- label, words with this tag are not trained on, but they are scored.
            ids = {label: i for i, label in enumerate(self.labels or ())}
            first = [ids.get(tag, IGNORE_INDEX) for tag in tags]
            if self.args.label_all_tokens:  # the first sub-token keeps B-, the others have I-
                inside = {tag: ids.get(tag if tag == "O" else f"I-{tag[2:]}", IGNORE_INDEX) for tag in ids}
                other = [inside.get(tag, IGNORE_INDEX) for tag in tags] if split.has_entities else first
        context = self.args.document_context
        return make_tag_windows(split.sentences, self.tokenizer, self.max_length, context, first, other)

    def decode(self, logits: Logits, split: TagSplit, features: TagWindows) -> TagAnswers:
        """Returns the predicted tag of each word, in `scheme`. See [`Task`].

        A word takes the label predicted for its first sub-token, as in training. Invalid tags are repaired as
        `conlleval` reads them. This does not change the scores of entities, only the accuracy of tags.
        """
        assert self.labels is not None
        logits = logits[0] if isinstance(logits, tuple) else logits
        words = logits[features.window_indices, features.token_indices]
        tags = np.array(self.labels, dtype=object)[words.argmax(axis=-1)]
        scores = softmax(words, axis=-1).max(axis=-1, initial=0)
        ends = np.cumsum([len(sentence.words) for sentence in split.sentences])[:-1]
        return TagAnswers(self._convert(row.tolist() for row in np.split(tags, ends)), np.split(scores, ends))

    def _convert(self, tags: Iterable[Sequence[str]]) -> Tags:
        return [convert_tags(row, self.scheme) if self.scheme else [*row] for row in tags]

    def list_references(self, split: TagSplit) -> Tags:
        """Returns the tags of labeled sentences, in `scheme`."""
        return self._convert(sentence.tags or () for sentence in split.sentences)

    # --- scores -------------------------------------------------------------------------------------------------

    def measure(self, split: TagSplit, answers: TagAnswers) -> np.ndarray:
        """Counts equal tags, words, and entities of each sentence. See [`Task`].

        An entity is correct if its type, first word and last word are correct. For invalid tags see [`decode_tags`].
        The columns are equal tags and words, then correct, predicted and reference entities of all types together,
        then the same three numbers for each type, sorted by name. *Shape:* (N, 5 + 3 * types)
        """
        types = {kind: index for index, kind in enumerate(self._list_types(split), start=1)}
        tags = np.zeros((split.num_examples, 2), dtype=np.int64)
        entities = np.zeros((split.num_examples, 1 + len(types), 3), dtype=np.int64)
        for row, (references, predictions) in enumerate(zip(self.list_references(split), answers.tags, strict=True)):
            tags[row] = sum(map(str.__eq__, references, predictions)), len(references)
            if split.has_entities:
                expected, found = set(decode_tags(references)), set(decode_tags(predictions))
                for column, group in enumerate((expected & found, found, expected)):
                    for kind, _, _ in group:
                        entities[row, [0, types[kind]], column] += 1
        return np.concatenate([tags, entities.reshape(split.num_examples, -1)], axis=1)

    def _list_types(self, split: TagSplit) -> list[str]:
        """Returns the entity types that sentences and predictions can have, sorted."""
        if not split.has_entities:
            return []
        return sorted(split.types.union(kind for label in self.labels or () for kind, _, _ in decode_tags([label])))

    def select(self, split: TagSplit, indices: np.ndarray, name: str) -> TagSplit:
        """Returns some of the sentences. See [`Task`]."""
        if self.args.document_context:
            return super().select(split, indices, name)  # refuses to take sentences out of their documents
        texts: Sequence[Text | None] = split.texts or [None] * split.num_examples
        chosen = [split.sentences[index] for index in indices]
        return replace(split, name=name, sentences=chosen, texts=[texts[index] for index in indices])

    def rate_labels(self, split: TagSplit, logits: Logits, features: TagWindows) -> list[dict[str, Any]]:
        """Returns the word of each sentence whose tag is least likely, preferring words with a wrong prediction."""
        answers, references = self.decode(logits, split, features), self.list_references(split)
        logits = logits[0] if isinstance(logits, tuple) else logits
        words = softmax(logits[features.window_indices, features.token_indices].astype(np.float64), axis=-1)
        tags = [tag for sentence in split.sentences for tag in sentence.tags or ()]
        own = words[np.arange(len(words)), list(map((self.labels or []).index, tags))]
        ends = np.cumsum([len(sentence.words) for sentence in split.sentences])[:-1]
        rows = []
        parts = zip(split.sentences, split.texts, references, answers.tags, np.split(own, ends), strict=True)
        for sentence, text, expected, found, probabilities in parts:
            wrong = [index for index, tag in enumerate(expected) if tag != found[index]]
            worst = min(wrong or range(len(expected)), key=probabilities.__getitem__)
            rows.append(
                {
                    "row": sentence.row,
                    "label": expected[worst],
                    "predicted_label": found[worst],
                    "label_probability": float(probabilities[worst]),
                    "word": sentence.words[worst],
                    "text": " ".join(sentence.words) if text is None else text.text,
                    "tags": expected,
                    "predicted_tags": found,
                }
            )
        return rows

    def list_label_metrics(self, split: TagSplit) -> tuple[str, ...]:
        """Returns the metrics of each entity type in the sentences. See [`Task`]."""
        if not split.has_entities:
            return ()
        kinds = sorted(list_types(tag for sentence in split.sentences for tag in sentence.tags or ()))
        return tuple(f"{kind}_{metric}" for kind in kinds for metric in METRICS[:3])

    def score(self, split: TagSplit, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Returns precision, recall and F1 of entities, and accuracy, the share of equal tags. See [`Task`].

        A fraction with denominator 0 is 0. The values equal seqeval's to the last digit. Without `counts`, also
        returns the metrics of each type. If the tags mark no entities, the only metric is accuracy.
        """
        totals = rows.sum(axis=0) if counts is None else counts @ rows
        equal_tags, words = totals[:2].tolist()
        overall, *by_type = totals[2:].reshape(-1, 3).tolist()
        metrics = {**(_score_entities(*overall) if split.has_entities else {}), "accuracy": equal_tags / words}
        for kind, (correct, predicted, references) in zip(self._list_types(split), by_type, strict=True):
            if counts is None and predicted + references:
                scores = _score_entities(correct, predicted, references)
                metrics |= {f"{kind}_{name}": value for name, value in scores.items()}
                metrics[f"{kind}_number"] = references
        return metrics

    def baseline(self, split: TagSplit, train: TagSplit | None) -> Baseline | None:
        """Scores each word's most frequent tag in the training data, and O for unknown words. See [`Task`].

        If the tags mark no entities, unknown words get the most common tag of known words. Invalid tags are repaired,
        as in predictions of a model.
        """
        if train is None:
            return None
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in train.sentences:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
                counts[word][tag] += 1
        most_frequent = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        unknown = "O" if split.has_entities else Counter(most_frequent.values()).most_common(1)[0][0]
        tags = self._convert([most_frequent.get(word, unknown) for word in s.words] for s in split.sentences)
        metrics = self.score(split, self.measure(split, TagAnswers(tags)))
        return Baseline("each word's most frequent tag", {m: metrics[m] for m in METRICS if m in metrics})

    def metric_features(self) -> dict[str, Any]:
        """See [`Task`]. Features are the tags of each sentence."""
        return dict.fromkeys(("predictions", "references"), List(Value("string")))

    def pair(self, references: Tags, predictions: Tags) -> tuple[TagSplit, TagAnswers]:
        """Returns sentences with these tags, and the answers to them. See [`Task`]."""
        sentences = [Sentence([""] * len(tags), tags, row) for row, tags in enumerate(references, start=1)]
        rows = (*references, *predictions)
        has_entities = are_entity_tags(tag for tags in rows for tag in tags)
        types = frozenset(kind for tags in rows if has_entities for kind, _, _ in decode_tags(tags))
        split = TagSplit("validation", "references", sentences, types=types, has_entities=has_entities)
        return split, TagAnswers(predictions)

    # --- files --------------------------------------------------------------------------------------------------

    def list_prediction_files(self, split: TagSplit) -> list[str]:
        """Returns the file of predictions. For test sentences, it is named as in `run_ner.py`. See [`Task`]."""
        return [name.removesuffix(".jsonl") + split.suffix for name in super().list_prediction_files(split)]

    def write(self, split: TagSplit, answers: TagAnswers, folder: Path) -> None:
        """Writes the source of the sentences with the predicted tags, and a confusion matrix. See [`Task`].

        Predicted tags or entities replace the source's. If the source has none, they become its last column, or the
        last key of each object. Sentences beyond a limit on examples are left out. The file is not compressed.
        """
        if split.one_word_per_line:
            column = parse_column_number("label_column_name", self.args.label_column_name)
            text = tag_lines(split.lines, split.sentences, answers.tags, column, split.limited)
        elif split.texts:
            spans = [columns["entities"] for columns in self.to_columns(split, answers)]
            text = tag_records(split.lines, split.sentences, spans, self.args.span_columns, split.limited)
        else:
            text = tag_records(split.lines, split.sentences, answers.tags, self.args.tag_columns, split.limited)
        (file,) = self.list_prediction_files(split)
        (folder / file).write_text(text, encoding=split.encoding, newline="")  # line ends as in the source
        if split.labeled:
            matrix = plot_file(folder, self.set_names[split.name], "confusion_matrix.png")
            _draw_confusion(self.list_references(split), answers.tags, matrix)

    # --- prediction ---------------------------------------------------------------------------------------------

    def read(self, values: Mapping[str, Any], columns: Sequence[str]) -> list[str] | str:
        """Returns the words of a row, or its text. See [`Task`]."""
        (column,) = columns
        return read_texts(values, column) if isinstance(values.get(column), list) else read_text(values, column)

    def make_split(self, examples: list[list[str] | str]) -> TagSplit:
        """Returns sentences from lists of words, or from texts. The tokenizer finds the words of a text."""
        texts = [None if isinstance(example, list) else find_words(example, self.tokenizer) for example in examples]
        words = [
            [*example] if text is None else [text.text[start:end] for start, end in text.words]
            for example, text in zip(examples, texts, strict=True)
        ]
        sentences = [Sentence(row_words, None, row) for row, row_words in enumerate(words, start=1)]
        return TagSplit("test", "", sentences, texts=texts)

    def to_columns(self, split: TagSplit, answers: TagAnswers) -> list[dict[str, Any]]:
        """Returns `predicted_tags` of words, or the `entities` of a text, see [`list_spans`] and [`Task`]."""
        return [
            {"predicted_tags": tags}
            if text is None
            else {"entities": list_spans(text, self._find_entities(tags), scores)}
            for text, tags, scores in zip(split.texts, answers.tags, answers.scores, strict=True)
        ]

    def _find_entities(self, tags: list[str]) -> list[tuple[str, int, int]]:
        if all(TAG.fullmatch(add_type(label)) for label in self.labels or ()):
            return decode_tags(tags)
        # Each word with a label other than O is an entity.
        return [(tag, index, index) for index, tag in enumerate(tags) if tag != "O"]


def _score_entities(correct: int, predicted: int, references: int) -> dict[str, float]:
    precision = correct / predicted if predicted else 0.0
    recall = correct / references if references else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def _draw_confusion(references: Tags, predictions: Tags, file: Path) -> None:
    """Draws a confusion matrix of word tags, in the tagging scheme of the source. The accuracy uses the same tags."""
    expected, predicted = ([tag for row in rows for tag in row] for rows in (references, predictions))
    prefixes = "OBIMELSU"  # O, and the prefixes of an entity from its first word to its last
    labels = sorted({*expected, *predicted}, key=lambda tag: (tag[2:], prefixes.find(tag[0]), tag))
    ids = {label: i for i, label in enumerate(labels)}
    draw_confusion_matrix(
        np.array([ids[tag] for tag in expected]), np.array([ids[tag] for tag in predicted]), labels, file
    )
