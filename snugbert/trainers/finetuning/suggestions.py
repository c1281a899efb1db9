"""Chooses the settings that a sweep tries, and the runs that it stops early.

Optuna suggests each setting (`ask`) and gets its score (`tell`). Trainer's own hook for Optuna,
`hyperparameter_search`, does not fit: its trials share one output folder and one seed, and an interrupted search
cannot resume.
"""

import itertools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from snugbert.trainers.finetuning.sweep_file import SAMPLERS, Choices, Span, SweepFile

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class PrunedError(Exception):
    """A run was stopped because it is worse than the median of earlier runs."""


def draw_setting(search: SweepFile, seed: int, index: int) -> dict[str, Any] | None:
    """Returns the setting `index` of a grid or of a random search. None: the grid has no more settings.

    A random setting depends only on `seed` and `index`, so a resumed sweep draws the same settings.
    """
    if search.method == "random":
        generator = np.random.default_rng([seed, index])
        return {flag: values.draw(generator) for flag, values in search.settings.items()}
    grid = itertools.product(*(values.values for values in search.settings.values() if isinstance(values, Choices)))
    values = next(itertools.islice(grid, index, None), None)
    return None if values is None else dict(zip(search.settings, values, strict=True))


class Suggestions:
    """The settings of a sweep in order. The main process chooses them, and all processes get them.

    A resumed sweep replays `ask` and `tell` for the finished runs. Optuna's samplers depend only on their seed and on
    earlier scores, so they suggest the same settings.
    """

    def __init__(self, search: SweepFile, seed: int, higher_is_better: bool):
        self._search, self._seed = search, seed
        self._is_main = PartialState().is_main_process
        self._study: Any = None  # in the main process, if Optuna is used
        if search.uses_optuna and self._is_main:
            self._study = _make_study(search, seed, higher_is_better)
        self._trial: Any = None  # of the last setting
        self._reported = 0  # number of the trial's evaluations that were reported to Optuna

    def ask(self, index: int) -> dict[str, Any] | None:
        """Returns the setting `index`. None: no more. Every process must call this once for each index, in order."""
        setting = None
        if self._is_main and not (self._search.size is not None and index >= self._search.size):
            settings = self._search.settings
            sampled = settings if self._search.method in SAMPLERS else {}
            if self._study is not None:
                self._trial = self._study.ask({flag: _make_distribution(values) for flag, values in sampled.items()})
                self._reported = 0
            if sampled:
                setting = {flag: values.read(self._trial.params[flag]) for flag, values in settings.items()}
            else:
                setting = draw_setting(self._search, self._seed, index)
        (setting,) = broadcast_object_list([setting])
        return setting

    def is_bad(self, evaluations: Sequence[float]) -> bool:
        """Returns whether to stop the last run, from its scores so far. Every process must call this."""
        bad = False
        if self._study is not None:
            self._report(evaluations)
            bad = self._trial.should_prune()
        (bad,) = broadcast_object_list([bad])
        return bad

    def tell(self, score: float, evaluations: Sequence[float]) -> None:
        """Sends the result of the last setting to Optuna. A NaN score: the run was stopped early, or it failed."""
        if self._study is None:
            return
        from optuna.trial import TrialState

        self._report(evaluations)
        if np.isfinite(score):
            self._study.tell(self._trial, score)
        else:  # TPE ranks pruned runs below all complete runs
            self._study.tell(self._trial, state=TrialState.PRUNED)

    def _report(self, evaluations: Sequence[float]) -> None:
        for step in range(self._reported, len(evaluations)):
            self._trial.report(evaluations[step], step)
        self._reported = max(self._reported, len(evaluations))


class StopBadRuns(TrainerCallback):
    """Compares a run with earlier runs after each evaluation except the last: stopping then would save nothing."""

    def __init__(self, suggestions: Suggestions, metric: str):
        self._suggestions, self._metric = suggestions, metric
        self.evaluations: list[float] = []  # that were compared

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each evaluation. The log contains evaluations before a resumed checkpoint, too."""
        if state.global_step < state.max_steps:
            self.evaluations = [line[self._metric] for line in state.log_history if self._metric in line]
            if self._suggestions.is_bad(self.evaluations):
                raise PrunedError


def _make_study(search: SweepFile, seed: int, higher_is_better: bool) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep logs its runs
    with warnings.catch_warnings():  # the user chose the sampler in the sweep file
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = getattr(optuna.samplers, SAMPLERS.get(search.method, "RandomSampler"))(seed=seed)
    # By default, MedianPruner never stops the first five runs.
    pruner = optuna.pruners.MedianPruner() if search.prune else optuna.pruners.NopPruner()
    return optuna.create_study(
        sampler=sampler, pruner=pruner, direction="maximize" if higher_is_better else "minimize"
    )


def _make_distribution(values: Choices | Span) -> "BaseDistribution":
    """Returns the Optuna distribution of a flag. Choices are numbered, because their values may be of any type."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, Span):
        return FloatDistribution(values.low, values.high, log=values.log)
    last = len(values.values) - 1
    return IntDistribution(0, last) if values.ordered else CategoricalDistribution(range(last + 1))
