"""What a site with valid credentials may send instead of its reply. Replayed in process, and by a real site."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from tacit.aggregation import WeightsDown, WeightsUp
from tacit.engines.flower.messages import from_records, to_records
from tacit.engines.wire import Codec
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tacit.params import Params, Sparse

Attack = Callable[[RecordDict], None]
CODEC = Codec.of(FedAvg(Supervised()))


def sending(change: Callable[[WeightsUp], Any]) -> Attack:
    """The site sends another message than its upload."""

    def attack(content: RecordDict) -> None:
        changed = change(CODEC.from_parts(from_records(content, "up")))
        for name, value in to_records("up", CODEC.to_parts(changed)).items():
            content[name] = value

    return attack


def weights(change: Callable[[Tensor], Any]) -> Attack:
    """Every tensor of the model is changed."""
    return sending(lambda up: WeightsUp({name: change(value) for name, value in up.w.items()}, up.n))


def tree(change: Callable[[str], str]) -> Attack:
    """The description of the message is changed."""

    def attack(content: RecordDict) -> None:
        before: Any = content["up.tree"]
        content["up.tree"] = ConfigRecord({"json": change(str(before["json"]))})

    return attack


def reply(**changes: Any) -> Attack:
    """The header of the reply says something else."""

    def attack(content: RecordDict) -> None:
        before: Any = content["reply"]
        header = json.loads(before["header"]) | changes
        content["reply"] = ConfigRecord({"header": json.dumps(header), "memory": before["memory"]})

    return attack


def memory(data: bytes) -> Attack:
    """The reply carries a memory."""

    def attack(content: RecordDict) -> None:
        reply(memory=True)(content)
        before: Any = content["reply"]
        content["reply"] = ConfigRecord({"header": before["header"], "memory": data})

    return attack


def first(model: Params, value: Any) -> dict[str, Any]:
    """The model with another value for its first tensor."""
    return {**model, next(iter(model)): value}


def _with(up: WeightsUp, w: Any) -> WeightsUp:
    return replace(up, w=w)


def without_header(content: RecordDict) -> None:
    """The reply has no header."""
    del content["reply"]


TENSOR = re.compile(r'\["t","float32",(\[[0-9,]+\])\]')


def shape(*sides: int) -> Callable[[str], str]:
    """The first tensor is said to have another shape."""
    text = ",".join(map(str, sides))
    return lambda before: TENSOR.sub(f'["t","float32",[{text}]]', before, count=1)


def as_bitmap(text: str) -> str:
    """The first tensor is said to be sparse, with a bit per value and one value."""
    return TENSOR.sub(
        lambda found: f'["s","float32",[{32 * math.prod(json.loads(found[1]))}],"bitmap",1]', text, count=1
    )


def first_key(text: str) -> str:
    """The first name of a tensor is a list."""
    return re.sub(r'(\["d",\[\[)"[^"]+"', r'\1["l",[]]', text, count=1)


NOISE = torch.Generator().manual_seed(0)
FORGED = "\x1b[2J\x1b[H\x1b]0;owned\x07 failed\nround 10/10  acc 100.0%"
# Each with the code of the failure.
ATTACKS: dict[str, tuple[Attack, str]] = {
    "a thousand times as much": (weights(lambda t: 1000 * t), "client.too-far"),
    "the largest float everywhere": (weights(lambda t: torch.full_like(t, 3.4e38)), "client.too-far"),
    "ten times the opposite": (weights(lambda t: -10 * t), "client.too-far"),
    "random weights": (weights(lambda t: torch.randn(t.shape, generator=NOISE)), "client.too-far"),
    "zeros for 2^53 samples": (
        sending(lambda up: WeightsUp({k: 0 * v for k, v in up.w.items()}, 2**53)),
        "client.bad-upload",
    ),
    "one sample more than it has": (sending(lambda up: replace(up, n=up.n + 1)), "client.bad-upload"),
    "bool weights": (weights(lambda t: t > 0), "client.bad-upload"),
    "int64 weights": (weights(lambda t: t.long()), "client.bad-upload"),
    "float16 weights": (weights(lambda t: t.half()), "client.bad-upload"),
    "float64 weights": (weights(lambda t: t.double()), "client.bad-upload"),
    "n = True": (sending(lambda up: replace(up, n=True)), "client.bad-upload"),
    "n = -1000": (sending(lambda up: replace(up, n=-1000)), "client.bad-upload"),
    "n = 10^30": (sending(lambda up: replace(up, n=10**30)), "client.bad-upload"),
    "another shape": (sending(lambda up: replace(up, w=first(up.w, torch.zeros(7)))), "client.bad-upload"),
    "a missing tensor": (sending(lambda up: replace(up, w=dict(list(up.w.items())[1:]))), "client.bad-upload"),
    "a string for the weights": (sending(lambda up: _with(up, "weights")), "client.bad-upload"),
    "the class of the server's message": (sending(lambda up: WeightsDown(up.w)), "client.bad-upload"),
    "a sparse tensor for the weights": (
        sending(lambda up: _with(up, Sparse((2,), torch.tensor([0]), torch.ones(1)))),
        "client.bad-upload",
    ),
    "NaN": (weights(lambda t: t * math.nan), "client.not-finite"),
    "infinity": (weights(lambda t: t + math.inf), "client.not-finite"),
    "100,000 levels": (tree(lambda text: "[" * 100_000), "client.unreadable"),
    "a tensor of 2^62 values": (tree(shape(2**62, 0)), "client.unreadable"),
    "a tensor of 2^62 bytes": (tree(shape(2**60, 4)), "client.unreadable"),
    "a key that cannot be hashed": (tree(first_key), "client.unreadable"),
    "a bitmap for no values": (tree(as_bitmap), "client.unreadable"),
    "steps = 1.7e308": (reply(metrics={"steps": 1.7e308}), "client.bad-upload"),
    "odd names of metrics": (reply(metrics={"\x1b[31mloss": 1.0, "<script>": 2.0}), "client.bad-upload"),
    "a metric of no method": (reply(metrics={"steps": 1.0, "loss_owned": 2.0}), "client.bad-upload"),
    "a loss of 1e300": (reply(metrics={"steps": 1.0, "loss_supervised": 1e300}), "client.bad-upload"),
    "200,000 metrics": (reply(metrics={f"m{k}": 0.0 for k in range(200_000)}), "client.unreadable"),
    "100 metrics": (reply(metrics={f"m{k}": 0.0 for k in range(100)}), "client.bad-upload"),
    "a list for a metric": (reply(metrics={"steps": [1]}), "client.unreadable"),
    "escape codes and a forged line": (
        reply(failure={"code": "no code\x1b", "reason": FORGED, "detail": "\x1b[31m" + "x" * 10_000_000}),
        "client.unreadable",
    ),
    "a short failure with escape codes": (
        reply(failure={"code": "x\n", "reason": FORGED + "y" * 5000, "detail": FORGED * 100}),
        "client.failed",
    ),
    "200,000 bytes of memory": (memory(b"m" * 200_000), "client.too-much-memory"),
    "no header": (without_header, "client.unreadable"),
}
# Its sender's upload of this round counts, and its later rounds fail, since the site finds no such memory.
FALSE_MEMORY = memory(b"../../../../etc/passwd")
IN_TURN = [*(attack for attack, _ in ATTACKS.values()), FALSE_MEMORY]
