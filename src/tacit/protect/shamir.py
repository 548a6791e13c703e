"""Shamir's secret sharing: any t of n shares give the secret, fewer say nothing about it."""

import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**521 - 1  # a Mersenne prime above every secret of 64 bytes
SECRET = 32  # bytes of a secret
SHARE = 66  # bytes of a share


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for every holder: the value at holder + 1 of a random polynomial of degree t - 1, the secret at 0."""
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    factors = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _value(factors, holder + 1).to_bytes(SHARE) for holder in holders}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from the shares of at least `threshold` holders, by Lagrange interpolation at 0."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, and the secret needs {threshold}")
    points = {holder + 1: int.from_bytes(share) for holder, share in list(shares.items())[:threshold]}
    total = 0
    for x, y in points.items():
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    secret = total % PRIME
    if secret >> (8 * SECRET):
        raise ValueError("the shares do not belong to one secret")
    return secret.to_bytes(SECRET)


def _value(factors: list[int], x: int) -> int:
    total = 0
    for factor in reversed(factors):
        total = (total * x + factor) % PRIME
    return total
