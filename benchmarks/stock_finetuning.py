"""Fine-tunes stock BERT with transformers' own Trainer, as run_glue.py and run_qa.py do.

    python benchmarks/stock_finetuning.py --task mrpc --data_dir data --model_name_or_path bert --output_dir run

This is the other side of `finetuning_run.py`. Batches are padded to their longest example. It does not import
SnugBERT. It takes the arguments of `TrainingArguments` and [`Arguments`]. It writes the model, `train_results.json`
and `eval_results.json`.
"""

import collections
import re
import string
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, load_dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

# Folder, sentence columns and label column of GLUE's TSV files.
GLUE = {
    "sst2": ("SST-2", ("sentence",), "label"),
    "mrpc": ("MRPC", ("#1 String", "#2 String"), "Quality"),
}
# run_qa.py's defaults.
DOC_STRIDE, N_BEST, MAX_ANSWER_LENGTH = 128, 20, 30


@dataclass
class Arguments:
    """Arguments of the example scripts, and the data folder."""

    task: str = field(metadata={"choices": [*GLUE, "squad"]})
    data_dir: str = field(metadata={"help": "folder with glue/ and squad/"})
    model_name_or_path: str = field()
    max_seq_length: int = field(default=128)
    max_train_samples: int | None = field(default=None)
    max_eval_samples: int | None = field(default=None)


def first(data: Dataset, number: int | None) -> Dataset:
    """Returns the first `number` rows; None: all."""
    return data if number is None else data.select(range(min(number, len(data))))


def load(args: Arguments, train: str, validation: str, kind: str, **options: Any) -> tuple[Dataset, Dataset]:
    """Loads training and validation rows from two files in `data_dir`."""
    folder = Path(args.data_dir)
    files = {"train": str(folder / train), "validation": str(folder / validation)}
    data = load_dataset(kind, data_files=files, **options)
    return first(data["train"], args.max_train_samples), first(data["validation"], args.max_eval_samples)


def train(trainer: Trainer) -> None:
    """Trains, and saves the model, the metrics and the log."""
    result = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()


# --- sentences --------------------------------------------------------------------------------------------------


