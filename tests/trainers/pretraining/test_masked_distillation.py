"""Distillation: loss and gradients, the teacher, runs of `snugbert pretrain`, and bad input."""

import json
import shutil

import pytest
import torch
from pretraining_command import run
from safetensors.torch import load_file
from synthetic import VOCAB_SIZE, RandomExamples, make_teacher, make_trainer, packed, padded, tiny_model
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, BertConfig, BertForPreTraining

import snugbert
from snugbert.families.students import hash_model
from snugbert.trainers.pretraining.masked_distillation import distill

pytestmark = pytest.mark.usefixtures("one_thread")


def make_model(seed: int, **fields) -> snugbert.SnugBertForPreTraining:
    """Large weights, no dropout, float64."""
    torch.manual_seed(seed)
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=VOCAB_SIZE, initializer_range=0.2, **fields)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return snugbert.SnugBertForPreTraining(config).double()


def make_batches() -> dict[str, dict]:
    """The same sequences as a packed batch and as a padded batch, and the denominators of a step."""
    examples = [RandomExamples(8)[index] for index in range(8)]
    batch = padded(examples)
    counts = {
        "num_items_in_batch": (batch["labels"] != -100).sum(),
        "num_tokens_in_batch": batch["attention_mask"].sum(),
        "num_sequences_in_batch": torch.tensor(8),
    }
    return {"packed": packed(examples), "padded": batch, "counts": counts}


def stock_copy(model) -> BertForPreTraining:
    stock = BertForPreTraining(BertConfig(**{**model.config.to_dict(), "model_type": "bert"})).double()
    stock.load_state_dict(model.state_dict())
    return stock


def reference_loss(student, teacher, batch: dict) -> torch.Tensor:
    """DistilBERT's loss (Sanh et al., 2019, section 3) with the weights of its code, and the next-sentence loss."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ours = student(**inputs, output_hidden_states=True)
    theirs = teacher(**inputs, output_hidden_states=True)
    masked, is_token = batch["labels"] != -100, batch["attention_mask"] == 1
    logits, teacher_logits = ours.prediction_logits[masked], theirs.prediction_logits[masked]
    p, q = (teacher_logits / 2).softmax(-1), (logits / 2).softmax(-1)
    soft = (p * (p.log() - q.log())).sum(-1).mean() * 2**2
    mlm = -logits.log_softmax(-1)[range(len(logits)), batch["labels"][masked]].mean()
    a, b = ours.hidden_states[-1][is_token], theirs.hidden_states[-1][is_token]
    cosine = (1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean()
    log_probabilities = ours.seq_relationship_logits.log_softmax(-1)
    nsp = -log_probabilities[range(8), batch["next_sentence_label"]].mean()
    return 5 * soft + 2 * (mlm + nsp) + cosine


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_loss_and_gradients_equal_a_plain_reference(layout):
    student, teacher = make_model(1, num_hidden_layers=1), make_model(2).eval()
    stock_student, stock_teacher = stock_copy(student), stock_copy(teacher).eval()
    batches = make_batches()
    expected = reference_loss(stock_student, stock_teacher, batches["padded"])
    outputs = distill(student, teacher, batches[layout] | batches["counts"], with_hidden_states=True)
    torch.testing.assert_close(outputs["loss"], expected, rtol=1e-10, atol=0)
    outputs["loss"].backward()
    expected.backward()
    theirs = dict(stock_student.named_parameters())
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-8, atol=1e-12, msg=name)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_only_the_student_is_trained_and_saved(tmp_path):
    """Dropout is not used in the teacher. Losses of accumulated batches are in test_training.py."""
    teacher = make_teacher()
    before = hash_model(teacher)
    trainer = make_trainer(tmp_path, teacher=teacher, max_steps=2)
    trainer.train()
    trainer.save_model()
    assert hash_model(teacher) == before and not any(each.requires_grad for each in teacher.parameters())
    in_optimizer = sum(each.numel() for group in trainer.optimizer.param_groups for each in group["params"])
    assert in_optimizer == trainer.model.num_parameters()
    assert load_file(tmp_path / "model.safetensors").keys() <= tiny_model().state_dict().keys()
    evaluation = trainer.evaluate()
    assert evaluation["eval_loss"] == pytest.approx(evaluation["eval_mlm_loss"] + evaluation["eval_nsp_loss"])
    for line in trainer.state.log_history[:2]:
        expected = 5 * line["soft_loss"] + 2 * (line["mlm_loss"] + line["nsp_loss"]) + line["cos_loss"]
        assert line["loss"] == pytest.approx(expected) and line["soft_loss"] > 0.01 and line["cos_loss"] > 0.01


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher_run(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    assert run(small_run | {"validation_file": None}, output_dir=folder, config_overrides="num_hidden_layers=3") == 0
    return folder


@pytest.fixture
def student_run(small_run, teacher_run):
    """The arguments of a student with two of the teacher's three layers."""
    names = {"tokenizer_name": None, "config_name": None}
    return small_run | names | {"teacher_name_or_path": teacher_run, "num_student_layers": 2}


