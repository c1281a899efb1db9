"""SnugBERT: BERT for Hugging Face transformers, pretrained and fine-tuned on your own text.

Importing this package registers its configuration, tokenizer and models with transformers' Auto classes, and marks
them as custom code, which travels along with `save_pretrained` and `push_to_hub`.
"""

from importlib import import_module
from typing import Any

import transformers

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.modeling_snugbert import (
    AUTO_CLASSES,
    SnugBertForMaskedLM,
    SnugBertForMultipleChoice,
    SnugBertForNextSentencePrediction,
    SnugBertForPreTraining,
    SnugBertForQuestionAnswering,
    SnugBertForSequenceClassification,
    SnugBertForTokenClassification,
    SnugBertModel,
    SnugBertPreTrainedModel,
)
from snugbert.tokenization_snugbert import SnugBertTokenizer

__version__ = "0.1.0"

transformers.AutoConfig.register(SnugBertConfig.model_type, SnugBertConfig)
SnugBertConfig.register_for_auto_class()
# Found by its name, which tokenizer_config.json or else the configuration gives, and not by the configuration's class:
# with that, AutoTokenizer prefers the code in a repository to the installed one where trust_remote_code=True.
transformers.AutoTokenizer.register(SnugBertTokenizer, tokenizer_class=SnugBertTokenizer)
SnugBertConfig.tokenizer_class = SnugBertTokenizer.__name__  # type: ignore[attr-defined]
SnugBertTokenizer.register_for_auto_class()
for _auto_class, _model_class in AUTO_CLASSES.items():
    getattr(transformers, _auto_class).register(SnugBertConfig, _model_class)
    _model_class.register_for_auto_class(_auto_class)


LAZY_NAMES = {
    "PretrainingArguments": "trainers.pretraining.trainer",
    "PretrainingTrainer": "trainers.pretraining.trainer",
    "QuestionAnswerer": "question_answering.answerer",
    "SnugBertDataCollatorForPretraining": "trainers.pretraining.collator",
    "SnugBertDataCollatorWithPacking": "packed_batches",
    "TokenBudgetDataset": "packed_batches",
    "open_corpus": "trainers.pretraining.corpus",
    "prepare_corpus": "trainers.pretraining.preparation",
}


def __getattr__(name: str) -> Any:
    # Imported on demand: training packages take seconds to import and may not be installed.
    if name in LAZY_NAMES:
        try:
            return getattr(import_module(f"snugbert.{LAZY_NAMES[name]}"), name)
        except ModuleNotFoundError as error:
            message = f"snugbert.{name} needs the package {error.name}. Run: pip install 'snugbert[train]'"
            raise ImportError(message) from error
    raise AttributeError(f"module 'snugbert' has no attribute {name!r}")


__all__ = [
    "PretrainingArguments",
    "PretrainingTrainer",
    "QuestionAnswerer",
    "SnugBertConfig",
    "SnugBertDataCollatorForPretraining",
    "SnugBertDataCollatorWithPacking",
    "SnugBertForMaskedLM",
    "SnugBertForMultipleChoice",
    "SnugBertForNextSentencePrediction",
    "SnugBertForPreTraining",
    "SnugBertForQuestionAnswering",
    "SnugBertForSequenceClassification",
    "SnugBertForTokenClassification",
    "SnugBertModel",
    "SnugBertPreTrainedModel",
    "SnugBertTokenizer",
    "TokenBudgetDataset",
    "open_corpus",
    "prepare_corpus",
]