def run_glue(args: Arguments, training_args: TrainingArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Classifies sentences or pairs. Metrics: accuracy, and F1 of label 1."""
    from sklearn.metrics import f1_score

    folder, columns, label_column = GLUE[args.task]
    train_file = "train.tsv.gz" if (Path(args.data_dir) / "glue" / folder / "train.tsv.gz").exists() else "train.tsv"
    train_rows, validation_rows = load(
        args,
        f"glue/{folder}/{train_file}",
        f"glue/{folder}/dev.tsv",
        "csv",
        delimiter="\t",
        quoting=3,
        keep_default_na=False,
    )

    def tokenize(rows: dict[str, list[Any]]) -> dict[str, Any]:
        sentences = [rows[column] for column in columns]
        encoded = tokenizer(*sentences, max_length=args.max_seq_length, truncation=True)
        return {**encoded, "label": rows[label_column]}

    def compute_metrics(prediction: Any) -> dict[str, float]:
        predicted, labels = prediction.predictions.argmax(axis=1), prediction.label_ids
        return {"accuracy": float((predicted == labels).mean()), "f1": float(f1_score(labels, predicted))}

    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path, num_labels=2),
        args=training_args,
        train_dataset=train_rows.map(tokenize, batched=True, remove_columns=train_rows.column_names),
        eval_dataset=validation_rows.map(tokenize, batched=True, remove_columns=validation_rows.column_names),
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    train(trainer)
    trainer.save_metrics("eval", trainer.evaluate())


# --- answers ----------------------------------------------------------------------------------------------------


def run_qa(args: Arguments, training_args: TrainingArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Answers questions (SQuAD v1.1). Metrics: exact match and F1 in percent."""
    train_rows, validation_rows = load(args, "squad/train-v1.1-first44.jsonl.gz", "squad/dev-v1.1.jsonl.gz", "json")

    def windows(rows: dict[str, list[Any]]) -> Any:
        return tokenizer(
            [question.lstrip() for question in rows["question"]],
            rows["context"],
            truncation="only_second",
            max_length=args.max_seq_length,
            stride=DOC_STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    def tokenize_train(rows: dict[str, list[Any]]) -> Any:
        encoded = windows(rows)
        encoded["start_positions"], encoded["end_positions"] = [], []
        examples, all_offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        for window, (example, offsets) in enumerate(zip(examples, all_offsets, strict=True)):
            answers = rows["answers"][example]
            start_char = answers["answer_start"][0]
            end_char = start_char + len(answers["text"][0])
            segments = encoded.sequence_ids(window)
            start, end = segments.index(1), len(segments) - 1 - segments[::-1].index(1)
            if offsets[start][0] > start_char or offsets[end][1] < end_char:
                start = end = 0  # [CLS]: the answer is not in this window
            else:
                while start < len(offsets) and offsets[start][0] <= start_char:
                    start += 1
                while offsets[end][1] >= end_char:
                    end -= 1
                start, end = start - 1, end + 1
            encoded["start_positions"].append(start)
            encoded["end_positions"].append(end)
        return encoded

    def tokenize_validation(rows: dict[str, list[Any]]) -> Any:
        encoded = windows(rows)
        encoded["example_id"] = [rows["id"][example] for example in encoded.pop("overflow_to_sample_mapping")]
        encoded["offset_mapping"] = [
            [
                offset if segment == 1 else None
                for offset, segment in zip(offsets, encoded.sequence_ids(window), strict=True)
            ]
            for window, offsets in enumerate(encoded["offset_mapping"])
        ]
        return encoded

    features = validation_rows.map(tokenize_validation, batched=True, remove_columns=validation_rows.column_names)

    trainer = Trainer(
        model=AutoModelForQuestionAnswering.from_pretrained(args.model_name_or_path),
        args=training_args,
        train_dataset=train_rows.map(tokenize_train, batched=True, remove_columns=train_rows.column_names),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    train(trainer)
    start = time.perf_counter()
    predictions = trainer.predict(features.remove_columns(["example_id", "offset_mapping"])).predictions
    metrics = squad_scores(best_answers(validation_rows, features, *predictions), validation_rows)
    metrics = {f"eval_{name}": value for name, value in metrics.items()}
    trainer.save_metrics("eval", {**metrics, "eval_runtime": time.perf_counter() - start})


def best_answers(
    examples: Dataset, features: Dataset, start_logits: np.ndarray, end_logits: np.ndarray
) -> dict[str, str]:
    """Finds the best span of all windows for each question, as in run_qa.py's utils_qa.py.

    Args:
        examples: the questions.
        features: their windows.
        start_logits, end_logits: *Shape:* (windows, tokens)

    Returns:
        Answers by question id.
    """
    windows = collections.defaultdict(list)
    for window, example_id in enumerate(features["example_id"]):
        windows[example_id].append(window)
    answers = {}
    for example in examples:
        candidates = []
        for window in windows[example["id"]]:
            starts, ends = start_logits[window], end_logits[window]
            offsets = features[window]["offset_mapping"]
            start_indexes = np.argsort(starts)[-1 : -N_BEST - 1 : -1].tolist()
            end_indexes = np.argsort(ends)[-1 : -N_BEST - 1 : -1].tolist()
            for start in start_indexes:
                for end in end_indexes:
                    if start >= len(offsets) or end >= len(offsets) or not offsets[start] or not offsets[end]:
                        continue
                    if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                        continue
                    candidates.append((starts[start] + ends[end], offsets[start][0], offsets[end][1]))
        _, first_char, end_char = max(candidates, key=lambda candidate: candidate[0], default=(0.0, 0, 0))
        answers[example["id"]] = example["context"][first_char:end_char]
    return answers


def squad_scores(answers: dict[str, str], examples: Dataset) -> dict[str, float]:
    """Computes exact match and F1 in percent, as SQuAD's evaluate-v1.1.py does."""
    exact = f1 = 0.0
    for example in examples:
        guess = _normalize(answers[example["id"]])
        truths = [_normalize(text) for text in example["answers"]["text"]]
        exact += max(guess == truth for truth in truths)
        f1 += max(_f1(guess.split(), truth.split()) for truth in truths)
    return {"exact_match": 100 * exact / len(examples), "f1": 100 * f1 / len(examples)}


def _normalize(answer: str) -> str:
    """Lowercases, and removes punctuation, articles and extra spaces."""
    answer = "".join(character for character in answer.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer).split())


def _f1(guess: list[str], truth: list[str]) -> float:
    common = sum((collections.Counter(guess) & collections.Counter(truth)).values())
    return 2 * common / (len(guess) + len(truth)) if common else 0.0


def main(argv: list[str]) -> None:
    """Runs the task given by the arguments."""
    args, training_args = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses(argv)
    set_seed(training_args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    run = run_qa if args.task == "squad" else run_glue
    run(args, training_args, tokenizer)


if __name__ == "__main__":
    main(sys.argv[1:])
