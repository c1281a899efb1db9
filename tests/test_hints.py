"""The suggested next command."""

import shlex

from snugbert.data.corpus_arguments import PreparationArguments
from snugbert.hints import changed_flags, format_command


def test_changed_flags_become_a_command_line():
    arguments = PreparationArguments(train_file=["my text/*.txt", "b.txt"], language="de", lines_are_sentences=True)
    names = ("train_file", "language", "text_column_name", "lines_are_sentences")
    line = format_command("pretrain", {"corpus": "my corpus", **changed_flags(arguments, names)})
    assert line == (
        "snugbert pretrain --corpus 'my corpus' --train_file 'my text/*.txt' b.txt --lines_are_sentences true "
        "--language de"
    )
    assert shlex.split(line)[5] == "my text/*.txt"