@pytest.mark.slow
def test_a_student_starts_from_its_teacher_and_resumes(student_run, teacher_run, tmp_path, capsys):
    dropouts = "hidden_dropout_prob=0.0,attention_probs_dropout_prob=0.3"
    changes = {"config_overrides": dropouts, "save_steps": 4}
    # With a learning rate of 0, the student stays as it was.
    assert run(student_run | {"learning_rate": 0, "max_steps": 1}, output_dir=tmp_path / "start") == 0
    start, teacher = (AutoModelForPreTraining.from_pretrained(each) for each in (tmp_path / "start", teacher_run))
    assert start.config.num_hidden_layers == 2
    for ours, theirs in ((0, 0), (1, 2)):
        weights = teacher.bert.encoder.layer[theirs].state_dict()
        assert all(torch.equal(w, weights[name]) for name, w in start.bert.encoder.layer[ours].state_dict().items())
    assert torch.equal(start.cls.seq_relationship.weight, teacher.cls.seq_relationship.weight)

    folder = tmp_path / "run"
    assert run(student_run | changes, output_dir=folder) == 0
    config = AutoModelForPreTraining.from_pretrained(folder).config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.3)
    assert "| initial weights | layers 0, 2 of the teacher" in (folder / "README.md").read_text()
    moved = shutil.copytree(teacher_run, tmp_path / "moved")
    more = student_run | changes | {"resume_from_checkpoint": "true", "output_dir": folder, "max_steps": 10}
    assert run(more | {"teacher_name_or_path": moved}) == 0
    other = AutoModelForPreTraining.from_pretrained(moved)
    with torch.no_grad():
        other.cls.predictions.bias[0] += 1e-6
    other.save_pretrained(moved)
    for change, message in (
        ({"teacher_name_or_path": moved}, '--teacher_name_or_path "weights '),
        ({"num_student_layers": 3}, "--student_layers [0, 2] [0, 1, 2]"),
    ):
        capsys.readouterr()
        assert run(more | change) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_narrower_student_of_the_same_vocabulary(student_run, small_run, tmp_path):
    narrow = {"validation_file": None, "max_steps": 1, "no_nsp": "true"}
    overrides = {"config_overrides": "hidden_size=64,num_attention_heads=1"}
    assert run(small_run | narrow | overrides, output_dir=tmp_path / "narrow") == 0
    student = {"num_student_layers": None, "model_name_or_path": tmp_path / "narrow", "logging_steps": 1}
    assert run(student_run | narrow | student, output_dir=tmp_path / "student") == 0
    line = json.loads((tmp_path / "student/metrics.jsonl").read_text().splitlines()[0])
    assert line["loss"] == pytest.approx(2 * line["mlm_loss"] + 5 * line["soft_loss"]) and "cos_loss" not in line
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "student").config.hidden_size == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher_name_or_path": None}, "--num_student_layers needs --teacher_name_or_path"),
        ({"num_student_layers": None}, "pass exactly one of --num_student_layers and --model_name_or_path"),
        ({"objective": "electra"}, "--teacher_name_or_path cannot be combined with --objective electra"),
        ({"bigram_init": "true"}, "--bigram_init cannot be combined with --teacher_name_or_path"),
        ({"config_overrides": "hidden_act=relu"}, "--config_overrides: hidden_act cannot be changed"),
    ],
)
def test_bad_input_is_a_short_error(changes, message, student_run, tmp_path, capsys):
    assert run(student_run | changes, output_dir=tmp_path) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error


def test_a_teacher_must_have_the_vocabulary(student_run, teacher_run, tmp_path, capsys):
    words = json.loads((teacher_run / "tokenizer.json").read_text())["model"]["vocab"]
    renamed = {word.replace("w0a", "other"): index for word, index in words.items()}
    other = shutil.copytree(teacher_run, tmp_path / "other")
    snugbert.SnugBertTokenizer(renamed).save_pretrained(other)
    student = {"num_student_layers": None, "model_name_or_path": teacher_run, "teacher_name_or_path": other}
    assert run(student_run | student, output_dir=tmp_path / "run") == 2
    assert f"the vocabulary of {other} differs from the student's." in capsys.readouterr().err
