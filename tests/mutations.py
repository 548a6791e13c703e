"""Damaged files and hostile messages: a valid one with something changed, drawn from a seed."""

import json
import random
from typing import Any

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**53,
    10**30,
    1.7e308,
    -0.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 3000,
    "\x1b[2J\x1b]0;owned\x07",
    "a\nround 10/10  acc 100%",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    [],
    [[]],
    [1, "two", None],
    {},
    {"a": {"b": [1]}},
    "\u202etxt",
]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes that were flipped, cut, repeated, overwritten or mixed with others."""
    if not data:
        return bytes(draw.randrange(256) for _ in range(8))
    at, size = draw.randrange(len(data)), draw.randint(1, 16)
    match draw.randrange(8):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + size :]
        case 3:
            return data[:at] + data[at : at + size] * draw.randint(2, 50) + data[at + size :]
        case 4:
            return data[:at] + bytes(draw.randrange(256) for _ in range(size)) + data[at + size :]
        case 5:
            return data[:at] + draw.choice([b"\x00", b"\xff", b'"', b"[", b"{", b"1e999", b"-", b"\n"]) + data[at:]
        case 6:
            other = draw.randrange(len(data))
            return data[:at] + data[other:]
        case _:
            return draw.choice([b"", b"\x00" * len(data), data + data, data[::-1]])


def damaged_json(text: str, draw: random.Random) -> str:
    """JSON in which one value, or one name, is another; sometimes no JSON any more."""
    if draw.random() < 0.2:
        return damaged(text.encode(), draw).decode(errors="replace")
    tree = json.loads(text)
    places = list(_places(tree))
    if not places:
        return json.dumps(draw.choice(ODD))
    inside, key = draw.choice(places)
    match draw.randrange(4):
        case 0 if isinstance(inside, dict):
            inside[draw.choice(["", "x", "-1", "\x1b[31m", "1.5"])] = inside.pop(key)
        case 1:
            del inside[key]
        case _:
            inside[key] = draw.choice(ODD)
    return json.dumps(tree)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in items:
        found.append((tree, key))
        found += _places(value)
    return found
