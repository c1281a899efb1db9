"""Changed data are detected when a run resumes."""

from types import SimpleNamespace

import pytest
from synthetic import make_corpus
from transformers import TrainerState

from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.data_settings import check_data_settings, collect_example_settings
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments


def write_checkpoint(folder, settings) -> str:
    record = {"PretrainingTrainer": {"data_settings": settings}}
    TrainerState(stateful_callbacks=record).save_to_json(str(folder / "trainer_state.json"))
    return str(folder)


def test_changed_settings_are_listed(tmp_path):
    checkpoint = write_checkpoint(tmp_path, {"text": {"a": 1, "b": 2}, "length": 9, "seed": 1})
    check_data_settings(checkpoint, {"text": {"a": 1, "b": 2}, "length": 9, "seed": 1})
    check_data_settings(checkpoint, {"text": {"moved/a": 1, "moved/b": 2}, "length": 9, "seed": 1})
    with pytest.raises(InputError, match=r"seed was 1 and is 2\. .*--allow_changed_data"):
        check_data_settings(checkpoint, {"text": {"a": 1, "b": 2}, "length": 9, "seed": 2})
    with pytest.raises(InputError, match=f"since {tmp_path}: a has changed; b is missing; c is new\\. "):
        check_data_settings(checkpoint, {"text": {"a": 0, "c": 3}, "length": 9, "seed": 1})


def test_many_changes_are_summarized(tmp_path):
    checkpoint = write_checkpoint(tmp_path, {"text": {str(number): number for number in range(9)}})
    with pytest.raises(InputError, match="4 is missing; 4 more changes of text"):
        check_data_settings(checkpoint, {"text": {}})


def test_a_checkpoint_without_settings_is_not_compared(tmp_path):
    TrainerState().save_to_json(str(tmp_path / "trainer_state.json"))
    check_data_settings(str(tmp_path), {"seed": 2})


def test_runs_from_before_spans_schedules_and_phases_without_pairs_resume():
    """The defaults and whole words give the settings of these runs. Words in the corpus change nothing."""
    corpus = make_corpus([[[[5, 6]], [[7]]]])
    corpus.sources = {"/a.txt": "0"}

    def collect(*objectives, **arguments):
        training_args = PretrainingArguments(use_cpu=True)
        phases = [Phase(SimpleNamespace(objective=each), 1, 1) for each in objectives]
        return collect_example_settings(corpus, phases, PretrainingDataArguments(**arguments), training_args)

    before = collect("nsp")
    corpus.settings["continues_word"] = True
    assert collect("nsp") == before and "continues_word" not in before
    assert {name: before[name] for name in ("mlm_probability", "whole_word_mask")} == {
        "mlm_probability": 0.15,
        "whole_word_mask": False,
    }
    assert "masking" not in before
    assert collect("nsp", masking="words") == before | {"whole_word_mask": True}
    assert collect("nsp", masking="spans") == before | {"masking": "spans"}
    assert collect("nsp", mlm_probability="0.3:0.15") == before | {"mlm_probability": "0.3:0.15"}
    assert collect("nsp", "nsp")["objective"] == before["objective"] == "nsp"
    assert collect("mlm", "nsp")["objective"] == ["mlm", "nsp"]


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
