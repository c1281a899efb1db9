"""The arguments of `snugbert squad`."""

from snugbert.tasks.question_answering_arguments import SquadDataArguments


def test_defaults_equal_the_original_release():
    limits = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    limits |= {"n_best_size": 20, "max_answer_length": 30, "null_score_diff_threshold": 0.0}
    data_args = SquadDataArguments(dataset_name="squad")
    assert {name: getattr(data_args, name) for name in limits} == limits
