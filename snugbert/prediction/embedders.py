"""Embeds texts and scores pairs with models of sentence-transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModel

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.tables import read_text
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.families.reading import CLASSES
from snugbert.families.sentence_transformers_files import find_model_folder
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import Prediction, RowPredictor

BATCH_SIZE = 32  # texts. sentence-transformers cannot limit the tokens of a batch


class SentenceTransformerPredictor(RowPredictor):
    """A predictor with a model of sentence-transformers. Its encoder is a SnugBERT model, which drops padding."""

    any_columns = True
    kind: ClassVar[str]  # the class in sentence-transformers

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str], device: torch.device):
        super().__init__()
        self.args, self.columns = args, columns
        self.model = _load_sentence_transformer(self.kind, folder, args, device)


class Embedder(SentenceTransformerPredictor):
    """Embeds texts."""

    kind = "SentenceTransformer"
    default_columns = (("text",), ("sentence",))
    predicted_columns = ("embedding",)

    def read(self, values: Mapping[str, Any]) -> str:
        """Returns the text."""
        return read_text(values, self.columns[0])

    def answer(self, examples: list[str]) -> list[Prediction]:
        """Returns the `embedding`, a list of numbers in float32."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            embeddings = self.model.encode(
                examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False
            )
        # Keeps the fewest digits that give the same float32.
        rows = (row.astype(np.float32).astype(str) for row in embeddings)
        return [{"embedding": [float(number) for number in row]} for row in rows]


class Reranker(SentenceTransformerPredictor):
    """Scores pairs with a CrossEncoder."""

    kind = "CrossEncoder"
    default_columns = (("query", "text"), ("question", "context"), ("sentence1", "sentence2"))
    predicted_columns = ("score",)

    def read(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the pair."""
        first, second = (read_text(values, column) for column in self.columns)
        return first, second

    def answer(self, examples: list[tuple[str, str]]) -> list[Prediction]:
        """Returns the `score`, a number, or a list of numbers if the model has several labels."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            scores = self.model.predict(
                examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False
            )
        return [{"score": score} for score in scores.tolist()]


def _load_sentence_transformer(name: str, folder: Path, args: PredictionArguments, device: torch.device) -> Any:
    """Loads an embedding model or a CrossEncoder, and replaces its encoder with the same weights in SnugBERT."""
    try:
        import sentence_transformers
    except ModuleNotFoundError as error:
        raise InputError(
            "--model_name_or_path: this model needs sentence-transformers. Run: pip install 'snugbert[embeddings]'"
        ) from error
    model = getattr(sentence_transformers, name)(str(folder), device=str(device), local_files_only=True)
    known = [prompt for prompt, text in model.prompts.items() if text]
    if args.prompt_name is not None and args.prompt_name not in known:
        raise InputError(
            f"--prompt_name: unknown prompt {args.prompt_name!r}. Prompts of the model: {', '.join(known) or 'none'}."
        )
    model_args = ModelArguments(model_name_or_path=str(find_model_folder(folder)))
    config = load_config(model_args, load_tokenizer(model_args))
    is_reranker = name == "CrossEncoder"
    auto_class: Any = CLASSES["snugbert"]["ForSequenceClassification"] if is_reranker else AutoModel
    options = {} if is_reranker else {"add_pooling_layer": False}
    encoder = load_model(auto_class, model_args, config, trained=True, **options)
    model[0].model = encoder.to(model.device).eval()  # type: ignore[arg-type]
    if args.max_seq_length is not None:
        model.max_seq_length = min(args.max_seq_length, model.max_seq_length or args.max_seq_length)
    return model
