"""Damaged files of checkpoints: after a full disk, an incomplete copy, a flipped bit, or from an attacker."""

from pathlib import Path

import torch
from hostile import Malicious

STATES = {"malicious": Malicious(), "no state": {}, "a list": [1]}


def damage(file: Path, how: str) -> None:
    """Damages a file. `how` is "missing", "empty", "half", "six bytes", "{}", "a path", or a key of `STATES`."""
    if how == "missing":
        file.unlink()
        return
    if how in STATES:
        torch.save(STATES[how], file)
        return
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = bytes(byte ^ 0xFF for byte in content[middle : middle + 6])
    damaged = {
        "empty": b"",
        "half": content[:middle],
        "six bytes": content[:middle] + flipped + content[middle + 6 :],
        "{}": b"{}",
        "a path": b'{"/etc/passwd": {}}',
    }
    file.write_bytes(damaged[how])
