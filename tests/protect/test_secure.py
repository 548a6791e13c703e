"""Secure aggregation, step by step: what the server sees, who may be missing, what is refused, what it costs."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp

from tacit.protect import secure, shamir
from tacit.protect.config import threshold
from tacit.protect.fixed_point import FRACTION, OutOfRangeError, Words, decode, encode
from tacit.protect.secure import Keys, Secret
from tacit.protect.signing import Verifier
from tests.refusals import refused

SESSION = b"run 1, round 3"
LENGTH = 50


def identity(client: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([client + 1]) * 32)


def pinned(clients: Collection[int]) -> dict[int, Verifier]:
    return {k: identity(k).public_key() for k in clients}


@dataclass
class Round:
    """A round up to the masked vectors."""

    secrets: dict[int, Secret]
    keys: dict[int, Keys]
    shared: set[int]
    masked: dict[int, Words]

    def finish(self, missing: Collection[int] = ()) -> Words:
        told = {k: secure.unmask(self.secrets[k], self.masked)[1] for k in self.masked if k not in missing}
        return secure.total(self.masked, self.keys, self.shared, told, SESSION)


def begin(vectors: Mapping[int, Words], *, no_share: Collection[int] = (), no_vector: Collection[int] = ()) -> Round:
    made = {k: secure.advertise(identity(k), k, SESSION) for k in vectors}
    keys = {k: public for k, (_, public) in made.items()}
    shared = {k: secure.share(made[k][0], keys, pinned(vectors)) for k in vectors if k not in no_share}
    masked = {}
    held = {}
    for k, (secret, _) in shared.items():
        inbox = {peer: sealed[k] for peer, (_, sealed) in shared.items() if peer != k}
        held[k], found = secure.mask(secret, inbox, vectors[k])
        if k not in no_vector:
            masked[k] = found
    return Round(held, keys, set(shared), masked)


def vectors(clients: int, seed: int = 0) -> dict[int, Words]:
    draw = np.random.default_rng(seed)
    return {k: draw.integers(0, 2**64, LENGTH, dtype=np.uint64) for k in range(clients)}


def added(some: Mapping[int, Words], clients: Collection[int]) -> Words:
    total = np.zeros(LENGTH, dtype=np.uint64)
    for k in clients:
        total = total + some[k]
    return total


@pytest.mark.parametrize("clients", [3, 4, 7, 10])
def test_the_sum_is_exact(clients: int) -> None:
    given_vectors = vectors(clients)
    assert np.array_equal(begin(given_vectors).finish(), added(given_vectors, range(clients)))


# Of seven clients five must stay.
@pytest.mark.parametrize("missing", [(), (0,), (6,), (2, 5)])
@pytest.mark.parametrize("stage", ["share", "vector", "unmask"])
def test_the_sum_is_exact_when_clients_drop_out(stage: str, missing: tuple[int, ...]) -> None:
    assert threshold(7) == 5
    some = vectors(7)
    lost = {f"no_{stage}": missing} if stage != "unmask" else {}
    found = begin(some, **lost).finish(missing if stage == "unmask" else ())
    counted = range(7) if stage == "unmask" else [k for k in range(7) if k not in missing]
    assert np.array_equal(found, added(some, counted))


def test_one_client_may_drop_out_at_every_stage_of_ten() -> None:
    some = vectors(10)
    found = begin(some, no_share=[1], no_vector=[4]).finish(missing=[8])
    assert np.array_equal(found, added(some, [k for k in range(10) if k not in (1, 4)]))


def test_too_few_survivors_are_refused() -> None:
    some = vectors(7)
    with refused("secure.too-few"):
        begin(some, no_share=[0, 1, 2])
    with refused("secure.too-few"):
        begin(some, no_vector=[0, 1, 2]).finish()
    with refused("secure.too-few"):
        begin(some).finish(missing=[0, 1, 2])
    with refused("secure.too-few"):
        begin(vectors(2))


@pytest.mark.parametrize("clients", range(3, 40))
def test_no_server_gets_both_secrets_from_fewer_than_a_third_helpers(clients: int) -> None:
    t, helpers = threshold(clients), math.ceil(clients / 3) - 1
    assert 2 * t > clients + helpers
    assert 3 <= t <= clients


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and masks from a seed, so that a test of randomness always has the same outcome."""
    draw = np.random.default_rng(7)
    monkeypatch.setattr("tacit.protect.secure.secrets.token_bytes", draw.bytes)
    monkeypatch.setattr(secure, "new_key", lambda: X25519PrivateKey.from_private_bytes(draw.bytes(32)))


@pytest.mark.usefixtures("fixed_keys")
def test_a_masked_vector_looks_like_noise() -> None:
    words = np.zeros(20_000, dtype=np.uint64)
    masked = begin(dict.fromkeys(range(3), words)).masked[1]
    counts = np.bincount(np.frombuffer(masked.tobytes(), dtype=np.uint8), minlength=256)
    assert chisquare(counts).pvalue > 1e-4


@pytest.mark.usefixtures("fixed_keys")
def test_masked_vectors_of_different_inputs_have_one_distribution() -> None:
    zeros, ones = (np.full(20_000, value, dtype=np.uint64) for value in (0, 2**40))
    first, second = (begin({0: each, 1: zeros, 2: zeros}).masked[0] for each in (zeros, ones))
    assert ks_2samp(first.astype(np.float64), second.astype(np.float64)).pvalue > 1e-4


