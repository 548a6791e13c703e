"""Whom the hub's gateway lets in, which requests it passes on, and what of them."""

import ipaddress
import re
from collections import Counter

import h11

PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")  # no query, no encoded letters, no dots
HEALTH = b"/health"  # a fixed answer: whether the hub runs, and what time it is there
# Of a request. Of the framing, h11 has checked the length; all else belongs to one connection only.
HEADERS = re.compile(rb"accept|content-length|content-type|traceparent|user-agent|flwr-[a-z-]+")
DROPPED = (b"connection", b"date", b"keep-alive", b"server", b"trailer", b"upgrade")  # of an answer

LONGEST_HEAD = 16 * 1024  # bytes of a request's first line and headers
LONGEST_BODY = 64 * 2**20  # bytes; Flower cuts arrays into objects of 5 MiB
LARGE_BODY = 2**20  # bytes; the SuperLink holds a body in memory before it knows the sender


CONNECTIONS, PER_ADDRESS = 1000, 400  # a site uses about ten; several may share an address
STRANGERS, PER_STRANGER = 500, 100  # the same for addresses from which no request was accepted yet
KNOWN = 10_000  # addresses that are remembered


class Admission:
    """Who may open another connection. Strangers cannot use up those of addresses whose requests were accepted."""

    def __init__(self) -> None:
        """No site is connected or known."""
        self._open: Counter[str] = Counter()
        self._known: set[str] = set()

    def enter(self, address: str) -> bool:
        """Count a connection, unless there are too many."""
        who = _holder(address)
        strange = who not in self._known
        strangers = sum(count for other, count in self._open.items() if other not in self._known) if strange else 0
        full = self._open[who] >= (PER_STRANGER if strange else PER_ADDRESS) or strangers >= STRANGERS
        if full or self._open.total() >= CONNECTIONS:
            self._open += Counter()  # without the addresses that have none
            return False
        self._open[who] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection has ended."""
        self._open[_holder(address)] -= 1
        self._open += Counter()

    def trust(self, address: str) -> None:
        """A request from this address was signed by a site."""
        if len(self._known) < KNOWN:
            self._known.add(_holder(address))

    def knows(self, address: str) -> bool:
        """Whether a request from this address was ever signed by a site."""
        return _holder(address) in self._known


def _holder(address: str) -> str:
    """Whom an address belongs to: with IPv6, everyone has 2^64 of them."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


class RefusedError(Exception):
    """A request that gets this status and nothing else."""

    def __init__(self, status: int) -> None:
        """`status` is HTTP's."""
        super().__init__(status)
        self.status = status


def checked(request: h11.Request) -> list[tuple[bytes, bytes]]:
    """The headers to pass on; raises RefusedError for everything but an order of the fleet interface."""
    if request.method != b"POST" or not PATH.fullmatch(request.target):
        raise RefusedError(403)
    if request.http_version != b"1.1":
        raise RefusedError(505)
    if sum(len(name) + len(value) for name, value in request.headers) > LONGEST_HEAD:
        raise RefusedError(431)
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        raise RefusedError(411)  # two statements of a body's length are a known way to hide a request in it
    given = [(name, value) for name, value in request.headers if HEADERS.fullmatch(name)]
    lengths = [int(value) for name, value in given if name == b"content-length"]
    if len(lengths) != 1:
        raise RefusedError(411)
    if lengths[0] > LONGEST_BODY:
        raise RefusedError(413)
    return [*given, (b"host", b"127.0.0.1")]


def passed_back(response: h11.Response) -> list[tuple[bytes, bytes]]:
    """The headers of the SuperLink's answer that the site gets."""
    return [(name, value) for name, value in response.headers if name not in DROPPED]
