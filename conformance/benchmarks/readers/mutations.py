"""Damage to a file: to its bytes, to its length, or to JSON in the file or in its header."""

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

# Replacements for a JSON value.
NASTY: tuple[str, ...] = (
    "null", "true", "-1", "0", "1e999", "-1e999", "1e400", "NaN", "Infinity", "1000000000", "99999999999999999999", "0.5", '""',
    "[]", "{}", '"\\ud800"', '"\\u0000"', '"\\u202e"', '"../../x"', '"' + "a" * 5000 + '"', "[" * 3000 + "]" * 3000,
    '{"a":' * 1500 + "1" + "}" * 1500, "[[1,2],[3]]", "9" * 5000, '"float8"', "[null]", '{"values": 1}',
)  # fmt: skip


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return the data with one to three mutations."""
    for _ in range(draw.randint(1, 3)):
        data = draw.choice(_MUTATIONS)(data, draw)
    return data


def _flipped(data: bytes, draw: random.Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        if flipped:
            flipped[draw.randrange(len(flipped))] = draw.choice((0, 255, 10, 34, 91, 93, 123, 125, draw.randrange(256)))
    return bytes(flipped)


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _without(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.randint(1, 40) :]


def _twice(data: bytes, draw: random.Random) -> bytes:
    at, size = draw.randrange(len(data) + 1), draw.randint(1, 200)
    return data[:at] + data[at : at + size] * draw.choice((2, 3, 50)) + data[at + size :]


def _with_junk(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    junk = draw.choice((b"\0" * 64, b"[" * 5000, b"{" * 5000, b"a" * 80_000, b"\xff\xfe", draw.randbytes(32), b"nan ", b"..., "))
    return data[:at] + junk + data[at:]


def _with_another_value(data: bytes, draw: random.Random) -> bytes:
    """Replace a value in the JSON document, in one of its lines, or in a safetensors header, whose length is updated."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) > 8 else 0
    if 0 < size <= len(data) - 8:
        header = _json_mutated(data[8 : 8 + size], draw)
        return struct.pack("<Q", len(header)) + header + data[8 + size :]
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    whole = _json_mutated(data, draw)
    return whole if whole != data else b"\n".join([*lines[:at], _json_mutated(lines[at], draw), *lines[at + 1 :]])


def _json_mutated(data: bytes, draw: random.Random) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(tree))
    if not places:
        return data
    holder, key = draw.choice(places)
    if isinstance(holder[key], str) and holder[key].startswith("{") and draw.random() < 0.7:  # JSON inside a header.
        holder[key] = _json_mutated(holder[key].encode(), draw).decode("utf-8", "replace")
        return json.dumps(tree).encode()
    action, mark, value = draw.random(), "\x01here\x01", "null"
    if action < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif action < 0.25 and isinstance(holder, dict):
        holder[draw.choice(("", "/", "a" * 300, "\u202e", str(key) + "/positions"))] = holder.pop(key)
    else:
        holder[key], value = mark, draw.choice(NASTY)
    return json.dumps(tree).replace(json.dumps(mark), value).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


_MUTATIONS = (_flipped, _cut, _without, _twice, _with_junk, *(_with_another_value,) * 5)
