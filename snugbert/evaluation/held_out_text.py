"""Held-out text: masked token loss and accuracy, bits per character and next-sentence accuracy, next to baselines.

The examples and their masks are the same as in `snugbert pretrain --validation_file`, so both commands report the same
metrics. SnugBERT models run packed batches. Other models run the same examples in padded batches.
"""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.data.documents import find_files, read_documents
from snugbert.data.languages import choose_language, stored_in_model
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError
from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
from snugbert.evaluation.masked_models import predicts_pairs
from snugbert.families.loading import max_tokens
from snugbert.modeling_snugbert import IGNORE_INDEX, SnugBertPreTrainedModel
from snugbert.progress import Progress
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import VALIDATION_SEED, list_sources, load_corpora, make_dataset
from snugbert.trainers.pretraining.examples import LONGEST_EXAMPLE, SHORTEST_EXAMPLE, PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments
from snugbert.trainers.pretraining.scores import (
    average_sums,
    compute_baselines,
    count_corpus_tokens,
    get_mlm_logits,
    sum_per_sequence,
)


def score_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: HeldOutTextArguments,
    cache_dir: str | None = None,
) -> dict[str, Any]:
    """Scores a model on held-out text.

    Args:
        model: any masked language model of transformers. If it predicts sentence pairs as `BertForPreTraining` does,
            the examples are pairs. Otherwise they are full sentences. The model is switched to evaluation mode.
        tokenizer: the model's tokenizer.
        args: the text, and the length of the examples. The default language is the language that the checkpoint or
            the tokenizer stores, or English.
        cache_dir: see [`prepare_in_cache`].

    Returns:
        The results as in `results.json`. `metrics` has `mlm_loss` in nats, `mlm_accuracy`, `bits_per_character`, and
        with sentence pairs `nsp_loss` and `nsp_accuracy`. `baselines`: from [`compute_baselines`].
    """
    limit = min(LONGEST_EXAMPLE, max_tokens(model, tokenizer))
    if not SHORTEST_EXAMPLE <= args.max_seq_length <= limit:
        raise InputError(f"--max_seq_length must be between {SHORTEST_EXAMPLE} and the limit ({limit}).")
    data_args = _choose_examples(args, model)
    stored = stored_in_model(
        model.config, tokenizer, model.config.name_or_path or None, str(tokenizer.name_or_path) or None
    )
    data_args.language = choose_language(args.language, stored)
    train, text = load_corpora(data_args, do_train=False, do_eval=True, cache_dir=cache_dir, tokenizer=tokenizer)
    assert text is not None  # `validation_file` is given
    characters = count_characters(data_args)
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(
            text, "held-out text", args.max_seq_length, data_args, tokenizer, Path(folder), VALIDATION_SEED
        )
        num_examples = min(len(dataset), args.max_eval_samples or len(dataset))
        metrics = score_examples(model.eval(), tokenizer, dataset, num_examples)
        if not math.isfinite(metrics["mlm_loss"]):
            raise InputError("--model_name_or_path: the loss is NaN or infinite. Choose a different checkpoint.")
        baselines = compute_baselines(dataset, train or text)
    for scores in (metrics, baselines):
        scores["bits_per_character"] = scores["mlm_loss"] / math.log(2) * text.num_tokens / characters
    counts = count_corpus_tokens(text, len(tokenizer))
    return {
        "dataset": list_sources(text),
        "metrics": metrics,
        "baselines": baselines,
        "token_frequencies": "held-out text" if train is None else "training text",
        "objective": data_args.dataset_objective,
        "examples": num_examples,
        "tokens": text.num_tokens,
        "characters": characters,
        "unknown_tokens": float(counts[tokenizer.unk_token_id] / text.num_tokens),
    }


def _choose_examples(args: HeldOutTextArguments, model: PreTrainedModel) -> PretrainingDataArguments:
    """Returns the arguments of `snugbert pretrain` that make the examples.

    Masking always has the defaults of that command, because losses at 40 % and 15 % masking cannot be compared.
    """
    data_args = PretrainingDataArguments(**{field.name: getattr(args, field.name) for field in fields(args)})
    if not predicts_pairs(model):
        if args.sentence_order:
            raise InputError("--sentence_order: this model does not predict the order of segments. Remove the flag.")
        data_args.objective = "mlm"
    elif getattr(model.config, "sentence_order", False) and not args.no_nsp:
        data_args.objective = "mlm+order"
    return data_args


def count_characters(data_args: PretrainingDataArguments) -> int:
    """Counts the characters of the validation text, without line ends and the spaces around lines.

    The number of characters does not depend on a tokenizer, and depends less on the script than the number of bytes.
    """
    log = ReadingLog(data_args.on_bad_text)
    documents = read_documents(find_files(data_args.validation_file), data_args.text_column_name, log)
    return sum(len(line) for document in documents for line in document)


@torch.no_grad()
def score_examples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: PretrainingDataset,
    num_examples: int,
) -> dict[str, float]:
    """Masks and scores the first examples of a dataset.

    Models without an attention mask run one example at a time.
    """
    collate = SnugBertDataCollatorForPretraining(tokenizer)
    is_own = isinstance(model, SnugBertPreTrainedModel)
    takes_mask = "attention_mask" in signature(model.forward).parameters
    batch_size = 8 if takes_mask else 1  # FNet, for example, would mix in padding
    sums = []
    with Progress("scoring", num_examples, "examples") as progress:
        for start in range(0, num_examples, batch_size):
            end = min(start + batch_size, num_examples)
            batch = send_to_device(collate([dataset[index] for index in range(start, end)]), model.device)
            if is_own:
                outputs = model(**batch, sparse_prediction=True)
            else:
                batch = pad_batch(batch, tokenizer.pad_token_id)
                if not takes_mask:
                    del batch["attention_mask"]
                outputs = model(**{name: values for name, values in batch.items() if "label" not in name})
                outputs["prediction_logits"] = get_mlm_logits(outputs)[batch["labels"] != IGNORE_INDEX]
            sums.append(sum_per_sequence(outputs, batch).cpu())
            progress.move_to(end)
    return average_sums(torch.cat(sums).numpy())


def pad_batch(batch: Mapping[str, Any], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Converts a packed pretraining batch to padded rows, one for each sequence. *Shape:* (N, longest sequence)"""
    lengths = batch["cu_seq_lens_q"].diff().tolist()

    def to_rows(values: torch.Tensor, padding: int) -> torch.Tensor:
        return pad_sequence(values[0].split(lengths), batch_first=True, padding_value=padding)

    padded = {
        "input_ids": to_rows(batch["input_ids"], pad_token_id),
        "attention_mask": to_rows(torch.ones_like(batch["input_ids"]), 0),
        "labels": to_rows(batch["labels"], IGNORE_INDEX),
    }
    if "next_sentence_label" in batch:  # models without pairs may not accept token types
        padded["token_type_ids"] = to_rows(batch["token_type_ids"], 0)
        padded["next_sentence_label"] = batch["next_sentence_label"]
    return padded
