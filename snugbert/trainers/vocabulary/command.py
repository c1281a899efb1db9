"""`snugbert vocabulary`: text -> a tokenizer folder, of a new vocabulary or of one that goes on from another's.

The same text and arguments give the same files, byte for byte, in every process and on any number of cores. Memory
does not grow with the corpus: the table of word counts is pruned, and training on a full one is the peak, 2.7 GB.
With words of 15 characters on average it is 3.6 GB, and 3.8 GB for BPE of bytes. `benchmarks/vocabulary.py` measures
time and memory beside the library's own trainer.
"""

from snugbert.command_line import parse_arguments
from snugbert.trainers.vocabulary.arguments import VocabularyArguments


def main(argv: list[str]) -> None:
    """Trains a vocabulary as `argv` says, saves it, and prints what was done and what to type next.

    Raises:
        InputError: arguments or text that cannot be used, see [`VocabularyArguments`], [`read_lines`],
            [`learn_pieces`] and [`load_init_model`]; an empty corpus; an output folder that already holds something.
    """
    (args,) = parse_arguments((VocabularyArguments,), argv, "snugbert vocabulary", "Train a vocabulary on text.")
    from snugbert.trainers.vocabulary.run import learn_vocabulary  # heavy, and not needed for `--help`

    learn_vocabulary(args)
