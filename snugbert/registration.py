"""Registers the configuration, the tokenizer and the models with transformers' Auto classes. Takes seconds."""

import transformers

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.modeling_snugbert import AUTO_CLASSES, OTHER_PRETRAINING_MODELS
from snugbert.tokenization_snugbert import SnugBertTokenizer

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
# An Auto class registers one class per configuration. This mapping takes several, and `architectures` chooses one.
transformers.MODEL_FOR_PRETRAINING_MAPPING.register(
    SnugBertConfig,
    (AUTO_CLASSES["AutoModelForPreTraining"], *OTHER_PRETRAINING_MODELS),  # type: ignore[arg-type]
    exist_ok=True,
)
