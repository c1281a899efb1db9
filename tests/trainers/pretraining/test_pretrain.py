"""Runs of `snugbert pretrain`: output files, phases, objectives, and bad input."""

import json
import math
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from pretraining_command import run
from synthetic import without_times
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, BertForPreTraining

import snugbert
from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
from snugbert.evaluation.held_out_text import score_text
from snugbert.families.loading import HEAD_WEIGHTS
from snugbert.modeling_snugbert import AUTO_CLASSES
from snugbert_cli import main as snugbert_command


def read_log(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(small_run, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    more = {"max_steps": 40, "learning_rate": 3e-3, "save_strategy": "no"}
    assert run(small_run | more, output_dir=folder) == 0
    return folder


def test_a_run_learns(trained):
    results = json.loads((trained / "eval_results.json").read_text())
    assert results["eval_mlm_loss"] < results["eval_unigram_mlm_loss"] - 0.5
    assert results["eval_mlm_accuracy"] > 1.2 * results["eval_unigram_mlm_accuracy"]
    assert results["eval_loss"] == pytest.approx(results["eval_mlm_loss"] + results["eval_nsp_loss"])
    log = read_log(trained)
    for line in log[:20]:
        assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], abs=2e-3)
        assert line["tokens_per_second"] > 0 and 0 <= line["mlm_accuracy"] <= 1 and 0 <= line["nsp_accuracy"] <= 1
    assert log[-1]["epoch"] > 2  # passes over the corpus


def test_do_eval_alone_does_not_train(small_run, trained, tmp_path):
    """Without validation text, it holds out documents. With it, see the test of ELECTRA."""
    evaluate = {"config_name": None, "model_name_or_path": trained, "do_eval": "true", "validation_file": None}
    assert run(small_run | evaluate, output_dir=tmp_path) == 0
    assert "eval_mlm_loss" in json.loads((tmp_path / "eval_results.json").read_text())
    assert not (tmp_path / "model.safetensors").exists()


def test_a_run_writes_plot_log_and_card(small_run, tmp_path, monkeypatch, caplog):
    steps_drawn = []

    def draw(log, picture, baselines):
        steps_drawn.append(log[-1]["step"])
        if len(steps_drawn) == 1:
            raise ValueError("no font")  # does not stop the run

    monkeypatch.setattr("snugbert.reports.pretraining_plots.draw_training", draw)
    assert run(small_run, output_dir=tmp_path, eval_strategy="steps", eval_steps=4, save_steps=3, language="fr") == 0
    assert steps_drawn == [2, 6, 8]  # the last log line before step 3, after step 6, and at the end
    assert "training.png was not drawn (ValueError: no font)" in caplog.text
    lines = read_log(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 8]
    assert [line["step"] for line in lines if "eval_loss" in line] == [4, 8, 8]
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.pipeline_tag, card.data.language) == ("fill-mask", "fr")
    assert "120 documents" in card.text and "8 steps of 16 examples of at most 40 tokens, " in card.text
    assert not (tmp_path / "epochs").exists()  # needed only during the run


@pytest.mark.parametrize("objective", ["mlm", "mlm+order"])
def test_other_objectives(small_run, tmp_path, capsys, objective):
    """With whole words, or with spans and a share of masked tokens that falls from 30 to 15 %."""
    pairs = objective == "mlm+order"
    more = {"masking": "words"} if pairs else {"masking": "spans", "mlm_probability": "0.3:0.15"}
    assert run(small_run, output_dir=tmp_path, objective=objective, save_strategy="no", **more) == 0
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert ("eval_nsp_loss" in results) == pairs
    assert ("sentence pair accuracy" in capsys.readouterr().out) == pairs
    kind = snugbert.SnugBertForMaskedLM if objective == "mlm" else snugbert.SnugBertForPreTraining
    _, loading = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    card, rates = (tmp_path / "README.md").read_text(), [line.get("mlm_probability") for line in read_log(tmp_path)]
    if pairs:
        assert "15% of the words: 80% replaced" in card and set(rates) == {None}
    else:
        assert "30% (first step) to 15% (last step) of the tokens, in spans of 1 to 10 words: 80% replaced" in card
        assert rates[0] == pytest.approx(0.3 - 0.15 / 7) and 0.15 in rates


