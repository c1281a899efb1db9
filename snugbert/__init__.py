"""SnugBERT: BERT for Hugging Face transformers, pretrained and fine-tuned on your own text.

Importing this package registers its configuration, tokenizer and models with transformers' Auto classes. It also marks
them as custom code, so `save_pretrained` and `push_to_hub` include their source files.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers see what `LAZY_NAMES` imports on demand
    from snugbert.configuration_snugbert import SnugBertConfig as SnugBertConfig
    from snugbert.data.corpus.corpus import open_corpus as open_corpus
    from snugbert.data.corpus.preparation import prepare_corpus as prepare_corpus
    from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking as SnugBertDataCollatorWithPacking
    from snugbert.data.packed_batches import TokenBudgetDataset as TokenBudgetDataset
    from snugbert.errors import InputError as InputError
    from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments as HeldOutTextArguments
    from snugbert.evaluation.held_out_text import score_text as score_text
    from snugbert.evaluation.minimal_pairs import MinimalPair as MinimalPair
    from snugbert.evaluation.minimal_pairs import score_pairs as score_pairs
    from snugbert.export.export import export_model as export_model
    from snugbert.families.conversion import convert_model as convert_model
    from snugbert.modeling_snugbert import SnugBertForMaskedLM as SnugBertForMaskedLM
    from snugbert.modeling_snugbert import SnugBertForMultipleChoice as SnugBertForMultipleChoice
    from snugbert.modeling_snugbert import SnugBertForNextSentencePrediction as SnugBertForNextSentencePrediction
    from snugbert.modeling_snugbert import SnugBertForPreTraining as SnugBertForPreTraining
    from snugbert.modeling_snugbert import SnugBertForQuestionAnswering as SnugBertForQuestionAnswering
    from snugbert.modeling_snugbert import SnugBertForReplacedTokenDetection as SnugBertForReplacedTokenDetection
    from snugbert.modeling_snugbert import SnugBertForSequenceClassification as SnugBertForSequenceClassification
    from snugbert.modeling_snugbert import SnugBertForTokenClassification as SnugBertForTokenClassification
    from snugbert.modeling_snugbert import SnugBertModel as SnugBertModel
    from snugbert.modeling_snugbert import SnugBertPreTrainedModel as SnugBertPreTrainedModel
    from snugbert.prediction.predictor import Predictor as Predictor
    from snugbert.prediction.predictor import QuestionAnswerer as QuestionAnswerer
    from snugbert.tasks.classification import TextClassification as TextClassification
    from snugbert.tasks.metrics import TaskMetric as TaskMetric
    from snugbert.tasks.multiple_choice import MultipleChoice as MultipleChoice
    from snugbert.tasks.question_answering import QuestionAnswering as QuestionAnswering
    from snugbert.tasks.tagging import Tagging as Tagging
    from snugbert.tokenization_snugbert import SnugBertTokenizer as SnugBertTokenizer
    from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer as DistillationTrainer
    from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments as FineTuningArguments
    from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer as FineTuningTrainer
    from snugbert.trainers.pretraining.batches import plan_phases as plan_phases
    from snugbert.trainers.pretraining.collator import (
        SnugBertDataCollatorForPretraining as SnugBertDataCollatorForPretraining,
    )
    from snugbert.trainers.pretraining.examples import PretrainingDataset as PretrainingDataset
    from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments as PretrainingArguments
    from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer as PretrainingTrainer
    from snugbert.vocabulary.train import train_vocabulary as train_vocabulary
    from snugbert.vocabulary.vocabulary_arguments import VocabularyArguments as VocabularyArguments

__version__ = "0.1.0"

# A command first reads its arguments, without the models. `cli/main.py` imports `registration` afterwards.
if not getattr(sys.modules.get("snugbert_cli"), "is_reading_arguments", False):
    import_module("snugbert.registration")

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
    "QuestionAnswerer": "prediction.predictor",
    "QuestionAnswering": "tasks.question_answering",
    "SnugBertConfig": "configuration_snugbert",
    "SnugBertDataCollatorForPretraining": "trainers.pretraining.collator",
    "SnugBertDataCollatorWithPacking": "data.packed_batches",
    "SnugBertForMaskedLM": "modeling_snugbert",
    "SnugBertForMultipleChoice": "modeling_snugbert",
    "SnugBertForNextSentencePrediction": "modeling_snugbert",
    "SnugBertForPreTraining": "modeling_snugbert",
    "SnugBertForQuestionAnswering": "modeling_snugbert",
    "SnugBertForReplacedTokenDetection": "modeling_snugbert",
    "SnugBertForSequenceClassification": "modeling_snugbert",
    "SnugBertForTokenClassification": "modeling_snugbert",
    "SnugBertModel": "modeling_snugbert",
    "SnugBertPreTrainedModel": "modeling_snugbert",
    "SnugBertTokenizer": "tokenization_snugbert",
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


__all__ = sorted(LAZY_NAMES)
