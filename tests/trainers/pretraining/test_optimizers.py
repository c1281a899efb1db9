"""LAMB, Muon and the schedule against their formulas."""

import sys

import pytest
import torch
from synthetic import make_trainer, tiny_model
from transformers import TrainerCallback

from snugbert import kernels_snugbert
from snugbert.errors import InputError
from snugbert.trainers.pretraining import optimizers
from snugbert.trainers.pretraining.optimizers import BatchedMuon


def with_random_gradients(model, steps):
    """Sets new random gradients in each of `steps` steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        yield step


# --- optimizers ---------------------------------------------------------------------------------------------------


def test_lamb_equals_the_paper(tmp_path):
    """You et al. (2019), algorithm 2, without bias correction. phi is the identity."""
    arguments = {"learning_rate": 0.01, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95}
    trainer = make_trainer(tmp_path, max_steps=1, optim="lamb", **arguments)
    # A norm above 10, like word embeddings. The first moments of some rows stay zero.
    with torch.no_grad():
        trainer.model.bert.embeddings.word_embeddings.weight.mul_(30)
    expected = {name: parameter.detach().double() for name, parameter in trainer.model.named_parameters()}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in expected.items()}
    optimizer = trainer.create_optimizer()
    for _ in with_random_gradients(trainer.model, 3):
        for name, parameter in trainer.model.named_parameters():
            x, g, (m, v) = expected[name], parameter.grad.double(), moments[name]
            m.mul_(0.8).add_(0.2 * g)
            v.mul_(0.95).add_(0.05 * g * g)
            r = m / (v.sqrt() + 1e-6)
            if not ("bias" in name or "LayerNorm" in name):
                r += 0.1 * x
                r *= x.norm() / r.norm()
            expected[name] = x - 0.01 * r
        optimizer.step()
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-5, atol=1e-6, msg=name)


class NoteSteps(TrainerCallback):
    """Keeps the weights after each step, and the names of the parameters with an optimizer state."""

    def __init__(self):
        self.weights, self.updated = [], []

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        self.weights.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
        self.updated.append({name for name, parameter in model.named_parameters() if optimizer.state.get(parameter)})


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "muon", "lamb"])
def test_the_next_sentence_head_waits_for_pairs(tmp_path, optim):
    """Without a gradient, weights do not decay and have no state. They then start as with a new optimizer.

    Also resumes from a checkpoint without these states.
    """
    runs, options = [], {"optim": optim, "max_steps": 3, "save_steps": 1, "lr_scheduler_type": "constant"}
    for resume in (None, tmp_path / "checkpoint-1"):
        trainer = make_trainer(tmp_path, steps_without_pairs=2, overwrite_output_dir=True, **options)
        runs.append(NoteSteps())
        trainer.add_callback(runs[-1])
        trainer.train(resume_from_checkpoint=resume)
    straight, resumed = runs
    initial = dict(tiny_model().named_parameters())
    head = {name for name in initial if ".pooler." in name or ".seq_relationship." in name}
    assert len(head) == 4
    for weights, updated in list(zip(straight.weights, straight.updated, strict=True))[:2]:
        assert updated == initial.keys() - head
        assert all(torch.equal(weights[name], initial[name]) == (name in head) for name in initial)
    assert straight.updated[2] == initial.keys() and resumed.updated == straight.updated[1:]
    for weights, expected in zip(resumed.weights, straight.weights[1:], strict=True):
        assert all(torch.equal(weights[name], expected[name]) for name in initial)
    if optim != "lamb":  # the first step of Adam has the size of the learning rate
        update = (straight.weights[2]["cls.seq_relationship.bias"] - initial["cls.seq_relationship.bias"]).abs()
        torch.testing.assert_close(update, torch.full((2,), 1e-3), rtol=1e-3, atol=0)


def test_muon_updates_matrices_of_layers_and_adamw_the_rest(tmp_path):
    """Muon is close to torch's, which rounds to bfloat16."""
    trainer = make_trainer(tmp_path, max_steps=1, optim="muon", optim_args="momentum=0.9,nesterov=false")
    reference = tiny_model()
    initial = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    linear = ("query", "key", "value", "dense")
    of_layers = [
        f"{name}.weight"
        for name, module in reference.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layer." in name and name.endswith(linear)
    ]
    assert len(of_layers) == 6 * reference.config.num_hidden_layers
    named = dict(reference.named_parameters())
    rest = named.keys() - set(of_layers)
    decayed = {name for name in rest if not ("bias" in name or "LayerNorm" in name)}
    settings = {"lr": 1e-3, "weight_decay": 0.01, "momentum": 0.9, "nesterov": False}
    muon = torch.optim.Muon([named[name] for name in of_layers], adjust_lr_fn="match_rms_adamw", **settings)
    adamw = torch.optim.AdamW(
        [
            {"params": [named[name] for name in decayed], "weight_decay": 0.01},
            {"params": [named[name] for name in rest - decayed], "weight_decay": 0.0},
        ],
        lr=1e-3,
        eps=1e-6,
        fused=True,
    )
    optimizer = trainer.create_optimizer()
    for _ in zip(with_random_gradients(trainer.model, 3), with_random_gradients(reference, 3), strict=True):
        optimizer.step()
        muon.step()
        adamw.step()
    for name, parameter in trainer.model.named_parameters():
        difference, change = (parameter - named[name]).norm(), (named[name] - initial[name]).norm()
        limit = 0.03 * change if name in of_layers else 0.0
        assert difference <= limit, name


def orthogonalized(matrix):
    """Muon's iteration by its definition: an odd polynomial of the singular values. Singular vectors stay."""
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    assert ((values > 0.6) & (values < 1.3)).all()
    return u * values @ v


@pytest.mark.parametrize(("nesterov", "devices"), [(True, {"cpu"}), (False, {"cpu"}), (True, set())])
def test_muon_equals_its_definition(nesterov, devices, monkeypatch):
    """For matrices of three shapes, updated several at a time. One of them has no gradient in the first step."""
    monkeypatch.setattr(kernels_snugbert, "OWN_KERNELS", devices)
    monkeypatch.setattr(optimizers, "GPU_NUMBERS", 3 * 12 * 20)  # three matrices
    generator = torch.Generator().manual_seed(0)
    matrices = [
        torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in 4 * [(12, 20), (20, 12), (8, 18)]
    ]
    optimizer = BatchedMuon(matrices, torch.float32, lr=0.1, weight_decay=0.2, momentum=0.9, nesterov=nesterov)
    expected = [matrix.detach().double() for matrix in matrices]
    momenta = [torch.zeros_like(matrix) for matrix in expected]
    for step in range(3):
        for index, matrix in enumerate(matrices):
            matrix.grad = None if (step, index) == (0, 3) else torch.randn(matrix.shape, generator=generator)
            if matrix.grad is None:
                continue
            gradient, (rows, columns) = matrix.grad.double(), matrix.shape
            momenta[index] = 0.9 * momenta[index] + 0.1 * gradient
            update = orthogonalized(0.9 * momenta[index] + 0.1 * gradient if nesterov else momenta[index])
            scale = 0.2 * max(rows, columns) ** 0.5
            expected[index] = (1 - 0.1 * 0.2) * expected[index] - 0.1 * scale * update
        optimizer.step()
    for matrix, reference in zip(matrices, expected, strict=True):
        torch.testing.assert_close(matrix.double(), reference, atol=1e-5, rtol=1e-5)


def test_lamb_without_its_package_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(InputError, match=r"pip install 'snugbert\[lamb\]'"):
        make_trainer(tmp_path, max_steps=200, optim="lamb").create_optimizer()
