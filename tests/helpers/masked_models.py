"""Small masked language models of several architectures with random weights, their tokenizers, and texts for them."""

import torch
import transformers
from parity import perturb
from tokenizers.pre_tokenizers import ByteLevel

from snugbert import SnugBertConfig, SnugBertForMaskedLM, SnugBertTokenizer

# Words of one token and of several, different lengths, a repeated text, two texts that differ in one token.
TEXTS = [
    "The cats that the dog chased were sleeping.",
    "The cats that the dog chased was sleeping.",
    "It's an ill-considered, unconsidered garden!",
    "A cat.",
    "The café walked in 北京.",
    "A cat.",
]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["the", "cat", "cats", "dog", "was", "were", "garden", "##ing", "##ed", "walk", "sleep", "##consider"]
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *"'!.,-"]
WORDPIECES += WORDS
MERGES = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("c", "a"), ("ca", "t"), ("Ġ", "cat"), ("e", "d")]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZE |= {"max_position_embeddings": 66, "initializer_range": 0.3}
ARCHITECTURES = {
    "snugbert": (SnugBertForMaskedLM, SnugBertConfig, SIZE),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig, SIZE),
    "roberta": (transformers.RobertaForMaskedLM, transformers.RobertaConfig, SIZE),
    "distilbert": (
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig,
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "initializer_range": 0.3},
    ),
    "electra": (transformers.ElectraForMaskedLM, transformers.ElectraConfig, SIZE | {"embedding_size": 16}),
    "deberta-v2": (transformers.DebertaV2ForMaskedLM, transformers.DebertaV2Config, SIZE),
}


def make_tokenizer(architecture: str) -> transformers.PreTrainedTokenizerBase:
    """RoBERTa's is a byte-level BPE. All others are WordPiece."""
    if architecture != "roberta":
        return SnugBertTokenizer(vocab={token: id for id, token in enumerate(WORDPIECES)})
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), *map("".join, MERGES), "<mask>"]
    return transformers.RobertaTokenizer(vocab={token: id for id, token in enumerate(tokens)}, merges=MERGES)


def make_model(architecture: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    model_class, config_class, size = ARCHITECTURES[architecture]
    tokenizer = make_tokenizer(architecture)
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=len(tokenizer), **size)).eval()
    perturb(model)
    return model, tokenizer
