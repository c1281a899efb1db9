"""The task of `snugbert squad`: windows, answers, scores and the files of a run."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from datasets import concatenate_datasets
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

from snugbert.checkpoints.loading import limit_length, load_config, load_tokenizer, remember_text_columns
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.sources import DataSource, describe_source
from snugbert.data.squad import can_be_scored, load_questions
from snugbert.errors import InputError
from snugbert.reports.intervals import Interval
from snugbert.reports.score_plots import draw_f1_by_answer_length, draw_thresholds, plot_file
from snugbert.tasks.old_base import Baseline, EvaluationSet, FineTuningTask, Logits, model_maker
from snugbert.tasks.question_answering_arguments import SquadDataArguments
from snugbert.tasks.question_windows import ContextWindows, Question, make_windows
from snugbert.tasks.spans import SURELY_NULL, Answer, best_answers
from snugbert.tasks.squad_metrics import (
    estimate_intervals,
    estimate_intervals_v2,
    squad_metrics,
    squad_scores,
    squad_v2_metrics,
    threshold_curve,
)
from snugbert.trainers.finetuning.fine_tune import check_early, collect_data_settings
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.learning_rate import choose_learning_rate
from snugbert.trainers.finetuning.soft_targets import UNLABELED

logger = logging.getLogger(__name__)

METRICS = ("exact_match", "f1")  # in percent, by the names of evaluate-v1.1.py
METRICS_V2 = (  # in percent except thresholds, by the names of evaluate-v2.0.py
    *(f"{questions}{metric}" for questions in ("", "HasAns_", "NoAns_") for metric in ("exact", "f1")),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
)
TRAINING = ("train", "unlabeled")
NAMES = {"validation": "eval", "test": "predict"}  # split -> prefix of metrics and files


def make_task(
    model_args: FineTunedModelArguments,
    data_args: SquadDataArguments,
    training_args: FineTuningArguments,
    teacher: FineTuningTask | None = None,
) -> FineTuningTask:
    """Returns the task that the arguments describe.

    Args:
        model_args: the model. With `is_teacher`, it is not trained.
        data_args: the data.
        training_args: the settings.
        teacher: the task with the teacher's model.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    splits = load_questions(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    selects = training_args.eval_strategy != "no" or training_args.sweeps
    if selects and "validation" in splits and not can_be_scored(splits["validation"]):
        raise InputError("--validation_file: no reference answers. Selecting the best model needs them.")
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    trains = not model_args.is_teacher and ("train" in splits or "unlabeled" in splits)
    if trains:
        choose_learning_rate(config, training_args)
        check_early(model_args, training_args)
        remember_text_columns(config, ("question", "context"))
    config.num_labels = 2  # logits of a token: first token of the answer, last token of the answer

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: make_windows(
            questions, tokenizer, max_length, data_args.doc_stride, data_args.max_query_length, name in TRAINING
        )
        for name, questions in splits.items()
    }
    for name, split_windows in windows.items():
        logger.info("%s: %d questions in %d windows", name, len(splits[name]), len(split_windows.question_indices))

    training = [windows["train"].features] if "train" in windows else []
    if "unlabeled" in windows:
        unlabeled = windows["unlabeled"].features
        for column in ("start_positions", "end_positions"):
            nothing = np.full(len(unlabeled), UNLABELED, np.int32)
            unlabeled = unlabeled.remove_columns(column).add_column(column, nothing)
        training.append(unlabeled)
    return FineTuningTask(
        name="Question answering",
        make_model=model_maker(AutoModelForQuestionAnswering, model_args, config, trained=not trains),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=concatenate_datasets(training) if training else None,
        evaluation_sets=[
            make_evaluation_set(NAMES[name], splits[name], windows[name], data_args)
            for name in NAMES
            if name in splits
        ],
        main_metric="f1",
        metrics=METRICS_V2 if data_args.version_2_with_negative else METRICS,
        pipeline_tag="question-answering",
        data=describe_sets(data_args, splits),
        perfect_score=100,
        settings=collect_data_settings(data_args),
    )


def describe_sets(data_args: SquadDataArguments, splits: dict[str, list[Question]]) -> dict[str, list[DataSource]]:
    """Names the questions of each set as results and cards do. Unlabeled questions are training questions."""
    sets: dict[str, list[DataSource]] = {}
    for name, questions in splits.items():
        set_name = "train" if name in TRAINING else NAMES[name]
        sets[set_name] = [*sets.get(set_name, []), *describe_sources(data_args, name, questions)]
    return sets


def describe_sources(data_args: SquadDataArguments, split: str, questions: list[Question]) -> list[DataSource]:
    """Names the dataset or the files that the questions of a split come from. Files without any are left out."""
    if data_args.dataset_name is not None and split != "unlabeled":
        return [describe_source(data_args.dataset_name, data_args.dataset_config_name, split, len(questions))]
    counts = Counter(question.source for question in questions)
    return [describe_source(Path(file), None, split, number) for file, number in counts.items()]


# --- answers ----------------------------------------------------------------------------------------------------


