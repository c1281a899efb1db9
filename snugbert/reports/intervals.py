"""95 % confidence intervals of scores.

The interval of one run's score is a percentile bootstrap over the examples (Efron and Tibshirani, 1993, "An
Introduction to the Bootstrap", chapter 13). The bootstrap resamples numbers per example, such as counts of correct
entities, so it takes about a second for most data. The interval of a mean over seeds is Student's t interval.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Interval = tuple[float, float]  # low and high
# (distinct rows, how often each was drawn) -> metric -> value
Score = Callable[[np.ndarray, np.ndarray], Mapping[str, float]]

LEVEL = 0.95
TAILS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)  # in percent
RESAMPLES = 1000  # the ends are then about the 25th lowest and the 25th highest value
SEED = 0  # the same predictions always get the same interval
METHOD = "95 % intervals from a bootstrap over the examples."
METHOD_FOR_MEANS = "95 % intervals: Student's t over the seeds, or a bootstrap over the examples if there is one seed."


def bootstrap(rows: np.ndarray, score: Score, resamples: int = RESAMPLES) -> dict[str, Interval]:
    """Returns the interval of each metric: the middle 95 % of its values on resampled examples.

    Each resample draws as many examples as there are, with replacement. Examples with equal rows are counted together.

    Args:
        rows: the numbers that the metrics need about each example. *Shape:* (examples, numbers)
        score: computes the metrics from the distinct rows, *shape* (distinct rows, numbers), in ascending order, and
            from the number of times that each was drawn, *shape* (distinct rows,).

    Returns:
        Metric -> low and high. Ignores values that are not finite, and leaves out metrics without finite values.
    """
    distinct, groups = np.unique(rows, axis=0, return_inverse=True)
    generator = np.random.default_rng(SEED)
    drawn = []
    for _ in range(resamples):
        examples = generator.integers(len(rows), size=len(rows))
        drawn.append(score(distinct, np.bincount(groups.reshape(-1)[examples], minlength=len(distinct))))
    intervals = {}
    for metric in drawn[0]:
        values = np.array([metrics[metric] for metrics in drawn], dtype=np.float64)
        if np.isfinite(values).any():
            low, high = np.percentile(values[np.isfinite(values)], TAILS)
            intervals[metric] = (float(low), float(high))
    return intervals


def estimate_mean_interval(values: Sequence[float]) -> Interval | None:
    """Returns Student's t interval of a mean. None: there are fewer than two values, or one is not finite."""
    from scipy.stats import t as student_t  # takes long to import, and pretraining does not need it

    if len(values) < 2 or not np.isfinite(values).all():
        return None
    # With equal values, `student_t.interval` would be NaN.
    width = student_t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - width), float(np.mean(values) + width)


def combine_intervals(scores: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """Returns the interval of the average of scores on different examples, from each score's interval.

    The distances from each score to the ends of its interval add up as independent errors do: Zou and Donner (2008),
    "Construction of confidence limits about effect measures".
    """
    lows, highs = np.array(intervals).T
    low, high = (np.sqrt(np.square(ends - scores).sum()) / len(scores) for ends in (lows, highs))
    return float(np.mean(scores) - low), float(np.mean(scores) + high)
