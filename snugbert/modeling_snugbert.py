"""The SnugBERT encoder and its heads (Devlin et al., 2018).

Parameters have the names of transformers' BertForPreTraining, so a BERT checkpoint loads with no conversion, and what
is saved here opens in stock BERT once its configuration says `"model_type": "bert"`.

The encoder works on the tokens of all sequences in one row, without padding ([`SnugBertBatch`]). Attention alone knows
where a sequence ends. Heads gather the tokens they need from that row; what a caller gets is padded as his batch was.

Shapes in comments: B rows of L columns in the caller's batch, N sequences, T tokens, H hidden size, V vocabulary size,
M labelled tokens.
"""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401, checked before what other versions lack

# isort: split
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple, is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .card_snugbert import write_model_card
from .configuration_snugbert import SnugBertConfig
from .kernels_snugbert import Groups, SnugBertDropout, cross_entropy_sum, grouped_attention, upcast
from .packing_snugbert import (
    SnugBertBatch,
    attention_arguments,
    check_range,
    check_shape,
    is_ragged,
    make_batch,
    refuse_any,
    spread,
    warn_once,
)

NSP_CLASSES = "is next, is random:"  # for complaints about a label
IGNORE_INDEX = -100  # the label that torch's cross entropy and transformers' collators leave out
SINUSOID_BASE = 10000.0  # Vaswani et al. (2017), section 3.5


# --- the encoder ------------------------------------------------------------------------------------------------


