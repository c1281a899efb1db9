"""Files of earlier versions are opened, or refused with a sentence, as docs/reference/compatibility.md promises.

`written_by_older_versions` has an archive for each version, made by `make.sh` there with the code of that version. The
commands below repeat the commands of that script. Numbers may differ in rounding, as between machines.
"""

import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

import snugbert
from snugbert.errors import InputError
from snugbert.trainers.checkpoint_files import write_manifest
from snugbert_cli import main

ARCHIVES = sorted((Path(__file__).parent / "written_by_older_versions").glob("*.tar.xz"))
ROUNDING = 1e-4
PRETRAIN = (
    "pretrain --corpus corpus --tokenizer_name tokenizer --config_name tiny --config_overrides num_hidden_layers=1,"
    "hidden_size=16,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32,initializer_range=0.2 "
    "--max_seq_length 32 --per_device_train_batch_size 8 --learning_rate 1e-2 --max_steps 6 --save_steps 3 "
    "--logging_steps 1 --validation_file text.txt --max_eval_samples 16 --output_dir pretrained"
)
GLUE = (
    "glue --model_name_or_path pretrained --train_file train.csv --validation_file dev.csv "
    "--per_device_train_batch_size 8 --learning_rate 1e-2 --eval_strategy no"
)
FINETUNE = f"{GLUE} --max_steps 24 --logging_steps 4 --save_strategy steps --save_steps 12 --output_dir finetuned"
SWEEP = f"{GLUE} --max_steps 8 --seeds 2 --output_dir sweep"
PREDICT = "predict --model_name_or_path finetuned --input_file dev.csv --output_file rows.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]  # other versions of packages may differ


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda file: file.name.removesuffix(".tar.xz"))
def written(request, tmp_path_factory) -> Path:
    """The files of a version."""
    folder = tmp_path_factory.mktemp("written")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(autouse=True)
