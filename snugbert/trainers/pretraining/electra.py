"""ELECTRA pretraining (Clark et al., 2020): a generator replaces tokens, and a discriminator detects replacements.

The generator is a small masked language model. Each masked token is replaced by a token sampled from its prediction.
Both models share their embeddings, including the LayerNorm, as in the original release.

Shapes: B rows and L columns of a batch, M masked tokens, V vocabulary size.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import SnugBertConfig, compute_embedding_size
from snugbert.data.languages import read_language, store_language
from snugbert.families.loading import GENERATOR_FOLDER, load_config, load_model
from snugbert.kernels_snugbert import has_own_kernels
from snugbert.modeling_snugbert import (
    IGNORE_INDEX,
    SnugBertForMaskedLM,
    SnugBertForReplacedTokenDetection,
    SnugBertPreTrainedModel,
)
from snugbert.trainers.pretraining.pretraining_arguments import DISCRIMINATOR_WEIGHT

# The same heads as ElectraForSequenceClassification, so that fine-tuned models can be converted to it.
ELECTRA_HEADS = {"classification_head": "dense", "pooler_act": "gelu", "prediction_act": "gelu"}
# Random numbers that sampling computes at once. On a CPU, they fit into the cache. On a GPU, they take 128 MiB.
NUMBERS_ON_CPU, NUMBERS_ON_GPU = 2**18, 2**24

logger = logging.getLogger(__name__)


@dataclass
class ElectraOutput(ModelOutput):
    """Output of [`ElectraPair`]. The losses of the two models are detached, for logging."""

    loss: torch.Tensor | None = None  # `mlm_loss` + 50 x `disc_loss`. *Shape:* ()
    logits: torch.Tensor | None = None  # the generator's logits of the masked tokens. *Shape:* (M, V)
    discriminator_logits: torch.Tensor | None = None  # above 0 means replaced. *Shape:* (B, L)
    is_replaced: torch.Tensor | None = None  # 1 for replaced tokens, 0 for others, -100 at padding. *Shape:* (B, L)
    mlm_loss: torch.Tensor | None = None
    disc_loss: torch.Tensor | None = None


class ElectraPair(SnugBertPreTrainedModel):
    """A discriminator and its generator, for training. [`PretrainingTrainer`] saves them as two models.

    The generator uses the embeddings of the discriminator. Batches need `replacement_keys`, see
    [`SnugBertDataCollatorForPretraining`].
    """

    def __init__(self, discriminator: SnugBertForReplacedTokenDetection, generator: SnugBertForMaskedLM):
        super().__init__(discriminator.config)
        self.discriminator = discriminator
        self.generator = generator
        generator.bert.embeddings = discriminator.bert.embeddings
        generator.tie_weights()  # the masked token head uses the new word embeddings
        keys = np.random.default_rng(0).integers(2**63, size=discriminator.config.vocab_size) * 2 + 1
        self._vocabulary_keys = torch.from_numpy(keys)  # not a buffer: DDP would send it to all processes in each step
        self.post_init()

    def get_input_embeddings(self) -> torch.nn.Module:
        """Returns the word embeddings of both models."""
        return self.discriminator.get_input_embeddings()

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        replacement_keys: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        num_tokens_in_batch: torch.Tensor | int | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> ElectraOutput:
        """Trains both models on a batch. No gradient flows from the discriminator to the generator's predictions.

        `replacement_keys` (M,) has a random int64 for each masked token, which determines its replacement.
        `num_items_in_batch` counts masked tokens in the global batch, and `num_tokens_in_batch` all tokens without
        padding. `sparse_prediction` is ignored: the generator computes masked tokens only.
        """
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs |= kwargs
        generated = self.generator(
            input_ids,
            labels=labels,
            num_items_in_batch=num_items_in_batch,
            sparse_prediction=True,
            detach_logits=True,
            **inputs,
        )
        with torch.no_grad():
            is_masked = labels != IGNORE_INDEX
            indices = kwargs.get("label_indices")
            if indices is None:
                indices = is_masked.flatten().nonzero().squeeze(-1)
            original_ids = torch.where(is_masked, labels, input_ids)
            self._vocabulary_keys = self._vocabulary_keys.to(input_ids.device)
            tokens = sample_tokens(generated.logits, replacement_keys, self._vocabulary_keys)
            replaced_ids = original_ids.flatten().index_copy(0, indices, tokens).view_as(original_ids)
            is_replaced = (replaced_ids != original_ids).long()
            if attention_mask is not None:
                is_replaced = is_replaced.masked_fill(attention_mask == 0, IGNORE_INDEX)
        detected = self.discriminator(
            replaced_ids, labels=is_replaced, num_items_in_batch=num_tokens_in_batch, **inputs
        )
        return ElectraOutput(
            loss=generated.loss + DISCRIMINATOR_WEIGHT * detected.loss,
            logits=generated.logits,
            discriminator_logits=detected.logits,
            is_replaced=is_replaced,
            mlm_loss=generated.loss.detach(),
            disc_loss=detected.loss.detach(),
        )


def sample_tokens(logits: torch.Tensor, token_keys: torch.Tensor, vocabulary_keys: torch.Tensor) -> torch.Tensor:
    """Draws a token from the softmax of each row. The result depends on the row and its key only.

    Divides each probability by an exponential random number and takes the largest quotient. In logarithms, this is the
    Gumbel-max trick of the original release. The random numbers are hashes: the key of the row and the key of the
    vocabulary entry, multiplied modulo 2^64. So a batch carries one random number per masked token, not one per logit,
    and CPUs and GPUs draw the same tokens, up to rounding of the logits. The keys are random int64, and the keys of
    the vocabulary are odd, so each product is uniform. The products of a row are not independent, but the frequencies
    of tokens do not differ measurably from the softmax (chi-squared tests).
    *Shape:* (M, V), (M,), (V,) -> (M,)
    """
    rows = max(1, (NUMBERS_ON_CPU if has_own_kernels(logits) else NUMBERS_ON_GPU) // logits.shape[-1])
    tokens = []
    for part, keys in zip(logits.split(rows), token_keys.split(rows), strict=True):
        hashes = (keys[:, None] * vocabulary_keys).bitwise_and_(2**63 - 1)  # without the sign
        # The smallest exponential numbers decide. They come from the smallest hashes, which stay distinct in float32.
        exponential = hashes.to(torch.float32).mul_(-(2.0**-63)).log1p_().neg_()
        tokens.append((part.float().softmax(-1) / exponential).argmax(-1))
    return torch.cat(tokens)


def load_pair(
    model_args: ModelArguments, config: SnugBertConfig, tokenizer: PreTrainedTokenizerBase, generator_size: float
) -> ElectraPair:
    """Loads a discriminator with this `config` and its generator, or builds them with random weights."""
    config.architectures = [SnugBertForReplacedTokenDetection.__name__]  # AutoModelForPreTraining maps to two classes
    discriminator = load_model(AutoModelForPreTraining, model_args, config)
    folder = find_generator(model_args)
    if folder is None:
        logger.info("generator: random weights")
        generator = AutoModelForMaskedLM.from_config(shrink_config(config, generator_size), dtype=torch.float32)
    else:
        logger.info("generator: %s (--generator_size has no effect)", folder)
        generator_args = replace(model_args, model_name_or_path=str(folder), config_name=None, config_overrides=None)
        generator_config = load_config(generator_args, tokenizer)
        store_language(read_language(config), generator_config)
        generator_config.hidden_dropout_prob = config.hidden_dropout_prob
        generator_config.attention_probs_dropout_prob = config.attention_probs_dropout_prob
        generator = load_model(AutoModelForMaskedLM, generator_args, generator_config)
    return ElectraPair(discriminator, generator)  # type: ignore[arg-type]


def find_generator(model_args: ModelArguments) -> Path | None:
    """Returns the folder of the checkpoint's generator. Downloads it if the checkpoint is on the Hub."""
    name = model_args.model_name_or_path
    if name is None:
        return None
    checkpoint = Path(name)
    if not checkpoint.is_dir():
        hub = {name: value for name, value in model_args.hub.items() if name != "trust_remote_code"}
        files = ["config.json", f"{GENERATOR_FOLDER}/*"]  # huggingface_hub warns if no file matches
        checkpoint = Path(snapshot_download(name, allow_patterns=files, **hub))
    folder = checkpoint / GENERATOR_FOLDER
    return folder if folder.is_dir() else None


def shrink_config(config: SnugBertConfig, size: float) -> SnugBertConfig:
    """Returns the configuration of a generator: narrower, but with as many layers and the same embeddings.

    `size` is the width of the generator, as a share of the discriminator's. The generator has at least 2 attention
    heads. The size of a head is a multiple of 8, because GPU kernels pad other sizes.
    """
    heads = max(min(2, config.num_attention_heads), round(config.num_attention_heads * size))
    hidden_size = heads * 8 * max(1, round(config.hidden_size * size / heads / 8))
    values = config.to_dict() | {
        "architectures": None,
        "embedding_size": compute_embedding_size(config),
        "hidden_size": hidden_size,
        "intermediate_size": round(config.intermediate_size * hidden_size / config.hidden_size),
        "num_attention_heads": heads,
    }
    generator_config = SnugBertConfig.from_dict(values)
    generator_config._attn_implementation = config._attn_implementation
    return generator_config
