"""`snugbert predict --num_processes`: the same bytes as one process, also after kills, and no process is left."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import family_checkpoints
import forked
import psutil
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import snugbert.prediction.predict_file as run
from snugbert.prediction.predictor import Predictor
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = family_checkpoints.WORDS
STOP = "stop"  # stalls a worker


def fork_workers() -> None:
    """Windows of 8 rows, and processes that are forked, because importing everything again takes seconds."""
    context = multiprocessing.get_context("fork")
    run.WINDOW_ROWS, multiprocessing.get_context = 8, lambda _: context
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork


def predict_forked(arguments: list[str]) -> int:
    fork_workers()
    return main(arguments)


def predict_and_stall(arguments: list[str]) -> int:
    answer = Predictor.answer

    def answer_or_stall(self, examples):
        if STOP in str(examples):
            Path(f"stalled-{os.getpid()}").touch()
            time.sleep(100)
        return answer(self, examples)

    Predictor.answer = answer_or_stall
    return predict_forked(arguments)


def predict_and_die_in_a_reply(arguments: list[str]) -> int:
    answer = Predictor.answer

    def send_half(self, reply, write=None):
        os.write(self.fileno(), bytes(reply[: len(reply) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)

    def answer_and_die(self, examples):
        Connection._send = send_half
        return answer(self, examples)

    Predictor.answer = answer_and_die
    return predict_forked(arguments)


def predict_on_gpus(arguments: list[str]) -> int:
    """As if there were three GPUs. Models run on the CPU."""
    torch.accelerator.device_count = lambda: 3
    torch.accelerator.set_device_index = lambda index: Path(f"gpu-{index}").touch()
    run.choose_device = lambda _: torch.device("cuda")
    return predict_forked(arguments)


def make_texts(number: int = 40) -> list[str]:
    """Texts of 1 to 60 words."""
    return [
        " ".join(WORDS[(7 * row + step) % len(WORDS)] for step in range(1 + row * 23 % 60)) for row in range(number)
    ]


def write_model(folder: Path, head: str, **fields) -> Path:
    return family_checkpoints.write_checkpoint(folder, "bert", head, initializer_range=0.2, **fields)


def write_rows(rows: Iterable[dict]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def list_arguments(model: Path, output: str, *arguments: object) -> list[str]:
    files = ["--input_file", "rows.jsonl", "--output_file", output]
    return ["predict", "--model_name_or_path", str(model), *files, *map(str, arguments)]


@pytest.mark.parametrize("kind", ["pairs", "entities", "questions", "embeddings", "means", "scores"])
def test_any_number_of_processes_writes_the_same_bytes(tmp_path, monkeypatch, caplog, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "WINDOW_ROWS", 8)
    texts, options = make_texts(), []
    model, rows = tmp_path / "model", [{"text": text} for text in texts]
    if kind == "pairs":  # some are truncated
        write_model(model, "ForSequenceClassification")
        rows = [{"id": row, "text": text, "text_pair": texts[-row]} for row, text in enumerate(texts)]
        options = ["--max_seq_length", 64]
    elif kind == "entities":
        labels = dict(enumerate(["O", "B-PER", "I-PER"]))
        write_model(model, "ForTokenClassification", id2label=labels, label2id={name: i for i, name in labels.items()})
    elif kind == "questions":
        write_model(model, "ForQuestionAnswering")
        rows = [{"question": "who was it?", "context": text} for text in [*texts, " ".join(WORDS * 20)]]
    elif kind == "scores":
        bert = write_model(tmp_path / "bert", "ForSequenceClassification", num_labels=1)
        CrossEncoder(str(bert)).save_pretrained(str(model))
        rows = [{"query": "who was it?", "text": text} for text in texts]
    elif kind == "embeddings":
        encoder = Transformer(str(write_model(tmp_path / "bert", "Model")))
        pooling = Pooling(encoder.get_embedding_dimension(), "mean")
        SentenceTransformer(modules=[encoder, pooling]).save_pretrained(str(model))
    else:
        write_model(model, "Model")
    write_rows(rows)
    assert main(list_arguments(model, "1.jsonl", *options)) == 0
    (truncation,) = [line for line in caplog.messages if "are longer than" in line] or [""]
    assert bool(truncation) == (kind == "pairs")
    for number in (2, 3) if kind == "pairs" else (2,):
        arguments = list_arguments(model, f"{number}.jsonl", "--num_processes", number, *options)
        process = forked.run(predict_forked, arguments)
        assert process.returncode == 0, process.stderr
        assert truncation in process.stderr
        assert Path(f"{number}.jsonl").read_bytes() == Path("1.jsonl").read_bytes()


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs. Nobody may have asked for the exit status of one that has ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def count_rows() -> int:
    """Returns the rows that the next run will not predict again."""
    state = Path("out.jsonl.partial.json")
    return json.loads(state.read_text())["rows"] if state.exists() else 0


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_signals_end_all_processes_and_the_run_continues(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "WINDOW_ROWS", 8)
    model = write_model(tmp_path / "model", "ForSequenceClassification")
    write_rows({"text": text + STOP * (row >= 24)} for row, text in enumerate(make_texts()))
    assert main(list_arguments(model, "straight.jsonl")) == 0
    killed = "--num_processes: a process ended. If there is no error above, memory probably ran out."
    for to_worker, number, status, message in (
        (False, signal.SIGINT, 130, "Run the same command again to continue"),
        (False, signal.SIGTERM, -signal.SIGTERM, ""),
        (False, signal.SIGKILL, -signal.SIGKILL, ""),
        (True, signal.SIGKILL, 2, killed),
    ):
        process = forked.start(predict_and_stall, list_arguments(model, "out.jsonl", "--num_processes", 2))
        wait_until(lambda: len(list(tmp_path.glob("stalled-*"))) == 2 and count_rows() == 24)
        workers = [psutil.Process(int(file.name.partition("-")[2])) for file in tmp_path.glob("stalled-*")]
        if number == signal.SIGINT:  # a terminal sends it to all processes
            os.killpg(process.pid, number)
        else:
            os.kill(workers[0].pid if to_worker else process.pid, number)
        start = time.monotonic()
        assert process.wait() == status, process.stderr
        wait_until(lambda workers=workers: not any(map(is_running, workers)))
        assert time.monotonic() - start < 20
        assert message in process.stderr and "Traceback" not in process.stderr
        for file in tmp_path.glob("stalled-*"):
            file.unlink()
    arguments = list_arguments(model, "out.jsonl", "--num_processes", 3)
    process = forked.run(predict_forked, arguments)
    assert process.returncode == 0 and "continuing after 24 rows" in process.stderr
    assert Path("out.jsonl").read_bytes() == Path("straight.jsonl").read_bytes()


def test_a_process_that_is_killed_in_a_reply_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model", "ForSequenceClassification")
    write_rows({"text": text} for text in make_texts())
    process = forked.run(predict_and_die_in_a_reply, list_arguments(model, "out.jsonl", "--num_processes", 2))
    assert process.returncode == 2 and "a process ended" in process.stderr


def test_by_default_each_gpu_has_a_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model", "ForSequenceClassification")
    write_rows({"text": text} for text in make_texts())
    process = forked.run(predict_on_gpus, list_arguments(model, "out.jsonl"))
    assert process.returncode == 0, process.stderr
    assert sorted(file.name for file in tmp_path.glob("gpu-*")) == ["gpu-0", "gpu-1", "gpu-2"]
    write_rows([{"text": "a"}])  # one window needs no other process
    for file in tmp_path.glob("gpu-*"):
        file.unlink()
    assert forked.run(predict_on_gpus, list_arguments(model, "one.jsonl")).returncode == 0
    assert [file.name for file in tmp_path.glob("gpu-*")] == ["gpu-0"]


def test_a_launcher_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows([{"text": "a"}])
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(list_arguments(tmp_path, "out.jsonl")) == 2
    assert "Run the command without torchrun or accelerate." in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_starts_new_processes(tmp_path, monkeypatch, caplog):
    """Without a fork: the arguments are pickled, and the processes import everything. A window has 100 long texts."""
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "model", "ForSequenceClassification")
    write_rows({"text": f"{text} " * (10_000 // (len(text) + 1) + 1)} for text in make_texts(200))
    assert main(list_arguments(model, "1.jsonl")) == 0
    assert main(list_arguments(model, "2.jsonl", "--num_processes", 2)) == 0
    first, second = [line for line in caplog.messages if "200 of 200 texts (100.0%) are longer than" in line]
    assert first == second
    assert Path("2.jsonl").read_bytes() == Path("1.jsonl").read_bytes()
