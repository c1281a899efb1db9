"""`snugbert demo`, the command."""

import shutil
import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest
from browser import CALL, PATIENCE, TYPED, ask
from demo_checkpoints import SIZE, VOCABULARY
from transformers import BertConfig, RobertaConfig

from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_process_serves_until_ctrl_c(checkpoints):
    """On 127.0.0.1, and on 0.0.0.0 under any host name and with a warning."""
    model = str(checkpoints["tags"])
    processes = {}
    for host in ("127.0.0.1", "0.0.0.0"):
        port = free_port()
        command = [sys.executable, "-m", "snugbert", "demo", "--model", model, "--host", host, "--port", str(port)]
        processes[port] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = []
    try:
        for port, process in processes.items():
            served_at = process.stdout.readline()
            with urlopen(f"http://127.0.0.1:{port}/") as response:
                assert "tags · SnugBERT" in response.read().decode()
            statuses = [
                ask(port, CALL, TYPED, Host="a.lan:1", Origin=origin)
                for origin in ("http://a.lan:1", "http://b.lan:1")
            ]
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE)
            ended.append((served_at, statuses, process.returncode, output, errors))
    finally:
        for process in processes.values():
            process.kill()
    local, open_to_all = processes
    assert ended == [
        (f"Serving {model} at http://127.0.0.1:{local}/ (Ctrl-C to stop)\n", [400, 400], 130, "", ""),
        (
            f"Serving {model} at http://localhost:{open_to_all}/ (Ctrl-C to stop)\n",
            [200, 403],
            130,
            "",
            "snugbert demo: warning: --host 0.0.0.0: anyone who can reach this machine can use the model. There is no "
            "password and no encryption. To use it from another machine, omit --host and open a tunnel there: "
            f"ssh -L {open_to_all}:127.0.0.1:{open_to_all} THIS_MACHINE.\n",
        ),
    ]


def test_bad_arguments_are_refused(checkpoints, tokenizer, tmp_path, monkeypatch, capsys):
    folder = str(checkpoints["encoder"])
    for name, config in (
        ("roberta", RobertaConfig()),
        ("nameless", BertConfig()),
        ("decoder", BertConfig(architectures=["BertLMHeadModel"])),
        ("headless", BertConfig(architectures=["BertForQuestionAnswering"])),
    ):
        config.update({"vocab_size": len(VOCABULARY), **SIZE})
        config.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    shutil.copy(checkpoints["encoder"] / "model.safetensors", tmp_path / "headless")
    server = socket.create_server(("127.0.0.1", 0))
    port = str(server.getsockname()[1])
    for arguments, message in (
        ([], "the following arguments are required: --model"),
        (["--model", str(tmp_path / "nowhere")], f"the folder {tmp_path / 'nowhere'} does not exist."),
        (["--model", str(tmp_path / "roberta")], "is a 'roberta' model"),
        (
            ["--model", str(tmp_path / "nameless")],
            'no "architectures". Add one of SnugBertModel, ',
        ),
        (
            ["--model", str(tmp_path / "decoder")],
            "unsupported architecture BertLMHeadModel. Supported: ",
        ),
        (["--model", str(tmp_path / "headless")], "lacks qa_outputs.bias, qa_outputs.weight"),
        (
            ["--model", folder, "--port", port],
            f"--port {port}: cannot serve the page. Address already in use",
        ),
        (["--model", folder, "--port", "70000"], "--port 70000: ports range from 1 to 65535."),
        (["--model", folder, "--host", "192.0.2.1"], "--host 192.0.2.1: cannot serve the page. "),
    ):
        assert main(["demo", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("snugbert demo: error: ") and message in error and error.count("\n") == 1
    server.close()
    monkeypatch.delitem(sys.modules, "snugbert.demo.page")
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--model", folder]) == 2
    assert "gradio is missing or too old. Run: pip install -U 'snugbert[demo]'" in capsys.readouterr().err
