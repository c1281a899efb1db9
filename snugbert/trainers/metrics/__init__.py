"""Metrics of the fine-tuning tasks as `evaluate.Metric` classes; nothing is downloaded to use them."""

from snugbert.trainers.metrics.glue import GlueMetric
from snugbert.trainers.metrics.ner import NerMetric
from snugbert.trainers.metrics.squad import SquadMetric

__all__ = ["GlueMetric", "NerMetric", "SquadMetric"]
