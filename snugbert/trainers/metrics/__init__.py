"""Metrics of the fine-tuning tasks as `evaluate.Metric` classes; nothing is downloaded to use them."""

from snugbert.trainers.metrics.glue import GlueMetric

__all__ = ["GlueMetric"]
