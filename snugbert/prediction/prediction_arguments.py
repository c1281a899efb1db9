"""The arguments of `snugbert predict`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from snugbert.cli.arguments import COUNT, NOT_NEGATIVE, POSITIVE_SHARE, Range, ShardArguments, argument, check_ranges
from snugbert.cli.device_arguments import choose_precision
from snugbert.cli.model_arguments import HubArguments
from snugbert.data.data_arguments import OnBadText
from snugbert.data.sources import uncompressed_name
from snugbert.errors import InputError
from snugbert.tasks.task_arguments import NerDataArguments

CONLL_SUFFIXES = (".conll", ".conllu", ".bio", ".iob", ".txt")


@dataclass
class PredictionArguments(HubArguments, ShardArguments):
    """Which rows to predict, where to write, and how."""

    help_group: ClassVar[str] = "data"

    model_name_or_path: str = argument(help="Fine-tuned model, or embedding model: a folder or Hub name.")
    input_file: str = argument(help="Rows: .jsonl, .json, .csv, .tsv, or .conll for taggers, also .gz or .zst.")
    output_file: str = argument(help="File to write: .jsonl, or .csv, .tsv or .conll like the input.")
    text_column_names: str | None = argument(
        None, "Columns of the input, such as title,text. Default: see docs/how-to/predict.md."
    )
    max_seq_length: int | None = argument(
        None, "Maximum tokens. Default: the model's limit, 384 (questions) or 128 (CoNLL).", range=Range(8)
    )
    doc_stride: int | None = argument(
        None, "Tokens that windows share. Default: as in training or in snugbert squad.", range=NOT_NEGATIVE
    )
    version_2_with_negative: bool = argument(False, "Question answering: allow the empty answer, as in SQuAD v2.0.")
    prompt_name: str | None = argument(
        None, "Embedding models and rerankers: name of a prompt, such as query. Default: the model's."
    )
    abstain_below: float | None = argument(
        None,
        "Text classifiers: predict no label below this probability. Default: always predict.",
        range=POSITIVE_SHARE,
    )
    on_bad_text: OnBadText = argument("error", "Rows that cannot be read: error, skip, or replace bytes.")
    max_batch_tokens: int = argument(
        4096, "Maximum tokens of a batch. Embedding models and rerankers take 32 texts.", range=COUNT
    )
    bf16: bool | None = argument(None, "Compute in bfloat16. Default: true on Ampere and newer GPUs.")
    use_cpu: bool = argument(False, "Use the CPU even if there is a GPU.")
    cuda_graphs: bool = argument(
        True, "On a GPU, pad batches to a few sizes, and record a CUDA graph for each size.", advanced=True
    )
    overwrite_output_file: bool = argument(False, "Replace --output_file, and partial output from different settings.")

    def __post_init__(self):
        # Each process of torchrun or `accelerate launch` predicts a shard.
        if {"RANK", "WORLD_SIZE"} <= os.environ.keys() and self.shard == "1/1":
            self.shard = f"{int(os.environ['RANK']) + 1}/{os.environ['WORLD_SIZE']}"
        super().__post_init__()
        output = Path(self.output_file)
        suffixes = [".jsonl", *({self.input_suffix} - {".jsonl", ".json"})]
        if output.suffix not in suffixes or output.is_dir():
            expected = " or, like the input, in ".join(suffixes)
            raise InputError(f"--output_file: {output} must be a file that ends in {expected}.")
        if output.resolve() == Path(self.input_file).resolve():
            raise InputError("--output_file: the output is the input file. Choose another file.")
        if self.reads_conll and self.max_seq_length is None:
            self.max_seq_length = NerDataArguments.max_seq_length  # as in `snugbert ner`, for the same tags
        check_ranges(self)
        self.bf16, _ = choose_precision(self.bf16, False, None, torch.cuda.is_available() and not self.use_cpu)

    @property
    def input_suffix(self) -> str:
        """The suffix of the input, without .gz and .zst."""
        return Path(uncompressed_name(Path(self.input_file))).suffix

    @property
    def reads_conll(self) -> bool:
        """Whether the input has CoNLL columns."""
        return self.input_suffix in CONLL_SUFFIXES

    @property
    def columns(self) -> list[str] | None:
        """The names in `text_column_names`; None if the user gave none."""
        names = self.text_column_names
        return None if names is None else [name.strip() for name in names.split(",")]