def test_a_mask_is_the_same_for_the_same_seed_only() -> None:
    one, same, other = (secure.stream(bytes([seed]) * 32, 8) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    counts = np.bincount(np.frombuffer(secure.stream(b"s" * 32, 20_000).tobytes(), dtype=np.uint8), minlength=256)
    assert chisquare(counts).pvalue > 1e-4


def test_the_sum_without_a_reveal_is_hidden() -> None:
    made = begin({k: np.zeros(LENGTH, dtype=np.uint64) for k in range(3)})
    assert added(made.masked, made.masked).any()  # own masks remain


def test_a_forged_key_is_refused() -> None:
    some = vectors(4)
    made = {k: secure.advertise(identity(k), k, SESSION) for k in some}
    keys = {k: public for k, (_, public) in made.items()}
    theirs = secure.advertise(identity(9), 2, SESSION)[1]  # the server's own keys in the place of client 2's
    replayed = secure.advertise(identity(2), 2, b"run 1, round 2")[1]
    swapped = replace(keys[2], encryption=keys[2].mask, mask=keys[2].encryption)
    for forged in (theirs, replayed, swapped, replace(keys[2], mask=keys[1].mask)):
        with refused("secure.forged-key"):
            secure.share(made[0][0], keys | {2: forged}, pinned(some))
    with refused("secure.forged-key"):
        secure.share(made[0][0], keys, {k: pinned(some)[k] for k in (0, 1, 3)})


def test_changed_shares_are_refused() -> None:
    some = vectors(3)
    made = {k: secure.advertise(identity(k), k, SESSION) for k in some}
    keys = {k: public for k, (_, public) in made.items()}
    shared = {k: secure.share(made[k][0], keys, pinned(some)) for k in some}
    inbox = {peer: shared[peer][1][0] for peer in (1, 2)}
    for bad in (inbox[1][:-1] + b"x", shared[1][1][2], b"", inbox[2]):
        with refused("secure.bad-shares"):
            secure.mask(shared[0][0], inbox | {1: bad}, some[0])


def test_a_client_masks_one_vector_in_a_round() -> None:
    made = begin(vectors(3))
    with refused("secure.masked"):
        secure.mask(made.secrets[0], {}, vectors(3)[0])


def test_a_client_reveals_shares_once_and_only_one_of_each_peer() -> None:
    made = begin(vectors(7), no_vector=[3])
    secret, told = secure.unmask(made.secrets[0], made.masked)
    assert {peer: kind for peer, (kind, _) in told.items()} == {
        peer: secure.MASK_KEY if peer == 3 else secure.OWN_MASK for peer in range(7)
    }
    with refused("secure.revealed"):
        secure.unmask(secret, [0, 1, 2, 3, 4])


def test_wrong_shares_do_not_give_a_wrong_sum() -> None:
    made = begin(vectors(7), no_vector=[3])
    told: dict[int, dict[int, tuple[str, bytes]]] = {
        k: secure.unmask(made.secrets[k], made.masked)[1] for k in made.masked
    }
    told[0][3] = (secure.MASK_KEY, told[1][3][1])
    with refused("secure.bad-shares"):
        secure.total(made.masked, made.keys, made.shared, told, SESSION)


def test_what_it_costs() -> None:
    n = 7
    made = {k: secure.advertise(identity(k), k, SESSION) for k in range(n)}
    keys = {k: public for k, (_, public) in made.items()}
    _, sealed = secure.share(made[0][0], keys, pinned(range(n)))
    # Keys: 2·32 and a signature of 64. Shares: nonce 12, two shares of 66, tag 16, for each peer. A number: 8 bytes.
    assert len(keys[0].encryption + keys[0].mask + keys[0].signature) == 128
    assert {len(each) for each in sealed.values()} == {160}
    assert begin(vectors(3)).masked[0].nbytes == 8 * LENGTH


@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 8), st.randoms())
@settings(max_examples=30, deadline=None)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, t: int, more: int, order: Any) -> None:
    holders = list(range(t + more))
    shares = shamir.split(secret, holders, t)
    order.shuffle(holders)
    assert shamir.join({k: shares[k] for k in holders[:t]}, t) == secret
    with pytest.raises(ValueError, match="needs"):
        shamir.join({k: shares[k] for k in holders[: t - 1]}, t)


def test_one_share_fewer_says_nothing() -> None:
    # With t - 1 shares every secret is possible: a polynomial through them and any value at 0 exists.
    first, second = (shamir.split(bytes([value]) * 32, range(3), 2)[0] for value in (1, 2))
    assert first != second
    assert len({shamir.split(b"s" * 32, range(3), 2)[0] for _ in range(20)}) == 20


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20), st.integers(1, 1000))
@settings(max_examples=50, deadline=None)
def test_fixed_point_keeps_its_promise(values: list[float], weight: int) -> None:
    given_values = torch.tensor(values, dtype=torch.float64)
    found = decode(encode([given_values], weight, 100))
    assert float((found - given_values * weight).abs().max()) <= 2.0 ** -(FRACTION + 1) + 1e-9


def test_a_sum_in_fixed_point_wraps_around_to_the_right_number() -> None:
    parts = [torch.tensor([1.5, -2.25]), torch.tensor([-4.0, 0.5]), torch.tensor([0.25, -7.0])]
    total = sum((encode([part], 2, 3) for part in parts), np.zeros(2, dtype=np.uint64))
    assert decode(total).tolist() == [-4.5, -17.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e12])
def test_numbers_that_do_not_fit_are_refused(bad: float) -> None:
    with pytest.raises(OutOfRangeError):
        encode([torch.tensor([1.0, bad])], 1.0, 3)