def make_evaluation_set(
    name: str, questions: list[Question], windows: ContextWindows, data_args: SquadDataArguments
) -> EvaluationSet[dict[str, Answer]]:
    """Returns questions to answer, and to score if they have correct answers.

    Writes predictions.json and nbest_predictions.json, and null_odds.json for SQuAD v2.0. If the questions have
    correct answers, also draws f1_by_answer_length.png, and thresholds.png for SQuAD v2.0. Files of sets other than
    "eval" have the name of the set as prefix.

    The metrics are the same as if the official script scored predictions.json. best_exact and best_f1 are the highest
    scores for any --null_score_diff_threshold, and best_exact_thresh and best_f1_thresh are these thresholds. The
    official script finds lower best scores if a threshold already replaced answers in the file. The thresholds are 0
    if none beats "no answer" to every question, as in the script.

    Args:
        name: "eval" or "predict".
        questions: the questions.
        windows: windows of the questions' contexts.
        data_args: how to select answers.
    """
    version_2, threshold = data_args.version_2_with_negative, data_args.null_score_diff_threshold
    prefix = "" if name == "eval" else f"{name}_"
    golds, has_answers = collect_gold_answers(questions), can_be_scored(questions)

    def decode(logits: Logits) -> dict[str, Answer]:
        start_logits, end_logits = logits[:2]
        answers = best_answers(
            questions,
            windows,
            start_logits,
            end_logits,
            data_args.n_best_size,
            data_args.max_answer_length,
            version_2,
            threshold,
        )
        return dict(zip(golds, answers, strict=True))

    def score(answers: dict[str, Answer]) -> dict[str, float]:
        texts = {question: answer.text for question, answer in answers.items()}
        exact, f1 = squad_scores(texts, golds, version_2)
        if not version_2:
            return squad_metrics(exact, f1)
        spans = {question: answer.best_span for question, answer in answers.items()}
        best = squad_v2_metrics(*squad_scores(spans, golds, version_2), spans, golds, collect_null_odds(answers))
        return squad_v2_metrics(exact, f1, texts, golds) | {n: best[n] for n in best if n.startswith("best_")}

    def estimate(answers: dict[str, Answer]) -> dict[str, Interval]:
        texts = {question: answer.text for question, answer in answers.items()}
        scores = squad_scores(texts, golds, version_2)
        if not version_2:
            return estimate_intervals(*scores)
        spans = {question: answer.best_span for question, answer in answers.items()}
        odds = collect_null_odds(answers)
        return estimate_intervals_v2(*scores, *squad_scores(spans, golds, version_2), spans, golds, odds)

    def write(answers: dict[str, Answer], folder: Path) -> None:
        write_answers(answers, folder, prefix)
        if not has_answers:
            return
        texts = {question: answer.text for question, answer in answers.items()}
        _, f1 = squad_scores(texts, golds, version_2)
        lengths = np.array([len(correct[0].split()) if correct else 0 for correct in golds.values()])
        percent = 100 * np.array(list(f1.values()))
        draw_f1_by_answer_length(lengths, percent, plot_file(folder, name, "f1_by_answer_length.png"))
        if version_2:
            spans = {question: answer.best_span for question, answer in answers.items()}
            odds = collect_null_odds(answers)
            curve = threshold_curve(*squad_scores(spans, golds, version_2), spans, golds, odds)
            finite = curve[0] < SURELY_NULL
            thresholds, exact, f1_by_threshold = (values[finite] for values in curve)
            draw_thresholds(thresholds, exact, f1_by_threshold, threshold, plot_file(folder, name, "thresholds.png"))

    return EvaluationSet(
        name=name,
        features=windows.features,
        num_examples=len(questions),
        decode=decode,
        score=score if has_answers else None,
        write=write,
        predictions_files=(f"{prefix}predictions.json",),
        baseline=score_baseline(questions, version_2) if has_answers else None,
        estimate_intervals=estimate if has_answers else None,
    )


def collect_null_odds(answers: dict[str, Answer]) -> dict[str, float]:
    """Returns the odds of "no answer" for each question, by id; empty for SQuAD v1.1."""
    return {question: answer.null_odds for question, answer in answers.items() if answer.null_odds is not None}


def collect_gold_answers(questions: list[Question]) -> dict[str, tuple[str, ...]]:
    """Returns the correct answers to each question, by id; empty if they are unknown or there is no answer."""
    return {question.id: question.answers for question in questions}


def score_baseline(questions: list[Question], version_2: bool) -> Baseline:
    """Scores the whole context as the answer to every question, or "no answer" in v2.0. Metrics are in percent."""
    golds = collect_gold_answers(questions)
    if not version_2:
        contexts = {question: each.context for question, each in zip(golds, questions, strict=True)}
        return Baseline("always the whole context", squad_metrics(*squad_scores(contexts, golds)))
    nothing = dict.fromkeys(golds, "")
    metrics = squad_v2_metrics(*squad_scores(nothing, golds, version_2), nothing, golds)
    return Baseline("always no answer", {name: metrics[name] for name in ("exact", "f1")})


def write_answers(answers: dict[str, Answer], folder: Path, prefix: str) -> None:
    """Writes the answers by question id, in the format of the original BERT release."""
    odds = collect_null_odds(answers)
    contents: dict[str, dict[str, Any]] = {
        "predictions": {question: answer.text for question, answer in answers.items()},
        "nbest_predictions": {
            question: [candidate._asdict() for candidate in answer.n_best] for question, answer in answers.items()
        },
        **({"null_odds": odds} if odds else {}),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=4, ensure_ascii=False)
        (folder / f"{prefix}{name}.json").write_text(text + "\n", encoding="utf-8")
