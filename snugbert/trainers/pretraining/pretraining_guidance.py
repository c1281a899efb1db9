"""Which measured recipe fits a text and a model, and what to expect of it."""

from transformers import PreTrainedConfig

from snugbert.configuration_snugbert import SnugBertConfig

SMALL_RECIPE, GPU_RECIPE = "examples/pretrain_small_corpus.yaml", "examples/pretrain_small_corpus_1_gpu.yaml"
# Settings of the small recipe as flags of `snugbert pretrain`, because the package does not contain the recipe's file.
# Settings of evaluation, device and checkpoints are left out, and so are settings that equal a default.
SMALL_RECIPE_FLAGS = {
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "bigram_init": "true",
    "phases": "64:80%:mlm,128:20%",
    "mlm_probability": "0.3",
    "num_train_epochs": "8",
    "per_device_train_batch_size": "128",
    "optim": "muon",
    "learning_rate": "2e-3",
    "warmup_steps": "0.05",
    "weight_decay": "0.1",
    "adam_beta2": "0.98",
}
SUGGESTED_SIZE = "mini"  # the size of the recipe, which other commands suggest

# Expected gain (frequency baseline minus masked token loss, in nats) after this many tokens. Every measured run gained
# more than 1.9.
EXPECTED_GAIN, EXPECTED_AFTER = 1.5, 2_000_000
LARGEST_TEXT = 200_000_000  # tokens: about 100 million words of a language that needs two tokens per word
# Number of weights in the matrices of all layers: of size `small`, and of 12 layers of width 384. Embeddings do not
# count.
LARGEST_MODELS = {SMALL_RECIPE: 12_600_000, GPU_RECIPE: 21_300_000}
SMALLEST_VOCABULARY = 1_000  # with a smaller vocabulary, such as letters, the frequency baseline is already low


def find_recipe(config: PreTrainedConfig, corpus_tokens: float) -> str | None:
    """Returns the recipe that was measured with models and texts of this size or larger, or None."""
    if config.vocab_size < SMALLEST_VOCABULARY or corpus_tokens > LARGEST_TEXT:
        return None
    H, inner = config.hidden_size, config.intermediate_size
    weights = config.num_hidden_layers * (4 * H * H + 2 * H * inner)
    return next((recipe for recipe, largest in LARGEST_MODELS.items() if weights <= largest), None)


def recipe_flags(vocab_size: int, corpus_tokens: float) -> dict[str, str]:
    """Returns the flags of `snugbert pretrain` that suggest a new model, with the small recipe if that fits."""
    recipe = find_recipe(SnugBertConfig.from_size(SUGGESTED_SIZE, vocab_size=vocab_size), corpus_tokens)
    return {"config_name": SUGGESTED_SIZE, **(SMALL_RECIPE_FLAGS if recipe else {})}


def describe_recipe(config: PreTrainedConfig, corpus_tokens: int) -> str:
    """Names the recipe that fits a new model and its text, and what to expect of it."""
    if (recipe := find_recipe(config, corpus_tokens)) is None:
        return "none was measured for such a model, vocabulary or text. The defaults are the BERT paper's settings."
    return (
        f"{recipe} (in SnugBERT's repository) fits the text and the model. With it, expect an MLM gain of "
        f"{EXPECTED_GAIN} or more after {EXPECTED_AFTER:,} training tokens."
    )
