"""The settings that determine the examples of a run."""

from types import SimpleNamespace

from synthetic import make_corpus

from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.corpora import collect_example_settings
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments


def collect(corpus, objective="nsp", **arguments):
    phases = [Phase(SimpleNamespace(objective=objective), 1, 1)]
    data_args, training_args = PretrainingDataArguments(**arguments), PretrainingArguments(use_cpu=True)
    return collect_example_settings(corpus, phases, data_args, training_args)


def test_words_in_the_corpus_change_nothing():
    corpus = make_corpus([[[[5, 6]], [[7]]]])
    before = collect(corpus)
    corpus.settings["continues_word"] = True
    assert collect(corpus) == before and "continues_word" not in before
    assert collect(corpus, masking="spans") == before | {"masking": "spans"}
    assert collect(corpus, mlm_probability="0.3:0.15") == before | {"mlm_probability": "0.3:0.15"}


def test_texts_keep_their_names():
    """Of datasets, and of files next to files in a bucket."""
    corpus = make_corpus([[[[5, 6]], [[7]]]])
    for sources, names in (
        (["dataset owner/name"], ["owner/name"]),
        (["s3://bucket/1.txt", "2.txt"], ["s3://bucket/1.txt", "2.txt"]),
    ):
        corpus.sources = dict.fromkeys(sources, "0")
        assert list(collect(corpus, "mlm")["text"]) == names
