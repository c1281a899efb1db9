"""`snugbert demo`, the command."""

import os
import shutil
import signal
import socket
import sys
import time
from urllib.request import urlopen

import forked
import pytest
from browser import CALL, PATIENCE, TYPED, ask
from demo_checkpoints import SIZE, VOCABULARY
from transformers import AlbertConfig, BertConfig

from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def visit(port: int) -> list[int]:
    """Opens the page. Returns the status of two calls with another host name, the second from a foreign page."""
    with urlopen(f"http://127.0.0.1:{port}/") as response:
        assert "tags · SnugBERT" in response.read().decode()
    return [ask(port, CALL, TYPED, Host="a.lan:1", Origin=origin) for origin in ("http://a.lan:1", "http://b.lan:1")]


@pytest.mark.parametrize("host", [None, "0.0.0.0"], ids=["default", "all"])
def test_a_process_serves_this_machine_or_all_hosts_until_ctrl_c(host, checkpoints):
    model, port = str(checkpoints["tags"]), free_port()
    flags = ["--host", host] if host else []
    process = forked.start(main, ["demo", "--model", model, "--port", str(port), *flags])
    try:
        end = time.monotonic() + PATIENCE
        while "\n" not in process.stdout and time.monotonic() < end:
            time.sleep(0.05)
        assert visit(port) == ([200, 403] if host else [400, 400])
    finally:
        os.kill(process.pid, signal.SIGINT)
        status = process.wait()
    name = "localhost" if host else "127.0.0.1"
    assert (status, process.stdout) == (130, f"Serving {model} at http://{name}:{port}/ (Ctrl-C to stop)\n")
    assert ("anyone who can reach this machine can use the model" in process.stderr) == bool(host)


def test_bad_arguments_are_refused(checkpoints, tokenizer, tmp_path, monkeypatch, capsys):
    folder = str(checkpoints["encoder"])
    for name, config in (
        ("albert", AlbertConfig()),
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
        (["--model", "nope"], "error: nope: no such folder, no earlier download in "),
        (["--model", str(tmp_path / "albert")], "is a 'albert' model"),
        (
            ["--model", str(tmp_path / "nameless")],
            'unsupported "architectures": none. Expected one of Snug',
        ),
        (["--model", str(tmp_path / "decoder")], 'unsupported "architectures": BertLMHeadModel. Expected one of Snug'),
        (["--model", str(tmp_path / "headless")], "has no weights for qa_outputs.bias, qa_outputs.weight"),
        (["--model", folder, "--port", port], f"--port {port}: cannot serve the page. Address already in use"),
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