class SnugBertSinusoidalPositions(nn.Module):
    """Position embeddings that are computed, not learned: sine in even dimensions, cosine in odd ones."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.hidden_size = config.hidden_size
        # Vaswani et al. multiply the word embeddings instead (section 3.4); with positions of amplitude 1 beside
        # words of 0.02, LayerNorm would leave next to nothing of the words.
        self.amplitude = config.initializer_range

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """[..., L] -> [..., L, H] in float32."""
        # Computed at every call: a buffer would be left unset by `from_pretrained`, which builds on the meta device.
        exponents = torch.arange(0, self.hidden_size, 2, device=position_ids.device) / self.hidden_size
        angles = position_ids[..., None] * SINUSOID_BASE**-exponents
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2) * self.amplitude


class SnugBertEmbeddings(nn.Module):
    """Sum of word, segment and position embeddings, normalized (Devlin et al., 2018, figure 2)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings: nn.Module = SnugBertSinusoidalPositions(config)
        else:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = SnugBertDropout(config.hidden_dropout_prob)

    def forward(
        self, inputs_embeds: torch.Tensor, token_type_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        """[1, T, H] word embeddings, [1, T] segments, [1, T] positions -> [1, T, H]."""
        embeddings = inputs_embeds + self.token_type_embeddings(token_type_ids)
        embeddings = embeddings + self.position_embeddings(position_ids).to(embeddings.dtype)
        return self.dropout(self.LayerNorm(embeddings))


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that keeps its weights: query, key, value [B, heads, L, D] -> [B, L, heads, D], [B, heads, L, L]."""
    scores = query @ key.transpose(-2, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def nested_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    scaling: float,
    dropout: float,
    **kwargs,
) -> torch.Tensor:
    """torch's attention on ragged batches, which on CUDA runs the kernels that SDPA has for even ones.

    Query [queries, heads, D], key and value [T, heads, D] -> [queries, heads, D].
    """

    def nested(tokens: torch.Tensor, cu_seq_lens: torch.Tensor, max_length: int) -> torch.Tensor:
        jagged = torch.nested.nested_tensor_from_jagged(tokens, cu_seq_lens, min_seqlen=1, max_seqlen=max_length)
        return jagged.transpose(1, 2)

    context = F.scaled_dot_product_attention(
        nested(query, cu_seq_lens_q, max_length_q),
        nested(key, cu_seq_lens_k, max_length_k),
        nested(value, cu_seq_lens_k, max_length_k),
        dropout_p=dropout,
        scale=scaling,
    )
    return context.transpose(1, 2).values()


class SnugBertSelfAttention(nn.Module):
    """Multi-head attention of every token to every token of its sequence."""

    is_causal = False  # transformers' sdpa takes a missing attribute for True

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        queries: torch.Tensor,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        batch_size: int | None = None,
        groups: Groups | None = None,
        padded_shape: tuple[int, int] | None = None,
        places: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Lets [1, Q, H] attend to [1, T, H].

        The further arguments are those of [`attention_arguments`].

        Returns:
            [1, Q, H], and the attention weights where the implementation has them: [N, heads, L, L].
        """
        query, key, value = (
            _in_autocast(projection(tokens).squeeze(0)).unflatten(-1, (-1, self.head_size))
            for projection, tokens in ((self.query, queries), (self.key, hidden_states), (self.value, hidden_states))
        )
        options = {
            "scaling": self.head_size**-0.5,
            "dropout": self.config.attention_probs_dropout_prob if self.training else 0.0,
        }
        implementation = self.config._attn_implementation
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        weights = None
        if queries.shape[1] == 0:  # the gradients of keys and values are zeros, not None
            context = query + 0 * (key.sum() + value.sum())
        elif groups is not None:
            context = grouped_attention(query, key, value, groups, **options)
        elif batch_size is not None:
            tensors = (tensor.unflatten(0, (batch_size, -1)).transpose(1, 2) for tensor in (query, key, value))
            if attention_mask is not None and attention_mask.dim() == 4:
                if attention_mask.is_floating_point():  # added to the scores; what is not, says where to look
                    # The least number of a wider dtype would become minus infinity, and a row of these NaN.
                    attention_mask = attention_mask.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
                else:
                    attention_mask = attention_mask.bool()
            context, weights = attention(self, *tensors, attention_mask, **options, **kwargs)
        elif padded_shape is not None and places is not None:
            tensors = (spread(tensor, places, padded_shape).transpose(1, 2) for tensor in (query, key, value))
            context, weights = attention(self, *tensors, attention_mask, **options, **kwargs)
            context = context.flatten(0, 1).index_select(0, places)
        elif implementation == "sdpa":
            context = nested_attention(query, key, value, **options, **kwargs)
        else:
            tensors = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
            context, weights = attention(self, *tensors, None, **options, **kwargs)
        return context.reshape(queries.shape), weights


class SnugBertResidual(nn.Module):
    """The end of a sublayer: projection, dropout, residual connection, LayerNorm (post-norm)."""

    def __init__(self, config: SnugBertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = SnugBertDropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[..., input size], [..., H] -> [..., H]."""
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


def _in_autocast(hidden_states: torch.Tensor) -> torch.Tensor:
    """As autocast would convert them: once, not for queries, keys and values each, which it would keep three times."""
    device = hidden_states.device.type
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)  # torch 2.11 cannot trace it
    if hidden_states.dtype != torch.float32 or not available:
        return hidden_states
    return hidden_states.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden_states


class SnugBertAttention(nn.Module):
    """The attention sublayer."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.self = SnugBertSelfAttention(config)
        self.output = SnugBertResidual(config, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        queries: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """[1, T, H] -> [1, T, H], or [1, Q, H] for the tokens of which `queries` [Q] has the indices."""
        queried = hidden_states if queries is None else hidden_states.index_select(1, queries)
        inputs = _in_autocast(hidden_states)
        query_inputs = inputs if queries is None else _in_autocast(queried)
        context, _ = self.self(query_inputs, inputs, **kwargs)
        return self.output(context, queried)


class SnugBertIntermediate(nn.Module):
    """The widening half of the feed-forward sublayer."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., intermediate size]."""
        return self.activation(self.dense(hidden_states))


class SnugBertLayer(GradientCheckpointingLayer):
    """Attention and feed-forward sublayers."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.attention = SnugBertAttention(config)
        self.intermediate = SnugBertIntermediate(config)
        self.output = SnugBertResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        queries: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """[1, T, H] -> [1, T, H], or [1, Q, H] for the tokens of which `queries` [Q] has the indices."""
        hidden_states = self.attention(hidden_states, queries, **kwargs)
        return self.output(self.intermediate(hidden_states), hidden_states)


class SnugBertEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList([SnugBertLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(
        self, hidden_states: torch.Tensor, batch: SnugBertBatch, queries: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """[1, T, H] -> [1, T, H], or [1, Q, H] for the tokens of which `queries` [Q] has the indices, in order."""
        arguments = attention_arguments(self.config, batch, None)
        for layer in self.layer[:-1]:
            hidden_states = layer(hidden_states, **arguments, **kwargs)
        if queries is not None:
            arguments = attention_arguments(self.config, batch, queries)
        return self.layer[-1](hidden_states, queries, **arguments, **kwargs)


class SnugBertPooler(nn.Module):
    """Dense layer and activation on the first token of each sequence, [CLS]."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.pooler_act]

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, H]."""
        return self.activation(self.dense(first_tokens))


# --- what the models share --------------------------------------------------------------------------------------


class SnugBertPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialization, common to all SnugBERT models."""

    config: SnugBertConfig
    config_class = SnugBertConfig
    base_model_prefix = "bert"
    bert: nn.Module  # the encoder of a model with a head
    supports_gradient_checkpointing = True
    _no_split_modules = ["SnugBertEmbeddings", "SnugBertLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": SnugBertLayer, "attentions": SnugBertSelfAttention}
    # BERT files of 2019 to 2022 hold this buffer.
    _keys_to_ignore_on_load_unexpected = [r"position_ids"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)  # N(0, initializer_range), zero biases
        if isinstance(module, SnugBertPredictions):
            init.zeros_(module.bias)

    def _batch(
        self,
        kwargs: dict[str, Any],
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> SnugBertBatch:
        """The tokens of the caller's batch; takes the boundaries of a packed one out of `kwargs`."""
        boundaries = kwargs.pop("cu_seq_lens_q", None), kwargs.pop("max_length_q", None)
        of_keys = [kwargs.pop("cu_seq_lens_k", None), kwargs.pop("max_length_k", None)]  # the same, from transformers
        if boundaries[0] is None and any(value is not None for value in (*boundaries, *of_keys)):
            raise ValueError("A packed batch needs its boundaries, `cu_seq_lens_q`.")
        if boundaries[0] is not None and getattr(self, "_is_replica", False):
            # It splits `cu_seq_lens_q` and the labels among its replicas, but not the one row of tokens.
            raise ValueError("A packed batch cannot be split by DataParallel; start one process a GPU (torchrun).")
        return make_batch(
            self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, *boundaries
        )

    def _encode(self, batch: SnugBertBatch, rows: torch.Tensor | None = None, **kwargs) -> BaseModelOutputWithPooling:
        """As [`SnugBertModel`] with `batch` and `rows`; `hidden_states` are padded back already."""
        # A head reads the output by name, whatever the caller and the configuration want of the head's own.
        outputs = self.bert(batch=batch, rows=rows, return_dict=True, **kwargs)
        outputs.hidden_states = batch.scatter_all(outputs.hidden_states)
        return outputs

    def save_pretrained(self, *args, **kwargs):
        """As in transformers, and the code files with an `auto_map` that names every head go along.

        A folder that was saved with one head thus loads as any other, with `trust_remote_code=True` and without
        snugbert installed. Entries that came with a checkpoint are dropped: they may name another repository's code.
        """
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(*args, **kwargs)

    def _upload_modified_files(self, working_dir, repo_id, *args, **kwargs):
        """As in transformers, where every way to push a model ends, but with a model card that says something."""
        write_model_card(self, Path(working_dir), repo_id, kwargs.get("token"))
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


def _mean(loss_sum: torch.Tensor, count: int | torch.Tensor, num_items_in_batch: int | torch.Tensor | None):
    """`loss_sum` over the items of the whole batch if Trainer says how many these are, over our own otherwise.

    Trainer's count spans gradient accumulation and processes. A mean of our own would then be too large by their
    number. No items at all give 0 with a gradient, not NaN.
    """
    items = count if num_items_in_batch is None else num_items_in_batch
    return loss_sum / (items.to(loss_sum.device).clamp(min=1) if isinstance(items, torch.Tensor) else max(items, 1))


def _classification_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None,
    size_name: str,
    name: str = "labels",
) -> torch.Tensor:
    """Cross entropy of [..., classes] logits and [...] labels, -100 left out; the names are for complaints."""
    if labels.numel() != logits[..., 0].numel():
        check_shape(name, labels, tuple(logits.shape[:-1]))
    check_range(name, labels, logits.shape[-1], size_name, ignored=IGNORE_INDEX)
    labels = labels.flatten().long()
    loss_sum = F.cross_entropy(upcast(logits.flatten(0, -2)), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return _mean(loss_sum, (labels != IGNORE_INDEX).sum(), num_items_in_batch)


class SnugBertModel(SnugBertPreTrainedModel):
    """The encoder without a head: last hidden states, and the pooled first token.

    Args:
        config: the configuration.
        add_pooling_layer: whether the model has a pooler.
    """

    def __init__(self, config: SnugBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = SnugBertEmbeddings(config)
        self.encoder = SnugBertEncoder(config)
        self.pooler = SnugBertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any):
        """Replaces the word embeddings."""
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        batch: SnugBertBatch | None = None,
        rows: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        r"""Encodes a batch, padded or packed.

        A packed batch is one row of sequences, one after the other, with `cu_seq_lens_q` (`kwargs`).

        Args:
            input_ids: word piece ids. *Shape:* (B, L), or (1, T) if packed
            attention_mask: 1 at tokens, 0 at padding; all tokens if None. *Shape:* (B, L). A 4-D mask, boolean or to
                be added to the scores, is taken as it is, and then the encoder works on padding too.
            token_type_ids: segments; 0 if None. *Shape:* as `input_ids`
            position_ids: positions; 0 to L - 1, or from 0 in each packed sequence, if None. *Shape:* (1, L) or (B, L),
                or (1, T) if packed
            inputs_embeds: word embeddings instead of `input_ids`. *Shape:* (B, L, H), or (1, T, H) if packed
            batch: instead of all these, a batch that a head has gathered; then the output is not padded back.
            rows: with `batch`, the tokens whose last hidden states are wanted; all if None. The last layer does not
                compute the others. *Shape:* (M,)
            kwargs: `cu_seq_lens_q`, where each packed sequence starts, and T (*Shape:* (N + 1,)); `max_length_q`,
                length of the longest, looked up if None; `output_hidden_states`; `output_attentions` (needs
                `attn_implementation="eager"`); `return_dict`.

        Returns:
            `last_hidden_state` (B, L, H), zero at padding unless the mask is 4-D, or (1, T, H) if packed;
            `pooler_output` (N, H) if there is a pooler: of zeros for a row that is all padding; and what was asked
            for.

        Raises:
            ValueError: both or none of `input_ids` and `inputs_embeds`; shapes that do not fit each other; more
                than `max_position_embeddings` tokens; an id outside its range (checked on the CPU only); boundaries
                that do not start at 0 and end at T, or that decrease; a sequence longer than `max_length_q`;
                positions that start again in a row without boundaries; a mask without any token.
        """
        if batch is not None:
            return self._encode_tokens(batch, rows, return_dict=True, **kwargs)
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode_tokens(batch, None, return_dict=True, **kwargs)
        outputs.last_hidden_state = batch.scatter(outputs.last_hidden_state)
        outputs.hidden_states = batch.scatter_all(outputs.hidden_states)
        return outputs

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def _encode_tokens(self, batch: SnugBertBatch, rows: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        """`last_hidden_state` (1, T, H), or (1, M, H) of the tokens in `rows`, and `pooler_output` (N, H)."""
        words = batch.inputs if batch.inputs.dim() == 3 else self.embeddings.word_embeddings(batch.inputs)
        hidden_states = self.embeddings(words, batch.token_type_ids, batch.position_ids)
        first_tokens, queries = batch.first_tokens, None
        without_dropout = is_flash_attention_requested(self.config, version=[3, 4])
        if self.training and self.config.attention_probs_dropout_prob and without_dropout:
            warn_once(f"{self.config._attn_implementation} has no dropout; attention weights are not dropped.")
        shows_all = kwargs.get("output_hidden_states", self.config.output_hidden_states)
        if rows is not None and is_ragged(self.config, batch) and not shows_all:
            # From here on tokens are counted among those that the last layer computes.
            # First tokens in any case: kernels for ragged batches want a query in each sequence.
            wanted = torch.cat([first_tokens, rows])
            queries, order = wanted.sort()
            new_indices = order.argsort()
            first_tokens, rows = new_indices.split([len(first_tokens), len(rows)])
        hidden_states = self.encoder(hidden_states, batch, queries, **kwargs).to(first_tokens.device)
        pooled = None
        if self.pooler is not None:
            first = hidden_states.index_select(1, first_tokens).squeeze(0)
            pooled = self.pooler(first if batch.empty is None else first.masked_fill(batch.empty[:, None], 0))
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states if rows is None else hidden_states.index_select(1, rows),
            pooler_output=pooled,
        )


# --- pretraining heads ------------------------------------------------------------------------------------------


class SnugBertPredictionTransform(nn.Module):
    """Dense layer, activation and LayerNorm before the vocabulary projection."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class SnugBertPredictions(nn.Module):
    """Scores of the vocabulary. The projection is the word embeddings again, unless they are untied."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.transform = SnugBertPredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        # BERT files hold the bias under this name too; it is tied to the decoder's.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., V]."""
        return self.decoder(self.transform(hidden_states))


class SnugBertPreTrainingHeads(nn.Module):
    """The masked token head, the next-sentence head, or both."""

    predictions: SnugBertPredictions
    seq_relationship: nn.Linear

    def __init__(self, config: SnugBertConfig, predictions: bool, seq_relationship: bool):
        super().__init__()
        if predictions:
            self.predictions = SnugBertPredictions(config)
        if seq_relationship:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


class SnugBertMaskedTokenModel(SnugBertPreTrainedModel):
    """What the two models with a masked token head share: the tied projection, and the labelled rows."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    cls: SnugBertPreTrainingHeads

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """As in transformers, and the bias is one parameter even where the projection is untied."""
        keys = super().get_expanded_tied_weights_keys(all_submodels)
        if not all_submodels:
            keys["cls.predictions.decoder.bias"] = "cls.predictions.bias"
        return keys

    def get_output_embeddings(self) -> nn.Linear:
        """The vocabulary projection."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        """Replaces the vocabulary projection and the bias tied to it."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def _predict_tokens(
        self, batch: SnugBertBatch, labels: torch.Tensor | None, sparse_prediction: bool | None, **kwargs
    ) -> tuple[BaseModelOutputWithPooling, torch.Tensor, torch.Tensor | None, torch.Tensor | int]:
        """Runs the encoder and the masked token head.

        Both work on labelled tokens only, [M, V], in training or where `sparse_prediction` asks for it: the other 85 %
        of [B, L, V] serve nobody there.

        Returns:
            The encoder's output, the logits, the sum of the loss over the labelled tokens (None without labels), and
            the number of these.
        """
        if labels is None:
            outputs = self._encode(batch, **kwargs)
            return outputs, batch.scatter(self.cls.predictions(outputs.last_hidden_state)), None, 0
        of_tokens = batch.gather_labels(labels, IGNORE_INDEX)[0]
        labelled = of_tokens != IGNORE_INDEX
        rows = labelled.nonzero().squeeze(-1)
        targets = of_tokens[rows].long()
        check_range("labels", targets, self.config.vocab_size, "vocab_size")
        sparse = self.training if sparse_prediction is None else sparse_prediction
        outputs = self._encode(batch, rows if sparse else None, **kwargs)
        logits = self.cls.predictions(outputs.last_hidden_state)
        of_labelled = (logits if sparse else logits.index_select(1, rows)).squeeze(0)
        loss_sum = cross_entropy_sum(of_labelled, targets)
        return outputs, of_labelled if sparse else batch.scatter(logits), loss_sum, labelled.sum()


@dataclass
class SnugBertForPreTrainingOutput(ModelOutput):
    """Output of [`SnugBertForPreTraining`].

    Attributes:
        loss: the sum of the losses whose labels were given. *Shape:* ()
        prediction_logits: vocabulary scores before softmax. *Shape:* (B, L, V), or (M, V) where sparse
        seq_relationship_logits: scores of "is next" and "is random". *Shape:* (B, 2)
        hidden_states: embeddings and the output of each layer, if asked for. *Shape:* (B, L, H) each
        attentions: attention weights of each layer, if asked for. *Shape:* (B, heads, L, L) each
        mlm_loss: masked token part of `loss`, for logging. *Shape:* ()
        nsp_loss: next-sentence part of `loss`, for logging. *Shape:* ()
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    nsp_loss: torch.Tensor | None = None

    def to_tuple(self) -> tuple:
        """Stock BERT's tuple: what is not None, without the two losses for logging."""
        return tuple(self[name] for name in self.keys() if name not in ("mlm_loss", "nsp_loss"))


class SnugBertForPreTraining(SnugBertMaskedTokenModel):
    """Masked token prediction and next sentence prediction, the paper's pretraining (section 3.1)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.cls = SnugBertPreTrainingHeads(config, predictions=True, seq_relationship=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        num_sequences_in_batch: int | torch.Tensor | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> SnugBertForPreTrainingOutput:
        r"""Predicts masked tokens and whether the second segment follows the first.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: the original ids of masked tokens, -100 elsewhere. *Shape:* (B, L)
            next_sentence_label: 0 where the second segment follows the first, 1 where it is random. *Shape:* (B,)
            num_items_in_batch: labelled tokens of the whole batch, over gradient accumulation and processes; Trainer
                passes it. The masked token loss is divided by it.
            num_sequences_in_batch: sequences of the whole batch, likewise, for the next-sentence loss. Where it is
                missing beside `num_items_in_batch` (plain Trainer), the mean over this batch's sequences weighs as
                much as this batch's share of the labelled tokens.
            sparse_prediction: whether `prediction_logits` are those of labelled tokens only; None: in training.

        Returns:
            The loss is the sum of those whose labels are given; None without any label.

        Raises:
            ValueError: as [`SnugBertModel`], and for labels of the wrong shape or outside their range.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, logits, mlm_sum, labelled = self._predict_tokens(batch, labels, sparse_prediction, **kwargs)
        nsp_logits = self.cls.seq_relationship(outputs.pooler_output)

        mlm_loss = None if mlm_sum is None else _mean(mlm_sum, labelled, num_items_in_batch)
        nsp_loss = None
        if next_sentence_label is not None:
            nsp_loss = _classification_loss(
                nsp_logits, next_sentence_label, num_sequences_in_batch, NSP_CLASSES, "next_sentence_label"
            )
            if num_sequences_in_batch is None and num_items_in_batch is not None and labels is not None:
                nsp_loss = _mean(nsp_loss * labelled, labelled, num_items_in_batch)  # weighted by its share of tokens
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]
        return SnugBertForPreTrainingOutput(
            loss=sum(losses[1:], losses[0]) if losses else None,
            prediction_logits=logits,
            seq_relationship_logits=nsp_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            mlm_loss=None if mlm_loss is None else mlm_loss.detach(),
            nsp_loss=None if nsp_loss is None else nsp_loss.detach(),
        )


class SnugBertForMaskedLM(SnugBertMaskedTokenModel):
    """Masked token prediction alone."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.cls = SnugBertPreTrainingHeads(config, predictions=True, seq_relationship=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        r"""Predicts masked tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels, num_items_in_batch, sparse_prediction: as in [`SnugBertForPreTraining`].

        Returns:
            `logits` (B, L, V), or (M, V) where sparse.

        Raises:
            ValueError: as [`SnugBertForPreTraining`].
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, logits, loss_sum, labelled = self._predict_tokens(batch, labels, sparse_prediction, **kwargs)
        return MaskedLMOutput(
            loss=None if loss_sum is None else _mean(loss_sum, labelled, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class SnugBertForNextSentencePrediction(SnugBertPreTrainedModel):
    """Next sentence prediction alone."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.cls = SnugBertPreTrainingHeads(config, predictions=False, seq_relationship=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> NextSentencePredictorOutput:
        r"""Predicts whether the second segment follows the first.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: 0 where the second segment follows the first, 1 where it is random. *Shape:* (B,)
            num_items_in_batch: sequences of the whole batch; Trainer passes it.

        Returns:
            `logits` (B, 2).

        Raises:
            ValueError: as [`SnugBertModel`], and for a label other than 0, 1 and -100.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        logits = self.cls.seq_relationship(outputs.pooler_output)
        loss = None
        if labels is not None:
            loss = _classification_loss(logits, labels, num_items_in_batch, NSP_CLASSES)
        return NextSentencePredictorOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# --- fine-tuning heads ------------------------------------------------------------------------------------------


def _classifier_dropout(config: SnugBertConfig) -> SnugBertDropout:
    return SnugBertDropout(
        config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    )


class SnugBertForSequenceClassification(SnugBertPreTrainedModel):
    """A linear layer on the pooled output: one label, several labels, or regression (`config.problem_type`)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.bert = SnugBertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        r"""Classifies sequences.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: classes (B,) with cross entropy; 0.0 or 1.0 for each class (B, `num_labels`) with binary cross
                entropy; numbers (B,) or (B, `num_labels`) with squared error. Where `config.problem_type` is None, it
                is set as stock BERT sets it: regression for one label, else by the labels being integers or not.
            num_items_in_batch: labels of the whole batch; Trainer passes it.

        Returns:
            `logits` (B, `num_labels`).

        Raises:
            ValueError: as [`SnugBertModel`], and for a label outside its range or of the wrong shape.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None
    ) -> torch.Tensor:
        if self.config.problem_type is None:
            if self.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                self.config.problem_type = "single_label_classification"
            else:
                self.config.problem_type = "multi_label_classification"
        if self.config.problem_type == "single_label_classification":
            return _classification_loss(logits, labels, num_items_in_batch, "num_labels")
        shapes = [tuple(logits.shape)] + [tuple(logits.shape[:1])] * (self.num_labels == 1)
        if tuple(labels.shape) not in shapes:
            raise ValueError(
                f"`labels` has the shape {list(labels.shape)}, but {self.config.problem_type} with `num_labels` "
                f"{self.num_labels} needs {list(logits.shape)}."
            )
        loss = F.mse_loss if self.config.problem_type == "regression" else F.binary_cross_entropy_with_logits
        loss_sum = loss(upcast(logits), labels.view(logits.shape).to(upcast(logits).dtype), reduction="sum")
        return _mean(loss_sum, labels.numel(), num_items_in_batch)


class SnugBertForMultipleChoice(SnugBertPreTrainedModel):
    """A score for each of several choices, from the pooled output."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        num_choices: int | None = None,
        **kwargs,
    ) -> MultipleChoiceModelOutput:
        r"""Scores choices.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`],
                with the choices as second dimension. *Shape:* (B, choices, L), (B, choices, L, H) for `inputs_embeds`
            labels: the right choice. *Shape:* (B,)
            num_items_in_batch: examples of the whole batch; Trainer passes it.
            num_choices: choices of each example, for a packed batch, which has the sequences of the first example,
                then those of the second, and so on.

        Returns:
            `logits` (B, choices).

        Raises:
            ValueError: as [`SnugBertModel`], for a label that is no choice, and for packed sequences that cannot be
                divided into choices.
        """
        inputs = [input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds]
        if kwargs.get("cu_seq_lens_q") is None:
            given = input_ids if inputs_embeds is None else inputs_embeds
            if given is not None and given.dim() != (3 if inputs_embeds is None else 4):
                raise ValueError(
                    "`input_ids` must be (batch, choices, tokens) and `inputs_embeds` (batch, choices, "
                    f"tokens, hidden size), not {list(given.shape)}."
                )
            num_choices = None if given is None else given.shape[1]
            inputs = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        batch = self._batch(kwargs, *inputs)
        if num_choices is None or batch.num_sequences % num_choices:
            raise ValueError(
                f"A packed batch of {batch.num_sequences} sequences needs a `num_choices` that divides it, not "
                f"{num_choices}."
            )
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        examples = batch.num_sequences // num_choices  # not -1: exported, that would be a number other than 1
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(examples, num_choices)
        loss = None
        if labels is not None:
            loss = _classification_loss(logits, labels, num_items_in_batch, "number of choices")
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SnugBertForTokenClassification(SnugBertPreTrainedModel):
    """A linear layer on every token, for named entities and other tags."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        r"""Classifies tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: classes, -100 where there is none. *Shape:* (B, L)
            num_items_in_batch: labelled tokens of the whole batch; Trainer passes it.

        Returns:
            `logits` (B, L, `num_labels`).

        Raises:
            ValueError: as [`SnugBertModel`], and for a label outside its range.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            of_tokens = batch.gather_labels(labels, IGNORE_INDEX)
            loss = _classification_loss(logits, of_tokens, num_items_in_batch, "num_labels")
        logits = batch.scatter(logits)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SnugBertForQuestionAnswering(SnugBertPreTrainedModel):
    """Scores of every token as the start and as the end of the answer."""

    def __init__(self, config: SnugBertConfig):
        config.num_labels = 2  # stock BERT's head is as wide as the configuration says
        super().__init__(config)
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        r"""Finds the answer's span.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            start_positions, end_positions: first and last token of the answer; positions beyond the sequence are left
                out of the loss, as in stock BERT, and so is -100. *Shape:* (B,)
            num_items_in_batch: questions of the whole batch.

        Returns:
            `start_logits` and `end_logits` (B, L), the dtype's minimum at padding: the softmax runs over tokens only.
            Stock BERT's runs over padding too, and its loss depends on how much there is.

        Raises:
            ValueError: as [`SnugBertModel`], and for a position that is negative or padding.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        no_answer = torch.finfo(logits.dtype).min
        loss = None
        if start_positions is not None and end_positions is not None:
            scores = batch.by_sequence(logits, no_answer)
            ends = (("start_positions", start_positions), ("end_positions", end_positions))
            losses = [
                self._loss(name, scores[..., index], positions, batch.row_lengths(), num_items_in_batch)
                for index, (name, positions) in enumerate(ends)
            ]
            loss = (losses[0] + losses[1]) / 2
        start_logits, end_logits = batch.scatter(logits, no_answer).unbind(-1)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(
        self,
        name: str,
        scores: torch.Tensor,
        positions: torch.Tensor,
        row_lengths: int | torch.Tensor,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        if positions.numel() != len(scores):
            check_shape(name, positions, (len(scores),))
        positions = positions.flatten()
        positions = positions.masked_fill(positions >= row_lengths, IGNORE_INDEX)
        chosen = scores.detach().gather(1, positions.clamp(min=0)[:, None])[:, 0]
        wrong = (chosen == torch.finfo(scores.dtype).min) & (positions >= 0)
        refuse_any(wrong, f"`{name}` must be tokens of their sequences, not padding")
        return _classification_loss(scores, positions, num_items_in_batch, "sequence length", name)


# Auto class -> model. `snugbert` registers these; saved folders carry them as their `auto_map`.
AUTO_CLASSES: dict[str, type[PreTrainedModel]] = {
    "AutoModel": SnugBertModel,
    "AutoModelForPreTraining": SnugBertForPreTraining,
    "AutoModelForMaskedLM": SnugBertForMaskedLM,
    "AutoModelForNextSentencePrediction": SnugBertForNextSentencePrediction,
    "AutoModelForSequenceClassification": SnugBertForSequenceClassification,
    "AutoModelForTokenClassification": SnugBertForTokenClassification,
    "AutoModelForQuestionAnswering": SnugBertForQuestionAnswering,
    "AutoModelForMultipleChoice": SnugBertForMultipleChoice,
}
AUTO_MAP = {"AutoConfig": "configuration_snugbert.SnugBertConfig"} | {
    auto_class: f"modeling_snugbert.{model.__name__}" for auto_class, model in AUTO_CLASSES.items()
}

__all__ = ["SnugBertPreTrainedModel", *(model.__name__ for model in AUTO_CLASSES.values())]
