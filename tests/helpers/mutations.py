"""Changes files as damage or an attacker would, by a seed: bytes, text, values, headers and compressed content."""

import contextlib
import copy
import gzip
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow
import yaml

Change = Callable[[bytes, random.Random], bytes]

INTEGERS = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 0.5, -0.5, 10**9, 2**31, 2**63, 10**30, 1e300, float("nan"), float("inf")),
    *("", "a", "1", "\ud800", "\0", "../../escape", "/etc/passwd", "a\n# b\n![c](https://d.example)", "e" * 50_000),
    *([], {}, [[]], [None], ["a"], [0], [1.5, "b"], {"a": 1}, {"0": None}, {"a": {"b": []}}),
)
# Text in place of a word, a number or a bracket.
TEXTS = (
    *("NaN", "-Infinity", "1e999", "-1", "0.1", "99999999999999999999", "9" * 5000, "null", "true", "~", '"', "'"),
    *(
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 20_000,
        "{a: " * 3000,
        "- " * 3000,
        "[]",
        "{}",
        "{",
        "]",
    ),
    *(
        "&a [*a, *a]",
        "*a",
        "<<: *a",
        "!!python/object/apply:os.system [true]",
        "!!binary x",
        "!!float a",
        "? ",
        "|",
        "---",
    ),
    *(
        "2020-01-01",
        "2020-13-41",
        "1:2:3",
        "\t",
        "\r",
        "\n\n",
        ",",
        ";",
        "\ufeff",
        "\u2028",
        "\0",
        "e" * 50_000,
    ),
)
ALIASES = "".join(f"x{n}: &x{n} [{f'*x{n - 1}, ' * 9 if n else 'a, b'}]\n" for n in range(12))  # billions of values
BAD_UNICODE = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xff\xfe", b"\0\0")
TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|[\[\]{},:;\n\t]')


def mutate(data: bytes, name: str, rng: random.Random) -> bytes:
    """Returns the changed content of a file. Its suffix decides which changes are possible besides changed bytes."""
    changes: list[Change] = [change_bytes]
    suffix = name.rpartition(".")[2]
    if suffix in ("gz", "zst"):
        stem = name.removesuffix(f".{suffix}")
        changes += [lambda content, rng: _recompress(content, stem, suffix, rng)]
    elif suffix in STRUCTURES:
        changes += [STRUCTURES[suffix]] * 3
    if suffix in ("json", "jsonl", "csv", "tsv", "txt", "yaml", "partial"):
        changes += [change_text] * 2
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        try:
            data = rng.choice(changes)(data, rng)
        except Exception:  # an earlier change has destroyed the structure
            data = change_bytes(data, rng)
    return data