def copies(written, tmp_path, monkeypatch) -> None:
    """Copies of them in the current folder."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def run(command: str) -> int:
    return main([*command.split(), "--use_cpu"])


def read_lines(file: str) -> list[dict]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def read_log(folder: str) -> list[dict]:
    return json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]


def pick(lines: list[dict], *names: str) -> list[float]:
    """The values of all lines that do not depend on the time."""
    return [line[name] for line in lines for name in names if name in line]


def assert_same_weights(folder: str, before: dict[str, torch.Tensor]) -> None:
    now = load_file(Path(folder, "model.safetensors"))
    assert now.keys() == before.keys()
    for name in now:
        if name.endswith("key.bias"):  # its gradient is only rounding, which depends on the CPU
            continue
        torch.testing.assert_close(now[name], before[name], rtol=ROUNDING, atol=ROUNDING)


def test_a_corpus_has_the_tokens_of_its_text():
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    corpus = snugbert.open_corpus("corpus", tokenizer)
    sentences = [line for line in Path("text.txt").read_text().splitlines() if line]
    expected = np.concatenate(tokenizer(sentences, add_special_tokens=False)["input_ids"])
    assert np.array_equal(np.concatenate([block.tokens for block in corpus.blocks]), expected)
    assert (corpus.num_documents, corpus.num_sentences) == (40, len(sentences))


def test_a_model_has_the_same_outputs():
    expected = json.loads(Path("logits.json").read_text())
    inputs = AutoTokenizer.from_pretrained("pretrained")(expected["text"], return_tensors="pt")
    for model_class in (AutoModelForPreTraining, AutoModelForMaskedLM, snugbert.SnugBertForPreTraining):
        model = model_class.from_pretrained("pretrained").eval()
        with torch.no_grad():
            output = model(**inputs)
        logits = {"prediction_logits": output.get("logits"), **output}
        for name in expected.keys() & logits.keys():
            torch.testing.assert_close(logits[name], torch.tensor(expected[name]), rtol=ROUNDING, atol=ROUNDING)


def test_a_classifier_predicts_the_same():
    rows = read_lines("finetuned/eval_predictions.jsonl")
    answers = snugbert.Predictor("finetuned").predict([{"sentence": row["sentence"]} for row in rows])
    for answer, row in zip(answers, rows, strict=True):
        assert answer["predicted_label"] == row["predicted_label"]
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=ROUNDING)
    assert len({row["predicted_label"] for row in rows}) == 2


def test_pretraining_resumes():
    """From step 3 of 6, with the losses and weights of the run that was not interrupted."""
    names, before = ("loss", "nsp_loss", "grad_norm", "tokens", "eval_loss"), read_lines("pretrained/metrics.jsonl")
    weights = load_file("pretrained/model.safetensors")
    assert run(f"{PRETRAIN} --resume_from_checkpoint true") == 0
    now = read_lines("pretrained/metrics.jsonl")
    assert now[:3] == before[:3]  # also the tokens per second, so these steps were not trained again
    assert pick(now, *names) == pytest.approx(pick(before, *names), rel=ROUNDING)
    assert_same_weights("pretrained", weights)


def test_fine_tuning_resumes(caplog):
    """From step 12 of 24, with the losses, weights and scores of the run that was not interrupted."""
    before, weights = read_log("finetuned"), load_file("finetuned/model.safetensors")
    results = json.loads(Path("finetuned/results.json").read_text())
    assert run(f"{FINETUNE} --resume_from_checkpoint true") == 0
    assert "resuming from checkpoint-12" in caplog.text
    assert pick(read_log("finetuned"), "loss", "grad_norm") == pytest.approx(
        pick(before, "loss", "grad_norm"), rel=ROUNDING
    )
    assert_same_weights("finetuned", weights)
    now = json.loads(Path("finetuned/results.json").read_text())
    # Versions may add keys, but keep the earlier ones.
    assert now.keys() >= results.keys() and now["versions"].keys() >= results["versions"].keys()
    assert now["metrics"]["eval"].items() >= results["metrics"]["eval"].items()
    assert now["settings"].items() >= results["settings"].items()


def test_a_sweep_keeps_its_finished_runs():
    files = [*Path("sweep/runs").glob("*/results.json")]
    finished = [file.read_bytes() for file in files]
    scores = json.loads(Path("sweep/results.json").read_text())["sweep"]["settings"][0]["scores"]
    assert run(SWEEP) == 0
    assert len(files) == 2 and [file.read_bytes() for file in files] == finished
    assert json.loads(Path("sweep/results.json").read_text())["sweep"]["settings"][0]["scores"] == scores


def test_unfinished_predictions_are_refused(capsys):
    """The rest of the file might have other columns or rounding. `rows.jsonl.partial` does not exist here."""
    assert run(PREDICT) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    # The number of a version stays until the next release.
    what = "a different (version of SnugBERT|model or input)"
    remedy = r"Add --overwrite_output_file to start again\."
    assert re.fullmatch(rf"snugbert predict: error: rows\.jsonl\.partial\.json .* {what}\. {remedy}", error)
    assert run(f"{PREDICT} --overwrite_output_file") == 0
    expected = read_lines("finetuned/eval_predictions.jsonl")
    assert pick(read_lines("rows.jsonl"), "predicted_label") == pick(expected, "predicted_label")


def test_a_corpus_of_another_format_is_refused():
    (part,) = Path("corpus").glob("*.arrow")
    data = part.read_bytes()
    schema = pa.ipc.open_stream(data).schema
    origin = schema.metadata[b"snugbert"].replace(b'"format": 1', b'"format": 2')
    header = schema.with_metadata({b"snugbert": origin}).serialize().to_pybytes()
    part.write_bytes(header + data[len(schema.serialize()) :])
    with pytest.raises(InputError) as error:
        snugbert.open_corpus("corpus", AutoTokenizer.from_pretrained("tokenizer"))
    assert str(error.value) == (
        f"{part} has format 2, but this version of SnugBERT reads format 1. Install the version that wrote it, or "
        "prepare the text again."
    )


def test_runs_of_newer_versions_are_refused(capsys):
    states = [Path(name, "trainer_state.json") for name in ("pretrained/checkpoint-3", "finetuned/checkpoint-12")]
    for file in states:
        state = json.loads(file.read_text())
        for name in state["stateful_callbacks"].keys() & {"RunSettings", "PretrainingTrainer"}:
            state["stateful_callbacks"][name] = {"version": "99.0", "new": 1}
        file.write_text(json.dumps(state))
        write_manifest(file.parent)
    plan = Path("sweep/plan.json")
    plan.write_text(json.dumps({"version of snugbert": "99.0", "new": 1}))
    resume = "--resume_from_checkpoint true"
    for command, name in ((f"{PRETRAIN} {resume}", states[0]), (f"{FINETUNE} {resume}", states[1]), (SWEEP, plan)):
        assert run(command) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith(
            f"{name} was written by SnugBERT 99.0. This is {snugbert.__version__}. Upgrade SnugBERT, or start a new "
            "run in another folder."
        )
