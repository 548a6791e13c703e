"""Secure aggregation (Bonawitz et al., CCS 2017): the server learns the sum of the clients' vectors and nothing else.

    advertise     a client makes two key pairs and signs their public halves with its identity key
    share         it checks everybody's signatures, and sends each peer an encrypted share of its two secrets
    mask          it sends its vector plus a mask of its own plus one for every pair of clients; pairs cancel in the sum
    unmask        for each peer it reveals one share: of the own mask if the peer's vector arrived, else of its mask key

Functions are pure but for the operating system's random numbers; nothing here knows a network. `t` shares restore a
secret. A server that lies to clients about who arrived gets both secrets of no client if 2t > n + m, where m of n
clients help it; t = ⌊2n/3⌋ + 1 allows for m < n/3. At least three vectors are in every sum.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import TacitError
from tacit.protect import shamir
from tacit.protect.config import FEWEST, threshold
from tacit.protect.fixed_point import BYTES, Words
from tacit.protect.signing import Signer, Verifier

KEY = 32  # bytes of a key or seed
NONCE = 12
MASK_KEY, OWN_MASK = "mask key", "own mask"  # the two secrets of a client


class SecureError(TacitError):
    """A step of the protocol that must not go on."""


@dataclass(frozen=True)
class Keys:
    """A client's public keys of a round, for encryption and for masks, signed with its identity key."""

    encryption: bytes
    mask: bytes
    signature: bytes


@dataclass(frozen=True)
class Secret:
    """What a client keeps from step to step of a round. It must not leave the client."""

    client: int
    session: bytes  # of this run and round: what is signed or encrypted for another cannot be used again
    encryption_key: bytes
    mask_key: bytes
    keys: Mapping[int, Keys]  # of all that take part, after `share`
    own_mask: bytes = b""
    threshold: int = 0
    shares: Mapping[int, tuple[bytes, bytes]] | None = None  # from each peer: of its mask key, of its own mask
    masked: bool = False  # a second vector under the same masks would show the difference of both
    revealed: bool = False


def advertise(identity: Signer, client: int, session: bytes) -> tuple[Secret, Keys]:
    """New keys of a client for one round."""
    mine, mine_for_masks = new_key(), new_key()
    encryption, mask = (key.public_key().public_bytes_raw() for key in (mine, mine_for_masks))
    signed = Keys(encryption, mask, identity.sign(_statement(session, client, encryption, mask)))
    return Secret(client, session, mine.private_bytes_raw(), mine_for_masks.private_bytes_raw(), {}), signed


def new_key() -> X25519PrivateKey:
    """A new private key."""
    return X25519PrivateKey.generate()


def share(
    secret: Secret, keys: Mapping[int, Keys], identities: Mapping[int, Verifier], least: int = FEWEST
) -> tuple[Secret, dict[int, bytes]]:
    """Encrypted shares for every peer, after the signatures of all were checked against the pinned identities.

    Raises SecureError if a key is forged, used twice, or if fewer than `least` clients take part.
    """
    if len(keys) < threshold(0, least) or secret.client not in keys:
        problem = f"{len(keys)} clients take part in this round, and a sum hides each of them only from {least} on"
        raise SecureError(problem, "wait for more clients", code="secure.too-few", resumable=True)
    check_keys(keys, identities, secret.session)
    t, own_mask = threshold(len(keys), least), secrets.token_bytes(KEY)
    parts = [shamir.split(each, keys, t) for each in (secret.mask_key, own_mask)]
    mine = {secret.client: (parts[0][secret.client], parts[1][secret.client])}
    sealed = {
        peer: _seal(secret, keys[peer], peer, parts[0][peer] + parts[1][peer]) for peer in keys if peer != secret.client
    }
    return replace(secret, keys=dict(keys), own_mask=own_mask, threshold=t, shares=mine), sealed


def check_keys(keys: Mapping[int, Keys], identities: Mapping[int, Verifier], session: bytes) -> None:
    """Refuse keys that were not signed for this round by who they are said to come from."""
    seen = [key for each in keys.values() for key in (each.encryption, each.mask)]
    if len(set(seen)) < len(seen):
        raise SecureError("two clients have the same key", "start the round again", code="secure.forged-key")
    for client, given in keys.items():
        try:
            identities[client].verify(given.signature, _statement(session, client, given.encryption, given.mask))
        except (KeyError, ValueError, InvalidSignature):
            raise SecureError(
                f"the keys of client {client} do not carry its signature",
                "do not go on: somebody may have put other keys in their place",
                code="secure.forged-key",
            ) from None


def mask(secret: Secret, inbox: Mapping[int, bytes], words: Words) -> tuple[Secret, Words]:
    """The masked vector, and the secret with the shares that peers sent; `inbox` holds one of each peer that shared.

    Raises SecureError if a share was not encrypted for this client and round, if too few peers shared, or if a vector
    was masked before.
    """
    if secret.masked:
        raise SecureError("a vector was masked before in this round", "start a new round", code="secure.masked")
    if len(inbox) + 1 < secret.threshold:
        problem = f"{len(inbox) + 1} clients have shared their keys, and this round needs {secret.threshold}"
        raise SecureError(problem, "start the round again", code="secure.too-few", resumable=True)
    shares = dict(secret.shares or {})
    for peer, sealed in inbox.items():
        opened = _open(secret, peer, sealed)
        shares[peer] = opened[: shamir.SHARE], opened[shamir.SHARE :]
    total = words + stream(secret.own_mask, len(words))
    for peer in inbox:
        total = _signed(
            total,
            stream(_pair_seed(secret.mask_key, secret.keys[peer].mask, secret.session), len(words)),
            plus=secret.client < peer,
        )
    return replace(secret, shares=shares, masked=True), total


