"""The messages of secure aggregation, as every transport carries them; bytes are written in hexadecimal digits.

A round has four exchanges: keys, shares, the work itself with a masked upload, and what removes the masks of the sum.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class KeysDown:
    """Asks a client for new keys; `session` names the run and the round."""

    session: str


@dataclass(frozen=True)
class KeysUp:
    """Public keys of a client for one round, signed."""

    encryption: str
    mask: str
    signature: str


@dataclass(frozen=True)
class SharesDown:
    """The keys of all clients that take part."""

    keys: dict[int, KeysUp]


@dataclass(frozen=True)
class SharesUp:
    """Shares of the client's secrets, encrypted for each peer."""

    sealed: dict[int, str]


@dataclass(frozen=True)
class MaskDown:
    """The method's own message, and the shares that peers sent to this client."""

    down: Any
    inbox: dict[int, str]


@dataclass(frozen=True)
class MaskedUp:
    """The upload as masked whole numbers: noise to everybody without the masks."""

    words: Tensor


@dataclass(frozen=True)
class RevealDown:
    """Which clients' masked uploads arrived."""

    arrived: tuple[int, ...]


@dataclass(frozen=True)
class RevealUp:
    """For each client a share of one of its secrets, and which."""

    shares: dict[int, tuple[str, str]]


@dataclass(frozen=True)
class SecureMemory:
    """What a client keeps between the exchanges: the method's memory, and the secrets of the round."""

    own: Any
    had: bool  # whether the method had a memory before the round
    secret: str | None


def in_words(up: object) -> tuple[str, ...]:
    """What a client sends in one of the exchanges, for its journal; nothing for any other message."""
    if isinstance(up, KeysUp):
        return ("public keys of this round, signed",)
    if isinstance(up, SharesUp):
        return (f"encrypted shares for {len(up.sealed)} others",)
    if isinstance(up, MaskedUp):
        return ("update behind masks",)
    if isinstance(up, RevealUp):
        kinds = [kind for kind, _ in up.shares.values()]
        return tuple(f"shares of the {kind} of {kinds.count(kind)} clients" for kind in sorted(set(kinds)))
    return ()


DOWNS = KeysDown, SharesDown, MaskDown, RevealDown
MESSAGES = (*DOWNS, KeysUp, SharesUp, MaskedUp, RevealUp, SecureMemory)
