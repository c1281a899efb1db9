"""The task that `snugbert squad` fine-tunes on: windows, answers, scores and the files of a run."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
)

from snugbert.errors import InputError
from snugbert.models import load_config, load_tokenizer, longest
from snugbert.question_answering.answers import SURELY_NULL, Answer, best_answers
from snugbert.question_answering.windows import ContextWindows, Question, make_windows
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import draw_f1_by_answer_length, draw_thresholds
from snugbert.trainers.finetuning.run import EvaluationSet, FineTuningTask, collect_data_settings, model_maker
from snugbert.trainers.splits import describe_dataset, describe_file, hub_id
from snugbert.trainers.squad.arguments import SquadDataArguments
from snugbert.trainers.squad.data import has_answers, load_questions
from snugbert.trainers.squad.metric import squad_metrics, squad_scores, squad_v2_metrics, threshold_curve

logger = logging.getLogger(__name__)

FIGURES = ("exact_match", "f1")  # in percent, by the names of evaluate-v1.1.py
FIGURES_V2 = (  # likewise of evaluate-v2.0.py
    *(f"{questions}{figure}" for questions in ("", "HasAns_", "NoAns_") for figure in ("exact", "f1")),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
)
NAMES = {"validation": "eval", "test": "predict"}  # of the splits, in figures and files
ON_THE_HUB = {"squad": "SQuAD v1.1", "squad_v2": "SQuAD v2.0"}

Judge = Callable[[Any, Path | None], dict[str, float]]


def make_task(
    model_args: FineTunedModelArguments, data_args: SquadDataArguments, training_args: FineTuningArguments
) -> FineTuningTask:
    """The task of the data that the arguments name.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    splits = load_questions(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    chooses = training_args.eval_strategy != "no" or training_args.sweeps
    if chooses and "validation" in splits and not has_answers(splits["validation"]):
        raise InputError("no validation question has an answer to choose the best model by; 'answers' must tell them.")
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    config.num_labels = 2  # scores of a token: as the first and as the last of an answer

    max_length = longest(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: make_windows(
            questions, tokenizer, max_length, data_args.doc_stride, data_args.max_query_length, name == "train"
        )
        for name, questions in splits.items()
    }
    for name, of_split in windows.items():
        logger.info("%s: %d questions in %d windows", name, len(splits[name]), len(of_split.question_indices))

    def evaluation_set(split: str) -> EvaluationSet:
        judge = make_judge(NAMES[split], splits[split], windows[split], data_args)
        baseline = None
        if data_args.version_2_with_negative and has_answers(splits[split]):
            baseline = ("always no answer", always_no_answer(splits[split]))
        return EvaluationSet(NAMES[split], windows[split].features, judge, len(splits[split]), baseline)

    names = dict.fromkeys(describe_file(file) for files in data_args.files.values() for file in files)
    dataset_name = describe_dataset(data_args.dataset_name) if data_args.dataset_name else ", ".join(names)
    on_hub = hub_id(data_args.dataset_name)
    return FineTuningTask(
        name=ON_THE_HUB.get((on_hub or "").removeprefix("rajpurkar/"), dataset_name),
        make_model=model_maker(AutoModelForQuestionAnswering, model_args, config, trained="train" not in splits),
        tokenizer=tokenizer,
        train_features=windows["train"].features if "train" in windows else None,
        evaluation_sets=[evaluation_set(split) for split in NAMES if split in splits],
        main_metric="f1",
        metrics=FIGURES_V2 if data_args.version_2_with_negative else FIGURES,
        pipeline_tag="question-answering",
        padding_collator=DataCollatorWithPadding(tokenizer, **training_args.padding(max_length)),
        dataset=(dataset_name, on_hub, data_args.dataset_config_name),
        settings=collect_data_settings(data_args),
    )


# --- answers ----------------------------------------------------------------------------------------------------


def make_judge(name: str, questions: list[Question], windows: ContextWindows, data_args: SquadDataArguments) -> Judge:
    """A function of the scores of `windows` and a folder that answers `questions`: see [`EvaluationSet`].

    In the folder it writes predictions.json, nbest_predictions.json and, for SQuAD v2.0, null_odds.json; and if the
    right answers are told, f1_by_answer_length.png and thresholds.png. Names of other sets than "eval" begin with it.

    The figures are those of the official scripts for predictions.json. best_exact and best_f1 are the highest that
    another --null_score_diff_threshold gives, and best_exact_thresh and best_f1_thresh are these; the script itself
    finds less in a file where a threshold has removed answers already. Where nothing is better than no answer at all
    they are 0, as in the script.
    """
    version_2, threshold = data_args.version_2_with_negative, data_args.null_score_diff_threshold
    prefix = "" if name == "eval" else f"{name}_"
    golds = collect_gold_answers(questions)

    def judge(predictions: Any, folder: Path | None) -> dict[str, float]:
        start_logits, end_logits = predictions[:2]
        found = best_answers(
            questions,
            windows,
            start_logits,
            end_logits,
            data_args.n_best_size,
            data_args.max_answer_length,
            version_2,
            threshold,
        )
        answers = dict(zip(golds, found, strict=True))
        odds = {question: answer.null_odds for question, answer in answers.items() if answer.null_odds is not None}
        if folder is not None:
            write_answers(answers, odds, folder, prefix)
        if not has_answers(questions):
            return {}
        texts = {question: answer.text for question, answer in answers.items()}
        exact, f1 = squad_scores(texts, golds, version_2)
        if folder is not None:
            lengths = [len(right[0].split()) if right else 0 for right in golds.values()]
            percent = 100 * np.array(list(f1.values()))
            draw_f1_by_answer_length(np.array(lengths), percent, folder / f"{prefix}f1_by_answer_length.png")
        if not version_2:
            return squad_metrics(exact, f1)
        spans = {question: answer.best_span for question, answer in answers.items()}
        of_spans = squad_scores(spans, golds, version_2)
        if folder is not None:
            thresholds, exact_at, f1_at = threshold_curve(*of_spans, spans, golds, odds)
            shown = thresholds < SURELY_NULL
            file = folder / f"{prefix}thresholds.png"
            draw_thresholds(thresholds[shown], exact_at[shown], f1_at[shown], threshold, file)
        best = squad_v2_metrics(*of_spans, spans, golds, odds)
        return squad_v2_metrics(exact, f1, texts, golds) | {n: best[n] for n in best if n.startswith("best_")}

    return judge


def collect_gold_answers(questions: list[Question]) -> dict[str, tuple[str, ...]]:
    """The right answers to each question, by its id; none at all where they are not told."""
    return {question.id: question.answers for question in questions}


def always_no_answer(questions: list[Question]) -> dict[str, float]:
    """Exact match and F1 of answering nothing, in percent."""
    golds = collect_gold_answers(questions)
    nothing = dict.fromkeys(golds, "")
    figures = squad_v2_metrics(*squad_scores(nothing, golds, version_2=True), nothing, golds)
    return {name: figures[name] for name in ("exact", "f1")}


def write_answers(answers: dict[str, Answer], odds: dict[str, float], folder: Path, prefix: str) -> None:
    """Writes the answers, by the id of their question, in the form of the original release."""
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
    print(f"answers: {folder / f'{prefix}predictions.json'}")
