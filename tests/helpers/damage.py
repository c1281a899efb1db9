"""Damaged files of checkpoints: after a full disk, an incomplete copy, or a flipped bit."""

from pathlib import Path


def damage(file: Path, how: str) -> None:
    """Damages a file. `how` is "missing", "half", "six bytes", "{}" or "a path"."""
    if how == "missing":
        file.unlink()
        return
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = bytes(byte ^ 0xFF for byte in content[middle : middle + 6])
    damaged = {
        "half": content[:middle],
        "six bytes": content[:middle] + flipped + content[middle + 6 :],
        "{}": b"{}",
        "a path": b'{"/etc/passwd": {}}',
    }
    file.write_bytes(damaged[how])
