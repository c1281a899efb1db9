"""Configuration of SnugBERT models, with the field names and defaults of BertConfig."""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401 (imported first, to report unsupported versions)

# isort: split
import re
import sys
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .families_snugbert import FAMILY_TYPES, convert_family_config

# Layers, hidden size, attention heads. Sizes base and large: Devlin et al. (2018), section 3. Smaller sizes: Google's
# models for Turc et al. (2019), "Well-Read Students Learn Better".
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
# Limits. Larger values in a damaged file would make torch build layers forever or raise an OverflowError.
MOST_LAYERS, LARGEST_SIZE = 1000, 2**31 - 1
POSITION_EMBEDDING_TYPES = ("absolute", "after_padding", "relative", "sinusoidal")
CLASSIFICATION_HEADS = ("pooler", "dense")
OUR_CODE = re.compile(r"(configuration|modeling)_snugbert\.SnugBert\w+")  # allowed in an `auto_map`
LOADABLE_TYPES = ("snugbert", "bert", *FAMILY_TYPES)
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


@strict
class SnugBertConfig(PreTrainedConfig):
    r"""Configuration of a SnugBERT model. The defaults give BERT base (110M parameters).

    Args:
        vocab_size (`int`, *optional*, defaults to 30522): Number of tokens in the vocabulary.
        hidden_size (`int`, *optional*, defaults to 768): Width of the encoder. To build a model, it must be a
            multiple of `num_attention_heads`.
        embedding_size (`int`, *optional*): Width of the embeddings. If it differs from `hidden_size`, a linear layer
            projects them, as in ELECTRA. None: `hidden_size`.
        num_hidden_layers (`int`, *optional*, defaults to 12): Number of encoder layers.
        num_attention_heads (`int`, *optional*, defaults to 12): Number of attention heads per layer.
        intermediate_size (`int`, *optional*, defaults to 3072): Width of the feed-forward sublayer. The paper uses 4
            times `hidden_size` (section 3).
        hidden_act (`str`, *optional*, defaults to `"gelu"`): Activation of the feed-forward sublayer and the masked
            token head. Any name in `transformers.activations.ACT2FN`.
        hidden_dropout_prob (`float`, *optional*, defaults to 0.1): Dropout on embeddings and sublayer outputs.
        attention_probs_dropout_prob (`float`, *optional*, defaults to 0.1): Dropout on attention weights.
        max_position_embeddings (`int`, *optional*, defaults to 512): Length of the longest sequence, in tokens. With
            relative positions, sequences may be longer. In each direction, all larger distances then share a row.
        type_vocab_size (`int`, *optional*, defaults to 2): Number of segments (`token_type_ids`). With relative
            positions it may be 0, as in DeBERTa. The model then ignores `token_type_ids`.
        initializer_range (`float`, *optional*, defaults to 0.02): Standard deviation of the initial weights.
        layer_norm_eps (`float`, *optional*, defaults to 1e-12): Added to the variance in LayerNorm.
        pad_token_id (`int`, *optional*, defaults to 0): Id of the padding token.
        position_embedding_type (`str`, *optional*, defaults to `"absolute"`): `"absolute"` for learned positions
            (Devlin et al., 2018), `"after_padding"` for RoBERTa's, `"sinusoidal"` for computed positions (Vaswani et
            al., 2017, section 3.5), `"relative"` for DeBERTa-v3's (He et al., 2021). RoBERTa counts only tokens that
            are not padding. Its table begins with `pad_token_id` + 1 rows for padding, which do not count towards
            `max_position_embeddings`. In DeBERTa, attention scores depend on the distance between two tokens, and
            `position_ids` have no effect.
        position_buckets (`int`, *optional*, defaults to 256): Number of rows for distances in each direction, with
            relative positions. Distances up to half of this number have a row each. Longer distances share rows, on a
            logarithmic scale up to `max_position_embeddings`.
        pooler_act (`str`, *optional*, defaults to `"tanh"`): Activation of the pooler. ELECTRA uses `"gelu"`.
            Classifiers converted from DistilBERT use `"relu"`.
        prediction_act (`str`, *optional*): Activation of the masked token head. None: `hidden_act`. RoBERTa and
            ELECTRA use `"gelu"`.
        classification_head (`str`, *optional*, defaults to `"pooler"`): `"pooler"` for BERT's sequence classifier:
            pooler, dropout, linear layer. `"dense"` adds dropout before the pooler, as in RoBERTa and ELECTRA.
        classifier_dropout (`float`, *optional*): Dropout of a classifier. None: `hidden_dropout_prob`.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`): Whether the masked token head shares the word
            embeddings.

    Raises:
        ValueError: a value is out of range, or the configuration is for a decoder.
        StrictDataclassError: a value has the wrong type (from `huggingface_hub`).
    """

    model_type = "snugbert"
    # `ForPreTraining` returns these losses for logging. They are not predictions.
    keys_to_ignore_at_inference = ["mlm_loss", "nsp_loss"]

    vocab_size: int = 30522
    hidden_size: int = 768
    embedding_size: int | None = None
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    position_embedding_type: str = "absolute"
    position_buckets: int = 256
    pooler_act: str = "tanh"
    prediction_act: str | None = None
    classification_head: str = "pooler"
    classifier_dropout: float | int | None = None
    tie_word_embeddings: bool = True
    # Accepts any string, so that `_check_ranges` raises the error. huggingface_hub's error is not a ValueError.
    problem_type: str | None = None  # type: ignore[assignment]

    def __post_init__(self, **kwargs: Any):
        # The model type "bert" of a BERT checkpoint must not shadow the class attribute, which is saved.
        model_type = kwargs.pop("model_type", None)
        if model_type not in (None, "", "bert", self.model_type):  # `from_dict` translates the other loadable types
            raise ValueError(
                f"Unsupported model type {model_type!r}. `from_pretrained` and `from_dict` accept "
                f"{', '.join(LOADABLE_TYPES)}."
            )
        # Fields of BertConfig for decoders.
        kwargs.pop("use_cache", None)
        for name in ("is_decoder", "add_cross_attention"):
            setattr(self, name, kwargs.pop(name, False))  # raises an error for a decoder
        super().__post_init__(**kwargs)
        if self.architectures is None:
            self.architectures = []  # AutoModelForPreTraining reads the list to choose between two classes
        if self.id2label is not None and self.label2id is None:  # pipelines need both
            self.label2id = {str(label): int(index) for index, label in self.id2label.items()}
        self._check_ranges()

    def __setattr__(self, name: str, value: Any):
        if name not in ("is_decoder", "add_cross_attention"):
            super().__setattr__(name, value)
        elif value:
            raise ValueError(f"`{name}` is true, but SnugBERT is an encoder. Use transformers' class for a decoder.")

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads the values as transformers does, and translates other families' values.

        Raises:
            ValueError: SnugBERT cannot express the model.
        """
        values, unused = super().get_config_dict(*args, **kwargs)
        if values.get("model_type") in LOADABLE_TYPES:
            values = convert_family_config(values) | {"model_type": cls.model_type}  # otherwise transformers warns
        return values, unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds a configuration from the contents of a `config.json` of SnugBERT or another family.

        Raises:
            ValueError: SnugBERT cannot express the model.
        """
        return super().from_dict(convert_family_config(config_dict), **kwargs)

    @classmethod
    def from_size(cls, size: str, **overrides: Any) -> "SnugBertConfig":
        """Builds the configuration of a named size.

        Args:
            size (`str`): `"tiny"` (2 layers, hidden size 128, 2 heads), `"mini"` (4, 256, 4), `"small"` (4, 512, 8),
                `"medium"` (8, 512, 8), `"base"` (12, 768, 12) or `"large"` (24, 1024, 16).
            overrides: values of other fields, by name.

        Raises:
            ValueError: the size is unknown.
        """
        if size not in SIZES:
            raise ValueError(f"Unknown size {size!r}. Sizes: {', '.join(SIZES)}.")
        layers, hidden_size, heads = SIZES[size]
        fields = {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden_size,
        }
        return cls(**{**fields, **overrides})

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Saves as in transformers, without `auto_map` entries and pipelines that refer to other code."""
        auto_map = getattr(self, "auto_map", None) or {}
        self.auto_map = {name: code for name, code in auto_map.items() if OUR_CODE.fullmatch(str(code))}
        self.__dict__.pop("custom_pipelines", None)
        super().save_pretrained(*args, **kwargs)

    # Not named `validate_...`: transformers would run it and turn its ValueError into a different error.
    def _check_ranges(self):
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        )
        for name in (*sizes, "embedding_size", "position_buckets"):
            if (getattr(self, name) or 0) > (MOST_LAYERS if name == "num_hidden_layers" else LARGEST_SIZE):
                raise ValueError(f"`{name}` {getattr(self, name)} is too large.")
        for name in sizes:
            minimum = 0 if name == "type_vocab_size" and self.position_embedding_type == "relative" else 1
            if getattr(self, name) < minimum:
                raise ValueError(f"`{name}` must be at least {minimum}, not {getattr(self, name)}.")
        if self.position_buckets < 2:
            raise ValueError(f"`position_buckets` must be at least 2, not {self.position_buckets}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            probability = getattr(self, name)
            if probability is not None and not 0 <= probability < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, not {probability}.")
        if self.embedding_size is not None and self.embedding_size < 1:
            raise ValueError(f"`embedding_size` must be at least 1, not {self.embedding_size}.")
        for name in ("initializer_range", "layer_norm_eps"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0, not {getattr(self, name)}.")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"`pad_token_id` {self.pad_token_id} is outside the vocabulary of {self.vocab_size}.")
        choices = {
            **dict.fromkeys(("hidden_act", "pooler_act", "prediction_act"), sorted(ACT2FN)),
            "problem_type": PROBLEM_TYPES,
            "position_embedding_type": POSITION_EMBEDDING_TYPES,
            "classification_head": CLASSIFICATION_HEADS,
        }
        for name, known in choices.items():
            value, is_optional = getattr(self, name), name in ("prediction_act", "problem_type")
            if value not in known and not (is_optional and value is None):
                raise ValueError(f"Unknown `{name}` {value!r}. Expected {', '.join(known)}.")
        if self.position_embedding_type == "sinusoidal" and compute_embedding_size(self) % 2:
            raise ValueError(
                f"Sinusoidal positions need an even `embedding_size`, not {compute_embedding_size(self)}."
            )
        if self.position_embedding_type == "after_padding" and self.pad_token_id is None:
            raise ValueError('`pad_token_id` is missing. Positions of type "after_padding" start after this id.')


# Functions, not properties of the configuration, because a `config.json` may contain fields of any name.
def compute_embedding_size(config: SnugBertConfig) -> int:
    """Computes the width of the embeddings."""
    return config.hidden_size if config.embedding_size is None else config.embedding_size


def get_windows(config: Any) -> tuple[int, int] | None:
    """Returns how a classifier splits long texts: maximum tokens per window, and tokens that neighbors share.

    Fine-tuning with `--doc_stride` stores these numbers. None: longer texts are truncated to one window.
    """
    stored = getattr(config, "document_windows", None)
    if not stored:
        return None
    names = ("max_seq_length", "doc_stride")
    sizes: list[Any] = [stored.get(name) for name in names] if isinstance(stored, dict) else [None]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"`document_windows` {stored!r} must have the numbers `max_seq_length` and `doc_stride`.")
    return sizes[0], sizes[1]


def compute_max_length(config: SnugBertConfig) -> int:
    """Computes how many tokens a sequence may have.

    With relative positions there is no limit: all distances beyond `max_position_embeddings` share the last row.
    """
    is_relative = config.position_embedding_type == "relative"
    return sys.maxsize if is_relative else config.max_position_embeddings


def compute_head_size(config: SnugBertConfig) -> int:
    """Computes the size of an attention head. Raises a ValueError if no model can be built.

    As in stock BERT, a configuration may contain sizes that do not fit, because tools set one size after the other.
    """
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"`hidden_size` {config.hidden_size} is not a multiple of `num_attention_heads` "
            f"{config.num_attention_heads}."
        )
    return config.hidden_size // config.num_attention_heads


__all__ = ["SnugBertConfig"]
