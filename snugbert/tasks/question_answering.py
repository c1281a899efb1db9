"""Question answering: which part of a context answers a question, as in SQuAD v1.1 and v2.0.

    rows -> Question -> ContextWindows -> start and end logits -> Answer -> exact match and F1

spans.py chooses the answers. squad_metrics.py computes the metrics.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import List, Value
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from snugbert.data.sources import DataSource, describe_source
from snugbert.data.squad import Question, can_be_scored, check_answers, read_questions
from snugbert.data.tables import read_text
from snugbert.errors import InputError
from snugbert.tasks.base import Baseline, Sources, Task
from snugbert.tasks.outputs import SPAN, UNLABELED, Logits
from snugbert.tasks.question_windows import ContextWindows, check_room, choose_stride, make_question_windows
from snugbert.tasks.spans import Answer, best_answers
from snugbert.tasks.squad_metrics import measure_answers, measure_answers_v2, score_v1, score_v2
from snugbert.tasks.task_arguments import SquadDataArguments

logger = logging.getLogger(__name__)

METRICS = ("exact_match", "f1")  # in percent, by the names of evaluate-v1.1.py
METRICS_V2 = (  # in percent except thresholds, by the names of evaluate-v2.0.py
    *(f"{questions}{metric}" for questions in ("", "HasAns_", "NoAns_") for metric in ("exact", "f1")),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
)
FIRST_CHARACTERS = 100  # where to look for words


@dataclass
class QuestionSplit:
    """The questions of a split. See [`Split`]."""

    name: str
    questions: list[Question]

    @property
    def labeled(self) -> bool:
        """Whether the questions can be scored. See [`can_be_scored`]."""
        return can_be_scored(self.questions)

    @property
    def num_examples(self) -> int:
        """The number of questions."""
        return len(self.questions)

    @property
    def golds(self) -> list[tuple[str, ...]]:
        """The correct answers to each question; empty if they are unknown or the question has none."""
        return [question.answers for question in self.questions]


class QuestionAnswering(Task[QuestionSplit, ContextWindows, list[Answer]]):
    """Question answering, with or without questions that have no answer.

    The metrics are the same as if the official script scored predictions.json. best_exact and best_f1 are the highest
    scores for any `null_score_diff_threshold`, and best_exact_thresh and best_f1_thresh are the thresholds that reach
    them. The official script finds lower best scores if a threshold already replaced answers in the file.
    """

    arguments = SquadDataArguments
    head = "ForQuestionAnswering"
    output = SPAN
    noun = "questions"
    paper_learning_rate = 5e-5  # Devlin et al. (2018), section 4.2
    perfect_score = 100
    main_metric = "f1"
    name = "Question answering"
    default_columns = (("question", "context"),)
    predicted_columns = ("answer", "score", "start", "end")

    def __init__(self, args: SquadDataArguments | None = None, **settings: Any):
        super().__init__(args, **settings)
        self.predicts = False  # whether the task predicts rows, which arrive in many calls
        self.version_2: bool = self.args.version_2_with_negative
        self.metrics = METRICS_V2 if self.version_2 else METRICS

    # --- data ---------------------------------------------------------------------------------------------------

    def read_splits(self, sources: Sources, trained_columns: tuple[str, ...] = ()) -> dict[str, QuestionSplit]:
        """Reads and checks the questions of all splits. See [`Task`]."""
        args, splits = self.args, {}
        for name, parts in sources.items():
            places = [self.describe_place(part, name) for part in parts]
            questions: list[Question] = []
            for part, place in zip(parts, places, strict=True):
                questions += read_questions(part, place, answered=name != "unlabeled")
            questions = questions[: args.max_samples.get(name)]
            if name != "unlabeled":
                skip = args.on_bad_answer == "skip"
                questions = check_answers(questions, " and ".join(places), name == "train", self.version_2, skip)
            splits[name] = QuestionSplit(name, questions)
        return splits

    def choose_labels(
        self,
        splits: Mapping[str, QuestionSplit],
        config: PreTrainedConfig,
        teacher: Task[Any, Any, Any] | None = None,
        is_teacher: bool = False,
    ) -> None:
        """Stores the number of logits of a token: one for the start and one for the end of an answer."""
        config.num_labels = 2

    def describe_sources(self, split: QuestionSplit) -> list[DataSource]:
        """Describes the files or the dataset of a split. Each file is a separate source."""
        if split.name not in self.args.files and (split.name != "unlabeled" or self.args.unlabeled_file is None):
            return super().describe_sources(split)
        counts = Counter(question.source for question in split.questions)
        return [describe_source(Path(file), None, split.name, number) for file, number in counts.items()]

    def text_columns(self, splits: Mapping[str, QuestionSplit]) -> tuple[str, ...]:
        """Returns the columns of a question."""
        return self.default_columns[0]

    def list_texts(self, split: QuestionSplit) -> tuple[list[list[str]], list[Any]]:
        """Returns the questions, their contexts, and the answers with their positions. See [`Task`]."""
        texts = [[each.question for each in split.questions], [each.context for each in split.questions]]
        return texts, [(each.answers, each.answer_starts) for each in split.questions]

    # --- model inputs and outputs -------------------------------------------------------------------------------

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """Sets `tokenizer`, `max_length` (the size of a window) and, unless the user chose it, `doc_stride`."""
        super().use_tokenizer(tokenizer, min(max_length, self.args.max_seq_length))
        if self.args.doc_stride is None:
            self.args.doc_stride = choose_stride(self.max_length)
        if self.predicts:  # in fine-tuning, `make_question_windows` checks the room for all questions
            self._question_limit = check_room(tokenizer, self.max_length, self.args.doc_stride)

    def encode(self, split: QuestionSplit) -> ContextWindows:
        """Returns the windows of all contexts. In training, they include the positions of the answers."""
        stride, longest = self.args.doc_stride, self.args.max_query_length
        training = split.name in ("train", "unlabeled")
        windows = make_question_windows(split.questions, self.tokenizer, self.max_length, stride, longest, training)
        if split.name == "unlabeled":
            nothing = np.full(len(windows.inputs), UNLABELED, np.int32)
            for column in self.output.label_columns:
                windows.inputs = windows.inputs.remove_columns(column).add_column(column, nothing)
        if split.questions[0].source:  # rows to predict have no source and are encoded in many calls
            message = "%s: %d questions in %d windows"
            logger.info(message, split.name, split.num_examples, len(windows.question_indices))
        return windows

    def decode(self, logits: Logits, split: QuestionSplit, features: ContextWindows) -> list[Answer]:
        """Returns the answers. See [`best_answers`]."""
        start_logits, end_logits = logits[:2]
        return best_answers(
            split.questions,
            features,
            start_logits,
            end_logits,
            n_best_size=1 if self.predicts else self.args.n_best_size,
            max_answer_length=self.args.max_answer_length,
            version_2=self.version_2,
            null_threshold=self.args.null_score_diff_threshold,
        )

    # --- scores -------------------------------------------------------------------------------------------------

    def measure(self, split: QuestionSplit, answers: list[Answer]) -> np.ndarray:
        """Compares predicted with correct answers. See [`measure_answers`] and [`measure_answers_v2`]."""
        texts = [answer.text for answer in answers]
        if not self.version_2:
            return measure_answers(split.golds, texts)
        spans, odds = [answer.best_span for answer in answers], [answer.null_odds or 0.0 for answer in answers]
        return measure_answers_v2(split.golds, texts, spans, odds)

    def score(self, split: QuestionSplit, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Returns the metrics of the official scripts. See [`score_v1`] and [`score_v2`]."""
        return score_v2(rows, counts) if self.version_2 else score_v1(rows, counts)

    def baseline(self, split: QuestionSplit, train: QuestionSplit | None) -> Baseline:
        """Scores the whole context as the answer to every question, or "no answer" in v2.0."""
        if not self.version_2:
            contexts = [question.context for question in split.questions]
            return Baseline("always the whole context", score_v1(measure_answers(split.golds, contexts)))
        metrics = self.score(split, self.measure(split, [Answer("", 0.0, "", [])] * split.num_examples))
        return Baseline("always no answer", {name: metrics[name] for name in ("exact", "f1")})

    def metric_features(self) -> dict[str, Any]:
        """See [`Task`]. Features are answers by question id."""
        prediction = {"id": Value("string"), "prediction_text": Value("string")}
        if self.version_2:
            prediction["no_answer_probability"] = Value("float64")
        answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        return {"predictions": prediction, "references": {"id": Value("string"), "answers": answers}}

    def pair(self, references: list[Any], predictions: list[Any]) -> tuple[QuestionSplit, list[Answer]]:
        """Returns the questions of references, and the answer to each, by id. See [`TaskMetric`].

        Ids must be unique. In v2.0, each question needs a prediction. In v1.1, unanswered questions score 0.
        """
        found = {prediction["id"]: prediction for prediction in predictions}
        questions = {r["id"]: Question(r["id"], "", "", tuple(r["answers"]["text"])) for r in references}
        if len(questions) < len(references):
            raise ValueError(f"{len(references) - len(questions)} of {len(references)} references repeat an id.")
        missing = [question for question in questions if question not in found]
        if missing:
            message = f"Questions without a prediction: {len(missing)}. The first: {missing[0]}"
            if self.version_2:
                raise ValueError(message)
            logger.warning("%s. These questions score 0.", message)
        ordered = [found.get(question, {"prediction_text": ""}) for question in questions]
        answers = [
            Answer(each["prediction_text"], each.get("no_answer_probability"), each["prediction_text"], [])
            for each in ordered
        ]
        return QuestionSplit("validation", list(questions.values())), answers

    # --- files --------------------------------------------------------------------------------------------------

    def list_prediction_files(self, split: QuestionSplit) -> list[str]:
        """Returns the file of answers that the official scripts read."""
        return [f"{self._prefix(split)}predictions.json"]

    def _prefix(self, split: QuestionSplit) -> str:
        name = self.set_names[split.name]
        return "" if name == "eval" else f"{name}_"

    def write(self, split: QuestionSplit, answers: list[Answer], folder: Path) -> None:
        """Writes the answers by question id, in the format of the original BERT release.

        Files: predictions.json, nbest_predictions.json, and null_odds.json for SQuAD v2.0. Files of sets other
        than "eval" have the name of the set as prefix.
        """
        ids = [question.id for question in split.questions]
        contents: dict[str, list[Any]] = {
            "predictions": [answer.text for answer in answers],
            "nbest_predictions": [[candidate._asdict() for candidate in answer.n_best] for answer in answers],
        }
        if self.version_2:
            contents["null_odds"] = [answer.null_odds for answer in answers]
        for name, values in contents.items():
            text = json.dumps(dict(zip(ids, values, strict=True)), indent=4, ensure_ascii=False)
            (folder / f"{self._prefix(split)}{name}.json").write_text(text + "\n", encoding="utf-8")

    # --- prediction ---------------------------------------------------------------------------------------------

    def use_checkpoint(self, config: PreTrainedConfig) -> None:
        """Prepares to predict: only the best answer is needed. There are no classes."""
        self.predicts = True

    def read(self, values: Mapping[str, Any], columns: Sequence[str]) -> Question:
        """Returns the question of a row."""
        question, context = (read_text(values, column) for column in columns)
        tokens = len(self.tokenizer.tokenize(question))
        limit = min(self.args.max_query_length, self._question_limit)
        if not 0 < tokens <= limit:
            raise InputError(f"the question has {tokens} tokens. Expected 1 to {limit}.")
        # The first characters are nearly always enough.
        if not self.tokenizer.tokenize(context[:FIRST_CHARACTERS]) and not self.tokenizer.tokenize(context):
            raise InputError(f"no words in column {columns[1]!r}. Fix or remove the row.")
        return Question(repr(question), question, context)

    def make_split(self, examples: list[Question]) -> QuestionSplit:
        """Returns questions from `read` as a split."""
        return QuestionSplit("test", examples)

    def to_columns(self, split: QuestionSplit, answers: list[Answer]) -> list[dict[str, Any]]:
        """Returns the answer to each question with its score and its place in the context. See [`Answer`]."""
        return [answer.extract(answer.chosen) for answer in answers]
