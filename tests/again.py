"""Runs some tests again after each press of Enter, in two seconds. Only the first run waits for imports.

.venv/bin/python tests/again.py tests/tasks/test_tagging.py -k tags
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

# They take seconds to import, and are not part of SnugBERT. conftest sets the environment for transformers.
MODULES = ("conftest", "pandas", "sklearn.metrics", "torch._dynamo.convert_frame", "transformers.trainer")

sys.path.append(str(Path(__file__).parent / "helpers"))
for module in MODULES:
    import_module(module)
with suppress(EOFError, KeyboardInterrupt):
    while True:
        if os.fork() == 0:
            os._exit(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *sys.argv[1:]]))
        os.wait()
        input("Enter: again, Ctrl-C: end ")