@pytest.mark.slow
def test_electra_writes_a_discriminator_and_its_generator(small_run, tmp_path):
    """Both open alone, the discriminator with every head. Together they have the same metrics as after training."""
    folder, again = tmp_path / "electra", tmp_path / "again"
    electra = small_run | {"objective": "electra", "optim": "muon"}
    electra |= {"max_steps": 4, "save_steps": 4, "config_overrides": "embedding_size=64", "neftune_noise_alpha": 0.1}
    assert run(electra, output_dir=folder) == 0
    results = json.loads((folder / "eval_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(results["eval_mlm_loss"] + 50 * results["eval_disc_loss"])
    assert results["eval_unigram_disc_accuracy"] == 1 - results["eval_replaced"]
    assert 0 < results["eval_replaced"] < 0.3

    assert type(AutoModelForPreTraining.from_pretrained(folder)) is snugbert.SnugBertForReplacedTokenDetection
    for model_class in (snugbert.SnugBertForReplacedTokenDetection, *AUTO_CLASSES.values()):
        model, info = model_class.from_pretrained(folder, output_loading_info=True)
        assert not [name for name in info["missing_keys"] if not HEAD_WEIGHTS.match(name)]
    generator, info = AutoModelForMaskedLM.from_pretrained(folder / "generator", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert generator.config.hidden_size == model.config.hidden_size // 4
    for name, parameter in model.bert.embeddings.named_parameters():
        assert torch.equal(generator.bert.embeddings.get_parameter(name), parameter)
    assert len(AutoTokenizer.from_pretrained(folder / "generator")) == model.config.vocab_size

    assert run(electra, output_dir=folder, resume_from_checkpoint="true", max_steps=5) == 0
    results = json.loads((folder / "eval_results.json").read_text())
    more = {"config_name": None, "model_name_or_path": folder, "train_file": None, "do_eval": "true"}
    assert run(electra | more, output_dir=again, config_overrides=None) == 0
    assert json.loads((again / "eval_results.json").read_text())["eval_loss"] == pytest.approx(results["eval_loss"])
    assert "| generator | 2 layers, hidden size 32, 2 attention heads, " in (folder / "README.md").read_text()


@pytest.mark.slow
def test_phases_of_a_prepared_corpus(small_run, tmp_path, caplog):
    """Two lengths in one run, the first without pairs. A run that resumes in the first phase ends like a straight one.

    Initial weights from bigrams are computed once. After training with Muon, stock BERT has the same loss.
    """
    text = ["--train_file", str(small_run["train_file"]), "--language", "de"]
    tokenizer = ["--tokenizer_name", str(small_run["tokenizer_name"])]
    assert snugbert_command(["prepare", *tokenizer, *text, "--output_dir", str(tmp_path / "corpus")]) == 0
    more = {"train_file": None, "corpus": tmp_path / "corpus", "phases": "20:62.5%:mlm,40:37.5%"}
    more |= {"bigram_init": "true", "optim": "muon", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 4}
    with caplog.at_level("INFO", logger="snugbert"):
        run(small_run | more, output_dir=tmp_path / "straight")
    assert "training: 5 steps of 16 examples of at most 20 tokens, no sentence pairs" in caplog.text
    initialized = "initial weights: computing them from the bigrams of the training text"
    assert caplog.text.count(initialized) == 1
    caplog.clear()
    shutil.copytree(tmp_path / "straight/checkpoint-3", tmp_path / "resumed/checkpoint-3")
    resume = {"output_dir": tmp_path / "resumed", "resume_from_checkpoint": "true"}
    run(small_run | more | resume)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "resumed")]
    assert weights[0] == weights[1]
    assert initialized not in caplog.text
    logs = [read_log(tmp_path / name) for name in ("straight", "resumed")]
    assert without_times(logs[0]) == without_times(logs[1])
    # Counted here with Python, with add-one smoothing.
    counts = Counter(small_run["train_file"].read_text().split())
    total, size = counts.total(), len(AutoTokenizer.from_pretrained(small_run["tokenizer_name"]))
    baseline = -sum(count / total * math.log((count + 1) / (total + size)) for count in counts.values())
    steps = [line for line in logs[0] if "mlm_loss" in line]
    # Step 6 has pairs, but not step 5. Evaluation always does.
    assert [line["step"] for line in steps if "nsp_loss" in line] == [6, 8]
    assert steps[2]["loss"] == pytest.approx(steps[2]["mlm_loss"] + steps[2]["nsp_loss"] / 2)
    assert [line["step"] for line in logs[0] if "eval_nsp_loss" in line] == [4, 8, 8]
    assert len(steps) == 4
    for line in steps:
        assert line["mlm_gain"] == pytest.approx(baseline - line["mlm_loss"], abs=1e-9)
    results = json.loads((tmp_path / "straight/eval_results.json").read_text())
    assert results["eval_mlm_gain"] == results["eval_unigram_mlm_loss"] - results["eval_mlm_loss"]
    stock = BertForPreTraining.from_pretrained(tmp_path / "straight")
    held_out = HeldOutTextArguments(
        validation_file=[str(small_run["validation_file"])], max_seq_length=40, lines_are_sentences=True
    )
    scores = score_text(stock, AutoTokenizer.from_pretrained(tmp_path / "straight"), held_out)["metrics"]
    for name in ("mlm_loss", "nsp_loss"):
        assert scores[name] == pytest.approx(results[f"eval_{name}"], rel=1e-5)
    assert ModelCard.load(tmp_path / "straight/README.md").data.language == "de"  # the corpus records its language


def test_examples_are_shown(small_run, capsys):
    more = {"show": 3, "validation_file": None}
    assert run(small_run, **more) == 0
    shown = capsys.readouterr().out
    assert "[MASK]{" in shown and shown.count("to predict") == 3 and "\n3. B is " in shown
    assert run(small_run, **more, phases="40:90%:mlm,40:10%", max_steps=1) == 0  # the second phase gets no steps
    assert "- " in (shown := capsys.readouterr().out) and "B is " not in shown


def test_an_output_folder_with_a_run_is_not_overwritten(small_run, tmp_path):
    small_run = small_run | {"max_steps": 4, "save_steps": 4}
    run(small_run, output_dir=tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert run(small_run, output_dir=tmp_path, seed=1) == 2
    # Even --overwrite_output_dir removes nothing before the new run is about to train.
    assert run(small_run, train_file="typo.txt", output_dir=tmp_path, overwrite_output_dir="true") == 2
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "checkpoint-4/optimizer.pt").exists() and (tmp_path / "eval_results.json").exists()
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    # It removes the files of the run, but no file of the user with a similar name.
    (tmp_path / "checkpoint-4.txt").touch()
    assert run(small_run | {"save_strategy": "no"}, output_dir=tmp_path, seed=1, overwrite_output_dir="true") == 0
    assert (tmp_path / "model.safetensors").read_bytes() != weights
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4.txt"]


# Errors of arguments, text and tokenizers that other commands have, too, are in the tests of their modules.
BAD = [
    ({"train_file": None}, "no text. Pass --train_file, --dataset_name or --corpus"),
    ({"train_file": None, "dataset_name": "nowhere"}, "'nowhere' with split 'train' cannot be loaded"),
    ({"validation_file": None, "do_eval": "true", "train_file": "two.txt"}, "held-out text (5 % of the documents"),
    ({"validation_file": "nowhere.txt"}, "nowhere.txt: no such file"),
    ({"train_file": "one_document.txt"}, "training text: Next sentence prediction needs at least two documents"),
    ({"train_file": "one_sentence_each.txt"}, "training text: no sentence pairs to learn from"),
    ({"config_name": None}, "--model_name_or_path is missing"),
    ({"phases": "4:90%,64:10%"}, "--phases: length 4 must be between 5 and the limit of tiny (512)"),
    ({"attn_implementation": "nope"}, "cannot load the model tiny"),
    ({"bigram_init": "true", "model_name_or_path": "x"}, "--bigram_init cannot be combined with --model_name_or_path"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "one_document.txt").write_text("a .\nb .\nc .\n")
    (folder / "one_sentence_each.txt").write_text("a .\n\nb .\n\nc .\n")
    (folder / "two.txt").write_text("a .\nb .\n\nc .\nd .\n")
    return folder


def test_errors_come_before_text_is_prepared(small_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("snugbert.trainers.pretraining.corpora.prepare_in_cache", None)
    for change, message in (
        ({"lr_scheduler_kwargs": '{"a": 1}'}, "got an unexpected keyword argument 'a'"),
        ({"optim": "muon", "optim_args": "a=1"}, "--optim_args, --lr_scheduler_kwargs: "),
        ({"phases": "8:50%,40:50%", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}, "length 40"),
    ):
        assert run(small_run | change, output_dir=tmp_path) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1, free=0))
    assert run(small_run, output_dir=tmp_path) == 2
    assert "B free, but a checkpoint takes " in capsys.readouterr().err


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_a_short_error(small_run, bad_files, tmp_path, monkeypatch, capsys, change, message):
    monkeypatch.chdir(bad_files)
    assert run(small_run | change, output_dir=tmp_path) == 2
    error = capsys.readouterr().err.rpartition("snugbert pretrain: error: ")[2]  # after the progress bar
    assert len(error.splitlines()) == 1
    assert message in error
    assert {file.name for file in tmp_path.iterdir()} <= {"_lock", "epochs"}
