"""`snugbert demo`: opens a checkpoint and serves the page that fits its head until Ctrl-C."""

import os
import socket
import sys
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from transformers.utils import logging as transformers_logging

from snugbert.command_line import parse_arguments
from snugbert.demo.answers import load_checkpoint
from snugbert.errors import InputError

INTERRUPTED = 130  # the exit status of a command that Ctrl-C ended


@dataclass(kw_only=True)
class DemoArguments:
    """The arguments of `snugbert demo`.

    Raises:
        InputError: a port that cannot be one.
    """

    model: str = field(metadata={"help": "The checkpoint, SnugBERT's or any BERT's: a folder or a Hub name."})
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address to serve on. At 0.0.0.0 anyone who can reach this machine can use the model."},
    )
    port: int | None = field(default=None, metadata={"help": "Port; default: the first free one from 7860 on."})
    inbrowser: bool = field(default=False, metadata={"help": "Open the page in the browser of this machine."})

    def __post_init__(self):
        if self.port is not None and not 0 < self.port < 2**16:
            raise InputError(f"--port {self.port}: ports are numbers from 1 to {2**16 - 1}.")


def main(argv: list[str]) -> None:
    """Serves a page as `argv` says, and prints its address.

    Raises:
        InputError: arguments or a checkpoint that cannot be used, an address that is taken, or no Gradio.
        SystemExit: Ctrl-C, with its usual exit status.
    """
    (args,) = parse_arguments((DemoArguments,), argv, "snugbert demo", "Open a page to try a checkpoint on.")
    address = _resolve_address(args.host, args.port)
    # Read when Gradio is imported: it reports its use otherwise, and keeps what was typed in the browser.
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    try:
        from snugbert.demo.page import build_page, serve
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise InputError(f"the page needs a current {package}. Run: pip install -U 'snugbert[demo]'") from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    name = Path(os.path.abspath(args.model)).name  # also of "."; a link keeps its own
    page = build_page(name, load_checkpoint(args.model))
    serve(page, args.host, args.port, args.inbrowser)
    if not ip_address(address).is_loopback:
        _warn_of_open_host(args.host, page.server_port)
    print(f"{args.model} is on {page.local_url} until Ctrl-C.", flush=True)
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        page.close(verbose=False)
        raise SystemExit(INTERRUPTED) from None


def _resolve_address(host: str, port: int | None) -> str:
    """The numeric address of a host. Refuses a host that is not this machine's, and a port in use."""
    # Gradio would try a hundred ports at an address that is not this machine's, and name its own arguments.
    try:
        with socket.create_server((host, port or 0)) as server:
            return server.getsockname()[0]
    except OSError as error:
        flags = f"--host {host}" + ("" if port is None else f" --port {port}")
        raise InputError(f"{flags}: the page cannot be served there: {error.strerror}.") from error


def _warn_of_open_host(host: str, port: int) -> None:
    print(
        f"snugbert demo: warning: --host {host}: anyone who can reach this machine can use the model. There is no "
        "password and no encryption. To use it from another machine, omit --host and open a tunnel there: "
        f"ssh -L {port}:127.0.0.1:{port} THIS_MACHINE.",
        file=sys.stderr,
    )