def unmask(secret: Secret, arrived: Collection[int]) -> tuple[Secret, dict[int, tuple[str, bytes]]]:
    """For each peer one share: of its own mask if its vector arrived, else of its mask key; never both.

    Raises SecureError if too few vectors arrived, or not this client's own, or if shares of this round were revealed
    before.
    """
    known = secret.shares or {}
    if secret.revealed:
        raise SecureError("shares of this round were revealed before", "start a new round", code="secure.revealed")
    if len(arrived) < secret.threshold or not set(arrived) <= known.keys():
        problem = f"{len(arrived)} vectors arrived, and this round needs {secret.threshold}"
        raise SecureError(problem, "start the round again", code="secure.too-few", resumable=True)
    if secret.client not in arrived or not secret.masked:
        problem = "the server asks this client for shares, and does not count its vector"
        raise SecureError(problem, "start the round again", code="secure.not-counted", resumable=True)
    revealed = {peer: (OWN_MASK, own) if peer in arrived else (MASK_KEY, key) for peer, (key, own) in known.items()}
    return replace(secret, revealed=True), revealed


def total(
    masked: Mapping[int, Words],
    keys: Mapping[int, Keys],
    shared: Collection[int],
    revealed: Mapping[int, Mapping[int, tuple[str, bytes]]],
    session: bytes,
    least: int = FEWEST,
) -> Words:
    """The sum of the vectors that arrived, at the server.

    Args:
        masked: the masked vectors.
        keys: of all clients that advertised.
        shared: the clients whose shares went to their peers; all others have masked with them.
        revealed: what each client revealed in `unmask`.
        session: of this round.
        least: clients that must stay until the end, as in `share`.
    """
    t = threshold(len(keys), least)
    if len(revealed) < t or len(masked) < t:
        raise SecureError(
            f"{min(len(revealed), len(masked))} of {len(keys)} clients stayed to the end, and this round needs {t}",
            "start the round again",
            code="secure.too-few",
            resumable=True,
        )
    found: Words = np.sum(np.stack(list(masked.values())), axis=0, dtype=np.uint64)
    for client in masked:
        found = found - stream(_restored(client, OWN_MASK, revealed, t), len(found))
    for gone in set(shared) - masked.keys():
        key = _restored(gone, MASK_KEY, revealed, t)
        if X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() != keys[gone].mask:
            raise SecureError(
                f"the shares of client {gone}'s key do not fit it", "start the round again", code="secure.bad-shares"
            )
        for client in masked:
            between = stream(_pair_seed(key, keys[client].mask, session), len(found))
            found = _signed(found, between, plus=client > gone)  # takes away what `mask` of the client added
    return found


def _restored(client: int, kind: str, revealed: Mapping[int, Mapping[int, tuple[str, bytes]]], t: int) -> bytes:
    shares = {peer: each[client][1] for peer, each in revealed.items() if client in each and each[client][0] == kind}
    try:
        return shamir.join(shares, t)
    except (ValueError, OverflowError) as error:
        problem = f"the {kind} of client {client} cannot be restored ({error})"
        raise SecureError(problem, "start the round again", code="secure.bad-shares", resumable=True) from error


def stream(seed: bytes, count: int) -> Words:
    """That many uniform words modulo 2^64: the ChaCha20 key stream of a seed, which is used for one stream only."""
    encryptor = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(BYTES * count)), dtype="<u8").astype(np.uint64)


def _signed(values: Words, more: Words, *, plus: bool) -> Words:
    return values + more if plus else values - more


def _pair_seed(mine: bytes, theirs: bytes, session: bytes) -> bytes:
    return _derived(mine, theirs, b"mask" + session)


def _seal(secret: Secret, peer: Keys, to: int, content: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE)
    box = ChaCha20Poly1305(_derived(secret.encryption_key, peer.encryption, b"shares" + secret.session))
    return nonce + box.encrypt(nonce, content, _route(secret.client, to))


def _open(secret: Secret, sender: int, sealed: bytes) -> bytes:
    try:
        box = ChaCha20Poly1305(
            _derived(secret.encryption_key, secret.keys[sender].encryption, b"shares" + secret.session)
        )
        opened = box.decrypt(sealed[:NONCE], sealed[NONCE:], _route(sender, secret.client))
        if len(opened) != 2 * shamir.SHARE:
            raise ValueError("not two shares")
        return opened
    except (KeyError, ValueError, InvalidTag):
        raise SecureError(
            f"the shares from client {sender} are not for this client and round",
            "do not go on: somebody may have changed them",
            code="secure.bad-shares",
        ) from None


def _derived(mine: bytes, theirs: bytes, use: bytes) -> bytes:
    agreed = X25519PrivateKey.from_private_bytes(mine).exchange(X25519PublicKey.from_public_bytes(theirs))
    return HKDF(SHA256(), KEY, salt=None, info=use).derive(agreed)


def _route(sender: int, to: int) -> bytes:
    return sender.to_bytes(8) + to.to_bytes(8)


def _statement(session: bytes, client: int, encryption: bytes, mask: bytes) -> bytes:
    return b"tacit secure aggregation" + session + client.to_bytes(8) + encryption + mask
