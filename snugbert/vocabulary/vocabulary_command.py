"""`snugbert vocabulary`: learns a tokenizer from text, or adds tokens to an existing one.

    snugbert vocabulary --train_file 'corpus/*.txt.gz' --output_dir tokenizer
    snugbert vocabulary --init bert-base-uncased --train_file law.txt --vocab_size 34000 --output_dir law-bert

The same text and arguments give the same files, byte for byte, in every process and on any number of cores. Memory
does not grow with the corpus, because the table of word counts is pruned. Training on a full table takes the most
memory: 2.7 GB, 3.6 GB if words have 15 characters on average, and 3.8 GB for byte-level BPE.
`benchmarks/vocabulary.py` compares time and memory with the tokenizers library's own trainer.
"""

from snugbert.command_line import parse_arguments
from snugbert.vocabulary.vocabulary_arguments import VocabularyArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert vocabulary` with the arguments `argv`.

    Raises:
        InputError: an argument or the text cannot be used, see [`VocabularyArguments`] and [`run`].
    """
    (args,) = parse_arguments(
        (VocabularyArguments,),
        argv,
        prog="snugbert vocabulary",
        description="Learns a tokenizer from text, or adds tokens to one.",
        example="snugbert vocabulary --train_file 'corpus/*.txt.gz' --output_dir tokenizer",
    )
    # Imported after parsing, because pyarrow and sentencex take seconds and `--help` does not need them.
    from snugbert.vocabulary.train import run

    run(args)
