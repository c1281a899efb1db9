"""Content of malicious files."""

from pathlib import Path


class Malicious:
    """When unpickled, it creates the file `owned` in the current folder."""

    def __reduce__(self):
        return Path.touch, (Path("owned"),)
