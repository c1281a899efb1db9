"""An evaluation set: the examples of a split with their features, answers, scores and intervals."""

import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic

from transformers import PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.families.loading import get_text_columns, limit_length
from snugbert.reports.intervals import Interval, bootstrap
from snugbert.reports.score_tables import LabelScores
from snugbert.tasks.base import Answers, Baseline, Sources, Split, Task
from snugbert.tasks.outputs import Logits


class EvaluationSet(Generic[Answers]):
    """Examples to predict, and to score if they are labeled. The baseline is chosen on `train`, if given."""

    def __init__(self, task: Task[Any, Any, Answers], split: Split, train: Split | None = None):
        self.task, self.split, self._train = task, split, train
        self.name = task.set_names[split.name]  # prefix of metrics and files, such as "eval"
        self.features = task.encode(split)
        self._decoded: tuple[Logits, Answers] | None = None

    @property
    def labeled(self) -> bool:
        """Whether the examples can be scored."""
        return self.split.labeled

    @cached_property
    def baseline(self) -> Baseline | None:
        """Metrics to compare with. None if the task has no baseline or the examples have no labels."""
        return self.task.baseline(self.split, self._train) if self.labeled else None

    def decode(self, logits: Logits) -> Answers:
        """Returns the answers. Caches the answers to the last logits, which are often decoded more than once."""
        if self._decoded is None or self._decoded[0] is not logits:
            self._decoded = None  # frees its memory first
            self._decoded = logits, self.task.decode(logits, self.split, self.features)
        return self._decoded[1]

    def score(self, answers: Answers) -> dict[str, float]:
        """Returns the metrics of answers, without a prefix. Empty if the examples have no labels."""
        return self.task.score(self.split, self.task.measure(self.split, answers)) if self.labeled else {}

    def score_in_training(self, logits: Logits) -> dict[str, float]:
        """Returns the metrics to log during training. Empty if the examples have no labels."""
        metrics = self.score(self.decode(logits))
        return {name: metrics[name] for name in self.task.training_metrics or metrics if name in metrics}

    def estimate_intervals(self, answers: Answers) -> dict[str, Interval]:
        """Returns 95 % intervals of the metrics. Empty if the examples have no labels."""
        if not self.labeled:
            return {}
        return bootstrap(self.task.measure(self.split, answers), partial(self.task.score, self.split))

    def score_labels(self, answers: Answers) -> LabelScores | None:
        """Returns the scores of each label. None without labels, or if the task omits the scores. See [`Task`]."""
        return self.task.score_labels(self.split, answers) if self.labeled else None

    def write(self, answers: Answers, folder: Path) -> None:
        """Writes predictions and plots into a folder."""
        self.task.write(self.split, answers, folder)


def make_evaluation_set(
    task: Task[Any, Any, Answers], config: SnugBertConfig, tokenizer: PreTrainedTokenizerBase, sources: Sources
) -> EvaluationSet[Answers]:
    """Returns the examples on which any engine scores a fine-tuned model."""
    task, config = task.copy(), copy.deepcopy(config)
    task.tokenizer = tokenizer  # finds the words of texts with entities
    (split,) = task.read_splits(sources, get_text_columns(config.to_dict())).values()
    place = task.describe_place(sources[split.name][0], split.name)
    if split.name == "validation" and not split.labeled:
        raise InputError(f"{place} has no labels. Choose labeled examples.")
    number = config.num_labels
    task.choose_labels({split.name: split}, config)
    if config.num_labels != number:
        raise InputError(f"{place} has {config.num_labels} labels, but the model has {number}. Choose other data.")
    task.use_tokenizer(tokenizer, limit_length(config, tokenizer, task.args.max_seq_length))
    return EvaluationSet(task, split)
