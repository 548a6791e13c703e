"""Test samples that are training samples too, which makes a test too easy."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from tacit.federation import Federation


def count_copies(train: Tensor, test: Tensor) -> int:
    """How many test samples are equal to a training sample, value by value."""
    known = set(_digests(train)) if len(test) else set()
    return sum(digest in known for digest in _digests(test))


def in_federation(federation: Federation) -> tuple[int, int]:
    """How many test samples are also held by a client or by the server for training, and how many there are."""
    held = federation.pool.x[torch.unique(federation.order)]
    return count_copies(torch.cat([held, federation.server.labeled.x]), federation.test.x), len(federation.test)


def duplicates_sentence(count: int, tests: int) -> str:
    """What a person should know about the duplicates; nothing if there are none."""
    if not count:
        return ""
    return f"{count:,} of {tests:,} test samples are exact copies of training samples, so the test is too easy."


def _digests(x: Tensor) -> Iterator[bytes]:
    return (blake2b(row.tobytes(), digest_size=16).digest() for row in x.numpy())
