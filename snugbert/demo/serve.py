"""`snugbert demo`: serves a web page to try a checkpoint, until Ctrl-C."""

import os
import socket
import sys
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from transformers.utils import logging as transformers_logging

from snugbert.errors import InputError

INTERRUPTED = 130  # exit status after Ctrl-C


@dataclass(kw_only=True)
class DemoArguments:
    """Arguments of `snugbert demo`."""

    model: str = field(metadata={"help": "Checkpoint of the BERT family: a folder or a Hub name."})
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address to serve on. 0.0.0.0 opens the page to everyone who can reach this machine."},
    )
    port: int | None = field(default=None, metadata={"help": "Port. Default: the first free port from 7860."})
    inbrowser: bool = field(default=False, metadata={"help": "Open the page in a browser on this machine."})

    def __post_init__(self):
        if self.port is not None and not 0 < self.port < 2**16:
            raise InputError(f"--port {self.port}: ports range from 1 to {2**16 - 1}.")


def run_demo(args: DemoArguments) -> None:
    """Serves the page, and prints its address. Ctrl-C ends the process. This is `snugbert demo`."""
    address = _resolve_address(args.host, args.port)
    # Imported only here, because `--help` imports this module.
    from snugbert.demo.answers import load_checkpoint
    from snugbert.families.loading import check_repository

    check_repository(args.model)
    # Gradio reads these variables on import. By default it sends usage reports, and stores inputs in the browser.
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    try:
        from snugbert.demo.page import build_page, serve
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise InputError(f"{package} is missing or too old. Run: pip install -U 'snugbert[demo]'") from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    name = Path(os.path.abspath(args.model)).name  # also for "."; symbolic links keep their name
    page = build_page(name, load_checkpoint(args.model))
    serve(page, args.host, args.port, args.inbrowser)
    if not ip_address(address).is_loopback:
        _warn_of_open_host(args.host, page.server_port)
    print(f"Serving {args.model} at {page.local_url} (Ctrl-C to stop)", flush=True)
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        # A normal exit waits for open requests, and aborts if a thread is still running the model.
        os._exit(INTERRUPTED)


def _resolve_address(host: str, port: int | None) -> str:
    """Returns the numeric address of a host. Refuses other machines' addresses and ports in use."""
    # For another machine's address, Gradio would try a hundred ports. Its error would name Gradio's own arguments.
    try:
        with socket.create_server((host, port or 0)) as server:
            return server.getsockname()[0]
    except OSError as error:
        flags = f"--host {host}" + ("" if port is None else f" --port {port}")
        raise InputError(f"{flags}: cannot serve the page. {error.strerror}.") from error


def _warn_of_open_host(host: str, port: int) -> None:
    print(
        f"snugbert demo: warning: --host {host}: anyone who can reach this machine can use the model. There is no "
        "password and no encryption. To use the page from another machine, omit --host and open a tunnel there: "
        f"ssh -L {port}:127.0.0.1:{port} THIS_MACHINE.",
        file=sys.stderr,
    )
