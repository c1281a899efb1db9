"""The settings that determine the examples of a run."""

from types import SimpleNamespace

from synthetic import make_corpus

from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.corpora import collect_example_settings
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments


def test_words_in_the_corpus_change_nothing():
    corpus = make_corpus([[[[5, 6]], [[7]]]])
    corpus.sources = {"/a.txt": "0"}

    def collect(**arguments):
        training_args = PretrainingArguments(use_cpu=True)
        phases = [Phase(SimpleNamespace(objective="nsp"), 1, 1)]
        return collect_example_settings(corpus, phases, PretrainingDataArguments(**arguments), training_args)

    before = collect()
    corpus.settings["continues_word"] = True
    assert collect() == before and "continues_word" not in before
    assert collect(masking="spans") == before | {"masking": "spans"}
    assert collect(mlm_probability="0.3:0.15") == before | {"mlm_probability": "0.3:0.15"}


def test_texts_keep_their_names():
    """Of datasets, and of files next to files in a bucket."""
    corpus = make_corpus([[[[5, 6]], [[7]]]])
    phases = [Phase(SimpleNamespace(objective="mlm"), 1, 1)]
    for sources, names in (
        (["dataset owner/name"], ["owner/name"]),
        (["s3://bucket/1.txt", "2.txt"], ["s3://bucket/1.txt", "2.txt"]),
    ):
        corpus.sources = dict.fromkeys(sources, "0")
        settings = collect_example_settings(
            corpus, phases, PretrainingDataArguments(), PretrainingArguments(use_cpu=True)
        )
        assert list(settings["text"]) == names
