"""SnugBERT: BERT for Hugging Face transformers, pretrained and fine-tuned on your own text.

Importing this package registers its configuration, tokenizer and models with transformers' Auto classes. It also marks
them as custom code, so `save_pretrained` and `push_to_hub` include their source files.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import transformers

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.modeling_snugbert import (
    AUTO_CLASSES,
    OTHER_PRETRAINING_MODELS,
    SnugBertForMaskedLM,
    SnugBertForMultipleChoice,
    SnugBertForNextSentencePrediction,
    SnugBertForPreTraining,
    SnugBertForQuestionAnswering,
    SnugBertForReplacedTokenDetection,
    SnugBertForSequenceClassification,
    SnugBertForTokenClassification,
    SnugBertModel,
    SnugBertPreTrainedModel,
)
from snugbert.tokenization_snugbert import SnugBertTokenizer

if TYPE_CHECKING:  # type checkers see what `LAZY_NAMES` imports on demand
    from snugbert.data.corpus.corpus import open_corpus
    from snugbert.data.corpus.preparation import prepare_corpus
    from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking, TokenBudgetDataset
    from snugbert.errors import InputError
    from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
    from snugbert.evaluation.held_out_text import score_text
    from snugbert.evaluation.minimal_pairs import MinimalPair, score_pairs
    from snugbert.export.export import export_model
    from snugbert.families.conversion import convert_model
    from snugbert.prediction.predictor import Predictor
    from snugbert.prediction.question_answerer import QuestionAnswerer
    from snugbert.tasks.classification import TextClassification
    from snugbert.tasks.metrics import TaskMetric
    from snugbert.tasks.multiple_choice import MultipleChoice
    from snugbert.tasks.question_answering import QuestionAnswering
    from snugbert.tasks.tagging import Tagging
    from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
    from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
    from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
    from snugbert.trainers.pretraining.batches import plan_phases
    from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
    from snugbert.trainers.pretraining.examples import PretrainingDataset
    from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
    from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
    from snugbert.vocabulary.train import train_vocabulary
    from snugbert.vocabulary.vocabulary_arguments import VocabularyArguments

__version__ = "0.1.0"

transformers.AutoConfig.register(SnugBertConfig.model_type, SnugBertConfig)
SnugBertConfig.register_for_auto_class()
# Registered under its own class name, which tokenizer_config.json or the configuration contains. If it were registered
# for SnugBertConfig, AutoTokenizer with trust_remote_code=True would prefer a repository's code.
transformers.AutoTokenizer.register(SnugBertTokenizer, tokenizer_class=SnugBertTokenizer)
SnugBertConfig.tokenizer_class = SnugBertTokenizer.__name__  # type: ignore[attr-defined]
SnugBertTokenizer.register_for_auto_class()
for _auto_class, _model_class in AUTO_CLASSES.items():
    getattr(transformers, _auto_class).register(SnugBertConfig, _model_class)
    _model_class.register_for_auto_class(_auto_class)
for _model_class in OTHER_PRETRAINING_MODELS:
    _model_class.register_for_auto_class("AutoModelForPreTraining")
# `register` takes one class per configuration. Of several classes, `architectures` in the configuration chooses one.
transformers.MODEL_FOR_PRETRAINING_MAPPING.register(
    SnugBertConfig,
    (AUTO_CLASSES["AutoModelForPreTraining"], *OTHER_PRETRAINING_MODELS),  # type: ignore[arg-type]
    exist_ok=True,
)


# Imported on demand: the training packages take seconds to import and may not be installed.
LAZY_NAMES = {
    "DistillationTrainer": "trainers.finetuning.distillation_trainer",
    "FineTuningArguments": "trainers.finetuning.finetuning_arguments",
    "FineTuningTrainer": "trainers.finetuning.finetuning_trainer",
    "HeldOutTextArguments": "evaluation.evaluation_arguments",
    "InputError": "errors",
    "MinimalPair": "evaluation.minimal_pairs",
    "MultipleChoice": "tasks.multiple_choice",
    "Predictor": "prediction.predictor",
    "PretrainingArguments": "trainers.pretraining.pretraining_arguments",
    "PretrainingDataset": "trainers.pretraining.examples",
    "PretrainingTrainer": "trainers.pretraining.pretraining_trainer",
    "QuestionAnswerer": "prediction.question_answerer",
    "QuestionAnswering": "tasks.question_answering",
    "SnugBertDataCollatorForPretraining": "trainers.pretraining.collator",
    "SnugBertDataCollatorWithPacking": "data.packed_batches",
    "Tagging": "tasks.tagging",
    "TaskMetric": "tasks.metrics",
    "TextClassification": "tasks.classification",
    "TokenBudgetDataset": "data.packed_batches",
    "VocabularyArguments": "vocabulary.vocabulary_arguments",
    "convert_model": "families.conversion",
    "export_model": "export.export",
    "open_corpus": "data.corpus.corpus",
    "plan_phases": "trainers.pretraining.batches",
    "prepare_corpus": "data.corpus.preparation",
    "score_pairs": "evaluation.minimal_pairs",
    "score_text": "evaluation.held_out_text",
    "train_vocabulary": "vocabulary.train",
}


def __getattr__(name: str) -> object:
    if name in LAZY_NAMES:
        try:
            return getattr(import_module(f"snugbert.{LAZY_NAMES[name]}"), name)
        except ModuleNotFoundError as error:
            message = f"snugbert.{name} needs the package {error.name}. Run: pip install 'snugbert[train]'"
            raise ImportError(message) from error
    raise AttributeError(f"module 'snugbert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY_NAMES})


__all__ = [
    "DistillationTrainer",
    "FineTuningArguments",
    "FineTuningTrainer",
    "HeldOutTextArguments",
    "InputError",
    "MinimalPair",
    "MultipleChoice",
    "Predictor",
    "PretrainingArguments",
    "PretrainingDataset",
    "PretrainingTrainer",
    "QuestionAnswerer",
    "QuestionAnswering",
    "SnugBertConfig",
    "SnugBertDataCollatorForPretraining",
    "SnugBertDataCollatorWithPacking",
    "SnugBertForMaskedLM",
    "SnugBertForMultipleChoice",
    "SnugBertForNextSentencePrediction",
    "SnugBertForPreTraining",
    "SnugBertForQuestionAnswering",
    "SnugBertForReplacedTokenDetection",
    "SnugBertForSequenceClassification",
    "SnugBertForTokenClassification",
    "SnugBertModel",
    "SnugBertPreTrainedModel",
    "SnugBertTokenizer",
    "Tagging",
    "TaskMetric",
    "TextClassification",
    "TokenBudgetDataset",
    "VocabularyArguments",
    "convert_model",
    "export_model",
    "open_corpus",
    "plan_phases",
    "prepare_corpus",
    "score_pairs",
    "score_text",
    "train_vocabulary",
]