def _place(data: bytes, rng: random.Random, longest: int = 64) -> tuple[int, int]:
    """Returns start and end of a random piece. Half of them are near the start or the end of the file."""
    start = rng.choice((rng.randrange(len(data) + 1), min(rng.randrange(100), len(data)), max(0, len(data) - 20)))
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, longest)))


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips bits, overwrites integers, and removes, repeats, moves or inserts pieces."""
    start, end = _place(data, rng, max(64, len(data) // 4))
    piece = data[start:end]
    kind = rng.choice(
        ("bit", "bit", "byte", "integer", "integer", "cut", "remove", "repeat", "move", "insert", "empty")
    )
    if kind == "bit" and piece:
        return data[:start] + bytes([piece[0] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
    if kind == "byte" and piece:
        return data[:start] + rng.randbytes(len(piece)) + data[end:]
    if kind == "integer":
        size, start = rng.choice((1, 2, 4, 8)), start - start % rng.choice((1, 4, 8))
        number = (rng.choice((*INTEGERS, len(data), len(data) * 2, rng.randrange(1000))) % 2 ** (8 * size)).to_bytes(
            size, "little"
        )
        return data[:start] + number + data[start + size :]
    if kind == "cut":
        return data[:start]
    if kind == "remove":
        return data[:start] + data[end:]
    if kind == "repeat":
        return data[:end] + piece * rng.choice((1, 2, 1000)) + data[end:]
    if kind == "move":
        target, _ = _place(data, rng)
        return data[:target] + piece + data[target:]
    if kind == "insert":
        return data[:start] + rng.choice((*BAD_UNICODE, rng.randbytes(8))) + data[start:]
    return b"" if kind == "empty" and rng.random() < 0.2 else data + piece


def change_text(data: bytes, rng: random.Random) -> bytes:
    """Replaces a word, a number or a bracket by other text, or by another one of the file."""
    tokens = list(TOKEN.finditer(data))
    if not tokens or rng.random() < 0.02:
        return rng.choice((ALIASES.encode() + data, data + ALIASES.encode(), *(text.encode() for text in TEXTS)))
    token = rng.choice(tokens)
    new = rng.choice((*(text.encode() for text in TEXTS), *BAD_UNICODE, b"", rng.choice(tokens)[0], token[0] * 2))
    return data[: token.start()] + new + data[token.end() :]


def change_value(content: Any, rng: random.Random) -> Any:
    """Replaces, removes, repeats or renames one value in nested lists and dictionaries."""
    content = copy.deepcopy(content)
    slots: list[tuple[Any, Any]] = []

    def collect(container: Any) -> None:
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            slots.append((container, key))
            if isinstance(container[key], dict | list):
                collect(container[key])

    if not isinstance(content, dict | list) or not content or rng.random() < 0.02:
        return rng.choice(VALUES)
    collect(content)
    container, key = rng.choice(slots)
    value, kind = container[key], rng.choice(("replace", "replace", "swap", "number", "remove", "add", "rename"))
    if kind == "remove":
        del container[key]
    elif kind == "add" and isinstance(container, list):
        container.insert(key, rng.choice((value, *VALUES)))
    elif kind == "rename" and isinstance(container, dict):
        container[rng.choice(("a", "", "../b", "0", "x" * 1000, *map(str, container)))] = container.pop(key)
    elif kind == "swap":
        other, place = rng.choice(slots)
        container[key] = copy.deepcopy(other[place])
    elif kind == "number" and isinstance(value, int | float):
        container[key] = rng.choice((value + 1, value - 1, -value, value * 1000, float(value), str(value)))
    elif kind == "number" and isinstance(value, str):
        container[key] = rng.choice((value + "x", value[:-1], value.upper(), [value], {value: value}))
    else:
        container[key] = rng.choice(VALUES)
    return content


def change_json(data: bytes, rng: random.Random) -> bytes:
    """Changes a value of a JSON file, or of a line of JSON lines."""
    lines = data.splitlines()
    with contextlib.suppress(json.JSONDecodeError):
        lines = [json.dumps(json.loads(data)).encode()]
    row = rng.randrange(len(lines))
    lines[row] = json.dumps(change_value(json.loads(lines[row]), rng)).encode()
    return b"\n".join(lines)


def change_yaml(data: bytes, rng: random.Random) -> bytes:
    """Changes a value of a YAML file."""
    return yaml.safe_dump(change_value(yaml.safe_load(data), rng)).encode("utf-8", "surrogatepass")


def change_header(data: bytes, rng: random.Random) -> bytes:
    """Changes the header of a safetensors file, and sets its length."""
    size = int.from_bytes(data[:8], "little")
    header = rng.choice((change_json, change_json, change_text, change_bytes))(data[8 : 8 + size], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def change_archive(data: bytes, rng: random.Random) -> bytes:
    """Changes a file in a ZIP archive, usually the pickle of `torch.save`. All checksums are right."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(written, "w") as changed:
        names = archive.namelist()
        (pickle,) = (name for name in names if name.endswith("data.pkl"))
        chosen = rng.choice((pickle, pickle, pickle, rng.choice(names)))
        for name in names:
            content = archive.read(name)
            changed.writestr(name, change_bytes(content, rng) if name == chosen else content)
    return written.getvalue()


def _recompress(data: bytes, stem: str, suffix: str, rng: random.Random) -> bytes:
    """Changes the content of a compressed file."""
    if suffix == "gz":
        return gzip.compress(mutate(gzip.decompress(data), stem, rng), mtime=0)
    with pyarrow.input_stream(io.BytesIO(data), compression="zstd") as stream:
        return pyarrow.Codec("zstd").compress(mutate(stream.read(), stem, rng), asbytes=True)


STRUCTURES: dict[str, Change] = {
    "json": change_json,
    "jsonl": change_json,
    "yaml": change_yaml,
    "safetensors": change_header,
    "index": change_header,
    "pt": change_archive,
    "pth": change_archive,
}
