"""The default learning rate: the paper's for base and large, higher for narrow encoders, never over the user's."""

import json
import logging

import pytest
from glue_examples import SMALL, VOCABULARY

import snugbert_cli
from snugbert import SnugBertConfig, SnugBertTokenizer
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments, choose_learning_rate


def chosen(size: str | SnugBertConfig, folder, task=TextClassification, **settings) -> float | None:
    args = FineTuningArguments(output_dir=str(folder), **settings)
    config = SnugBertConfig.from_size(size) if isinstance(size, str) else size
    choose_learning_rate(config, args, task.paper_learning_rate)
    return args.learning_rate


def test_base_and_large_keep_the_papers_rate(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="snugbert"):
        for size in ("base", "large"):
            assert chosen(size, tmp_path) == 3e-5 and chosen(size, tmp_path, QuestionAnswering) == 5e-5
    assert caplog.messages[0] == "learning rate: 3e-05 (from the BERT paper). Set --learning_rate to change it."


def test_narrow_encoders_get_a_higher_rate(tmp_path, caplog):
    sizes = ["base", "medium", SnugBertConfig(hidden_size=384, num_attention_heads=12), "mini", "tiny"]
    with caplog.at_level(logging.INFO, logger="snugbert"):
        rates = [chosen(size, tmp_path) for size in sizes]
    assert rates == [3e-5, 6.8e-5, 1.2e-4, 2.7e-4, 1.1e-3]
    reason = "4 times the BERT paper's 3e-05, because the hidden size is 384"
    assert caplog.messages[2] == f"learning rate: 0.00012 ({reason}). Set --learning_rate to change it."
    assert chosen("tiny", tmp_path, QuestionAnswering) == 1.8e-3


def test_stable_sweeps_use_the_same_rule(tmp_path):
    assert chosen("base", tmp_path, sweep="stable") == 3e-5 and chosen("tiny", tmp_path, sweep="stable") == 1.1e-3
    assert chosen("tiny", tmp_path, sweep="stable", learning_rate=1e-5) == 1e-5


def test_the_users_rates_are_kept(tmp_path, caplog):
    assert chosen("tiny", tmp_path, learning_rate=1e-5) == 1e-5
    assert chosen("tiny", tmp_path, learning_rate=0.0) == 0.0
    assert caplog.messages == []
    assert chosen("base", tmp_path, sweep="paper") is None and caplog.messages == []  # the grid has its own
    assert chosen("tiny", tmp_path, sweep="paper") is None
    assert caplog.messages[0].startswith(
        "--sweep paper: the learning rates may be too low. The default is 0.0011 (36 "
    )


@pytest.mark.parametrize("command", ["glue", "ner", "squad"])
def test_every_command_chooses_and_reports_the_rate(command, tmp_path):
    rows = {
        "glue": {"sentence": "a good film", "label": "cheerful"},
        "ner": {"tokens": ["a", "film"], "ner_tags": ["O", "B-ART"]},
        "squad": {
            "id": "1",
            "question": "a film",
            "context": "a good film",
            "answers": {"text": ["good"], "answer_start": [2]},
        },
    }
    other = {"glue": {"label": "gloomy"}, "ner": {}, "squad": {}}
    lines = [json.dumps(rows[command]), json.dumps(rows[command] | other[command])]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(tmp_path / "tokenizer")
    argv = [command, "--config_name", "tiny", "--config_overrides", SMALL, "--tokenizer_name", tmp_path / "tokenizer"]
    argv += ["--train_file", tmp_path / "train.jsonl", "--max_steps", 1, "--use_cpu", "--output_dir", tmp_path / "run"]
    assert snugbert_cli.main([str(part) for part in argv]) == 0
    # A hidden size of 32 gets the rate of the narrowest measured size, 128.
    rate = json.loads((tmp_path / "run/results.json").read_text())["settings"]["learning_rate"]
    assert rate == (1.8e-3 if command == "squad" else 1.1e-3)
