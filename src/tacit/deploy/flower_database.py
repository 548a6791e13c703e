"""What is read from the SuperLink's database, and the one thing that is changed in it.

`flwr` lists nodes without their keys and takes seconds. Flower promises no stability for the database: check this
module too before you widen `flower_cli.VERSIONS`.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 30.0  # seconds to wait while the SuperLink writes
_REMOVED = "unregistered"
_GRACE = 2  # times its heartbeat interval, a node counts as online after its last contact


@dataclass(frozen=True)
class Node:
    """A node that Flower knows; one that was removed is never accepted again."""

    id: int
    removed: bool
    connected: bool
    key: bytes  # PEM
    contact: float | None = None  # its last contact, in seconds since 1970; None if never


def nodes(database: Path) -> list[Node]:
    """All nodes that the SuperLink knows; none if its database cannot be read."""
    query = "SELECT node_id, status, online_until, heartbeat_interval, public_key FROM node"
    with suppress(sqlite3.Error), _opened(database, "ro") as connected:
        found = connected.execute(query).fetchall()
        return [
            # The database has signed numbers only.
            Node(
                id=id % 2**64,
                removed=status == _REMOVED,
                connected=status == "online" and (until or 0) > time.time(),
                key=key or b"",
                contact=_contact(until, interval) if status == "online" else until,
            )
            for id, status, until, interval, key in found
        ]
    return []


def _contact(until: float | None, interval: float | None) -> float | None:
    """When a node that is online until some time had its last contact."""
    return None if until is None else min(time.time(), until - _GRACE * (interval or 0))


def find_node(database: Path, key: Path) -> int | None:
    """The node that the SuperLink accepts by a public key."""
    public = _as_stored(key)
    return next((node.id for node in nodes(database) if node.key == public and not node.removed), None)


def release_key(database: Path, key: Path) -> bool:
    """Let the SuperLink accept a public key whose node was removed; whether there was one.

    Flower accepts no key twice, so a site whose node was removed could not come back with its key.
    """
    query = "UPDATE node SET public_key = NULL WHERE public_key = ? AND status = ?"
    with suppress(sqlite3.Error), _opened(database, "rw") as connected, connected:
        return connected.execute(query, [_as_stored(key), _REMOVED]).rowcount > 0
    return False


@contextmanager
def _opened(database: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode={mode}", uri=True, timeout=PATIENCE)) as connected:
        yield connected


def _as_stored(key: Path) -> bytes:
    """A public key in the form in which Flower stores it."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = serialization.load_ssh_public_key(key.read_bytes()).public_bytes(*form)
    return pem
