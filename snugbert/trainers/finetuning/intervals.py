"""95 % intervals of scores: how much a score may change with other examples from the same source.

The method is the percentile bootstrap (Efron and Tibshirani, 1993, chapter 13): all examples are drawn `RESAMPLES`
times with replacement, and the interval spans the middle 95 % of the scores. The examples are texts or pairs (glue),
sentences (ner) or questions (squad). The model stays the same, so the spread between seeds is not part of it.

Texts are not scored again. The score of a resample is computed from a few numbers for each example, such as its
correct entities.

Shapes: N examples, R resamples, C classes or labels.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student_t

RESAMPLES = 1000
CHUNK = 50  # resamples at a time; 50 x 40,000 examples of QQP take 16 MB
SEED = 0
LEVEL = 0.95
METHOD = "95 % intervals: bootstrap over the examples."

Scores = dict[str, np.ndarray]  # metric -> its value in each resample (R,)
Resample = Callable[[np.ndarray], Scores]  # indices of the drawn examples (R, N) -> scores


def bootstrap(resample: Resample, num_examples: int, resamples: int = RESAMPLES) -> dict[str, list[float]]:
    """Returns the 95 % interval of each metric. Metrics that are undefined in all resamples are left out.

    Args:
        resample: scores resamples.
        num_examples: N.
        resamples: R.
    """
    chunks = [resample(indices) for indices in draw(num_examples, resamples)]
    intervals = {}
    for metric in chunks[0] if chunks else ():
        values = np.concatenate([chunk[metric] for chunk in chunks])
        values = values[np.isfinite(values)]
        if len(values):
            intervals[metric] = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return intervals


def draw(num_examples: int, resamples: int) -> Iterator[np.ndarray]:
    """Yields the indices of the drawn examples, the same in every run. *Shape:* (at most `CHUNK`, N)"""
    generator = np.random.default_rng(SEED)
    for start in range(0, resamples, CHUNK):
        yield generator.integers(num_examples, size=(min(CHUNK, resamples - start), num_examples))


def interval_of_mean(values: Sequence[float]) -> list[float] | None:
    """Returns the 95 % interval of the mean over seeds, from Student's t distribution.

    None: there is only one seed, or a value is undefined.
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    half = student_t.ppf((1 + LEVEL) / 2, len(values) - 1) * error
    return [float(np.mean(values) - half), float(np.mean(values) + half)]


def sum_drawn(numbers: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Adds up numbers of the drawn examples. *Shape:* (N, K), (R, N) -> (R, K)"""
    rows, examples = indices.shape
    places = (indices + np.arange(rows)[:, None] * examples).ravel()
    counts = np.bincount(places, minlength=rows * examples).reshape(rows, examples)
    return counts @ numbers.astype(np.float64)


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides. A fraction with denominator 0 is 0, as in scikit-learn with `zero_division=0`."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator, dtype=np.float64), where=denominator != 0)


# --- metrics ----------------------------------------------------------------------------------------------------


def resample_classes(predictions: np.ndarray, references: np.ndarray, metrics: Sequence[str]) -> Resample:
    """Scores one class per example: accuracy, F1 of class 1, and Matthews correlation.

    Args:
        predictions, references: class ids. *Shape:* (N,)
        metrics: which of "accuracy", "f1" and "matthews_correlation" to compute.
    """
    classes = int(max(predictions.max(), references.max(), 1)) + 1
    correct = (predictions == references)[:, None]
    cells = np.eye(classes * classes)[references * classes + predictions] if set(metrics) - {"accuracy"} else None

    def resample(indices: np.ndarray) -> Scores:
        scores = {"accuracy": sum_drawn(correct, indices)[:, 0] / indices.shape[1]}
        if cells is not None:
            confusion = sum_drawn(cells, indices).reshape(-1, classes, classes)
            actual, predicted = confusion.sum(2), confusion.sum(1)
            scores["f1"] = divide(2 * confusion[:, 1, 1], actual[:, 1] + predicted[:, 1])
            total = confusion.sum((1, 2))
            # Gorodkin (2004), equation 8; as in scikit-learn.
            covariance = np.trace(confusion, axis1=1, axis2=2) * total - (actual * predicted).sum(1)
            variances = (total**2 - (actual**2).sum(1)) * (total**2 - (predicted**2).sum(1))
            scores["matthews_correlation"] = divide(covariance, np.sqrt(variances))
        return {metric: scores[metric] for metric in metrics}

    return resample


def resample_label_sets(predictions: np.ndarray, references: np.ndarray) -> Resample:
    """Scores any number of labels per example: micro F1, macro F1 and subset accuracy.

    Args:
        predictions, references: 1 for each label of an example, otherwise 0. *Shape:* (N, C)
    """
    exact = (predictions == references).all(1, keepdims=True)
    numbers = np.concatenate([predictions & references, predictions + references, exact], axis=1)

    def resample(indices: np.ndarray) -> Scores:
        sums = sum_drawn(numbers, indices)
        correct, both = np.split(sums[:, :-1], 2, axis=1)
        return {
            "micro_f1": divide(2 * correct.sum(1), both.sum(1)),
            "macro_f1": divide(2 * correct, both).mean(1),
            "subset_accuracy": sums[:, -1] / indices.shape[1],
        }

    return resample


def resample_numbers(predictions: np.ndarray, references: np.ndarray, metrics: Sequence[str]) -> Resample:
    """Scores one number per example: mean squared error, Pearson and Spearman correlation.

    Args:
        predictions, references: *Shape:* (N,)
        metrics: which of "mse", "pearson" and "spearmanr" to compute.
    """

    def resample(indices: np.ndarray) -> Scores:
        drawn = predictions[indices].astype(np.float64), references[indices].astype(np.float64)
        functions = {
            "mse": lambda: ((drawn[0] - drawn[1]) ** 2).mean(1),
            "pearson": lambda: _correlate(*drawn),
            "spearmanr": lambda: _correlate(*(rankdata(values, axis=1) for values in drawn)),
        }
        return {metric: functions[metric]() for metric in metrics}

    return resample


def _correlate(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson correlations of rows. NaN for a constant."""
    first, second = (values - values.mean(1, keepdims=True) for values in (first, second))
    norms = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    return np.divide((first * second).sum(1), norms, out=np.full(len(norms), np.nan), where=norms > 0)


def resample_entities(counts: np.ndarray) -> Resample:
    """Scores entities: precision, recall, F1, and accuracy of tags.

    Args:
        counts: correct, predicted and actual entities, correct tags and all tags of each sentence. *Shape:* (N, 5)
    """

    def resample(indices: np.ndarray) -> Scores:
        correct, predicted, actual, correct_tags, tags = sum_drawn(counts, indices).T
        return {
            "precision": divide(correct, predicted),
            "recall": divide(correct, actual),
            "f1": divide(2 * correct, predicted + actual),
            "accuracy": divide(correct_tags, tags),
        }

    return resample


def resample_means(values: dict[str, np.ndarray]) -> Resample:
    """Scores means over questions, in percent.

    Args:
        values: metric -> value of each question from 0 to 1, NaN if the question does not count. *Shape:* (N,) each
    """
    numbers = np.stack([column for each in values.values() for column in (np.nan_to_num(each), ~np.isnan(each))], 1)

    def resample(indices: np.ndarray) -> Scores:
        sums = sum_drawn(numbers, indices)
        with np.errstate(invalid="ignore"):  # NaN if no question of a kind was drawn
            means = 100 * sums[:, 0::2] / sums[:, 1::2]
        return dict(zip(values, means.T, strict=True))

    return resample
