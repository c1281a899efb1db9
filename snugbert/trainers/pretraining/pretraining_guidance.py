"""Which measured recipe fits a text and a model, and what to expect of it."""

from transformers import PreTrainedConfig

SMALL_RECIPE, GPU_RECIPE = "examples/pretrain_small_corpus.yaml", "examples/pretrain_small_corpus_1_gpu.yaml"

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


def describe_recipe(config: PreTrainedConfig, corpus_tokens: int) -> str:
    """Names the recipe that fits a new model and its text, and what to expect of it."""
    if (recipe := find_recipe(config, corpus_tokens)) is None:
        return "none was measured for such a model, vocabulary or text. The defaults are the BERT paper's settings."
    return (
        f"{recipe} (in SnugBERT's repository) fits the text and the model. With it, expect an MLM gain of "
        f"{EXPECTED_GAIN} or more after {EXPECTED_AFTER:,} training tokens."
    )
