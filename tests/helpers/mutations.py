"""Changes files as damage or an attacker would, by a seed: bytes, text, values, headers and compressed content."""

import contextlib
import gzip
import io
import json
import random
import re
from typing import Any

import pyarrow
import yaml

INTEGERS = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 3, 0.5, -0.5, 2**31, 2**63, 10**30, 1e300, float("nan"), float("inf")),
    *("", "a", "1", "\ud800", "\0", "../../escape", "/etc/passwd", "a\n# b\n![c](https://d.example)", "e" * 50_000),
    *([], {}, [[]], [None], ["a"], [0], [1.5, "b"], {"a": 1}, {"0": None}, {"a": {"b": []}}),
)
ALIASES = "".join(f"x{n}: &x{n} [{f'*x{n - 1}, ' * 9 if n else 'a, b'}]\n" for n in range(12))  # billions of values
# Text in place of a word, a number or a bracket.
TEXTS = (
    *"NaN -Infinity 1e999 -1 0.1 99999999999999999999 null true 2020-13-41 1:2:3".split(),
    *"~ \" ' [] {} { ] , ; | --- *a".split(),
    *("? ", "<<: *a", "&a [*a, *a]", "!!python/object/apply:os.system [true]", "!!binary x", "!!float a", ALIASES),
    *("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 20_000, "{a: " * 3000, "- " * 3000, "9" * 5000),
    *("\t", "\r", "\n\n", "\ufeff", "\u2028", "\0", "e" * 50_000),
)
BAD_UNICODE = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xff\xfe", b"\0\0")
TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|[\[\]{},:;\n\t]')


def mutate(data: bytes, name: str, rng: random.Random) -> bytes:
    """Returns the changed content of a file. Its suffix decides which changes are possible besides changed bytes."""
    stem, _, suffix = name.rpartition(".")
    changes = [change_bytes]
    if suffix == "gz":
        changes += [lambda content, rng: gzip.compress(mutate(gzip.decompress(content), stem, rng), mtime=0)]
    elif suffix == "zst":
        changes += [lambda content, rng: compress_zstd(mutate(decompress_zstd(content), stem, rng))]
    elif suffix in ("safetensors", "index"):
        changes += [change_header] * 3
    elif suffix in ("json", "jsonl", "yaml"):
        changes += [change_yaml if suffix == "yaml" else change_json] * 3 + [change_text] * 2
    elif suffix in ("csv", "tsv", "txt"):
        changes += [change_text] * 2
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        try:
            data = rng.choice(changes)(data, rng)
        except Exception:  # an earlier change has destroyed the structure
            data = change_bytes(data, rng)
    return data


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes, removes, repeats or extends a piece, often near the start or the end of the file, or cuts the file."""
    start = rng.choice((rng.randrange(len(data) + 1), min(rng.randrange(100), len(data)), max(0, len(data) - 20)))
    end = min(len(data), start + rng.choice((1, 2, 4, 8, max(64, len(data) // 4))))
    piece = data[start:end]
    flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in piece[:1]) + piece[1:]
    integer = rng.choice((*INTEGERS, len(data), len(data) * 2, rng.randrange(1000))).to_bytes(8, "little")
    others = (integer[: len(piece)] + piece[8:], b"", piece * 2, piece * 1000, rng.choice(BAD_UNICODE) + piece)
    rest = b"" if rng.random() < 0.15 else data[end:]
    return data[:start] + rng.choice((flipped, rng.randbytes(len(piece)), *others)) + rest


def change_text(data: bytes, rng: random.Random) -> bytes:
    """Replaces a word, a number or a bracket by other text, or by another one of the file."""
    tokens = list(TOKEN.finditer(data))
    new = rng.choice(TEXTS).encode()
    if not tokens or rng.random() < 0.02:
        return rng.choice((new, new + data, data + new))
    token = rng.choice(tokens)
    new = rng.choice((new, new, rng.choice(BAD_UNICODE), b"", rng.choice(tokens)[0], token[0] * 2))
    return data[: token.start()] + new + data[token.end() :]


def change_value(content: Any, rng: random.Random) -> Any:
    """Replaces, removes, renames or swaps one value in nested lists and dictionaries."""
    slots = list(_list_slots(content))
    if not slots or rng.random() < 0.02:
        return rng.choice(VALUES)
    (container, key), (other, place) = rng.choice(slots), rng.choice(slots)
    value, kind = container[key], rng.choice(("replace", "swap", "similar", "remove", "rename"))
    similar = (
        [value * 1000, value + 1, -value, str(value)] if isinstance(value, int | float) else [[value], str(value)]
    )
    if kind == "remove":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[rng.choice(("a", "", "../b", "0", "x" * 1000, *map(str, container)))] = container.pop(key)
    elif kind == "swap":
        container[key] = json.loads(json.dumps(other[place]))
    else:
        container[key] = rng.choice(similar if kind == "similar" else VALUES)
    return content


def _list_slots(content: Any):
    """Yields each container and key of nested lists and dictionaries."""
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _list_slots(content[key])


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


def compress_zstd(data: bytes) -> bytes:
    """Returns a Zstandard frame."""
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


def decompress_zstd(data: bytes) -> bytes:
    """Returns the content of a Zstandard file."""
    return pyarrow.input_stream(io.BytesIO(data), compression="zstd").read()
