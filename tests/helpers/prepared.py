"""Helpers that prepare corpora and list their content."""

from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.data.data_arguments import TextArguments


def text_arguments(*files) -> TextArguments:
    return TextArguments(train_file=[str(file) for file in files])


def prepare(folder, tokenizer, *files, **options):
    prepare_parts(folder, plan_parts(text_arguments(*files)), tokenizer, show_progress=False, **options)
    return open_corpus(folder, tokenizer)


def content(corpus) -> list[list[list[int]]]:
    """The token ids of each sentence of each document."""
    return [
        [
            block.tokens[block.sentences[sentence] : block.sentences[sentence + 1]].tolist()
            for sentence in range(block.documents[document], block.documents[document + 1])
        ]
        for block in corpus.blocks
        for document in range(len(block.documents) - 1)
    ]
