"""A client's part in secure aggregation: what it answers in each of the four exchanges of a round."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import from_numpy

from tacit.engines.job import ClientResult, ClientTask, Job
from tacit.engines.secure_messages import (
    KeysDown,
    KeysUp,
    MaskDown,
    MaskedUp,
    RevealDown,
    RevealUp,
    SecureMemory,
    SharesDown,
    SharesUp,
)
from tacit.engines.secure_sessions import MASK, REVEAL, SHARES
from tacit.protect import secure
from tacit.protect.config import threshold
from tacit.protect.secure import Keys, Secret
from tacit.protect.signing import Signer, Verifier

Train = Callable[[ClientTask], ClientResult]
SAID = ("steps", "sampling_rate")  # metrics that leave: all others are numbers about one client


def answer(job: Job, round: int, client: int, task: ClientTask, train: Train) -> ClientResult:
    """The reply to one of the server's messages; `train` does the method's own work."""
    kept = SecureMemory(None, False, None) if task.memory is None else job.codec.decode(task.memory, job.device)
    secrets, down = _Secrets(job, round, kept), task.down
    if isinstance(down, KeysDown):
        secrets.begin(down.session)
        secret, public = secure.advertise(signer(job, client), client, down.session.encode())
        return _reply(job, kept, secrets.put(secret), keys_up(public))
    if isinstance(down, SharesDown):
        keys = {k: keys_of(each) for k, each in down.keys.items()}
        secret, sealed = secure.share(secrets.take(SHARES), keys, identities(job, keys), least(job))
        return _reply(job, kept, secrets.put(secret), SharesUp({peer: each.hex() for peer, each in sealed.items()}))
    if isinstance(down, MaskDown):
        return _masked(job, task, kept, secrets, down, train)
    assert isinstance(down, RevealDown)
    _, revealed = secure.unmask(secrets.take(REVEAL), down.arrived)
    secrets.open(down.arrived)
    return _reply(job, kept, None, RevealUp({peer: (kind, share.hex()) for peer, (kind, share) in revealed.items()}))


def _masked(
    job: Job, task: ClientTask, kept: SecureMemory, secrets: "_Secrets", down: MaskDown, train: Train
) -> ClientResult:
    secret = secrets.take(MASK)
    memory = job.codec.encode(kept.own) if kept.had else None
    result = train(ClientTask(down.down, memory, task.evaluate))
    words = job.sum_form.encode(result.up, len(secret.keys))
    secret, masked = secure.mask(secret, {peer: bytes.fromhex(each) for peer, each in down.inbox.items()}, words)
    own = None if result.memory is None else job.codec.decode(result.memory, job.device)
    kept = replace(kept, own=own, had=kept.had or own is not None)
    reply = _reply(job, kept, secrets.put(secret), MaskedUp(from_numpy(masked.view("int64"))))
    logged = {name: value for name, value in result.metrics.items() if name in (*SAID, "local_accuracy")}
    return replace(reply, metrics=logged)


def _reply(job: Job, kept: SecureMemory, secret: str | None, up: object) -> ClientResult:
    """A reply with what the client remembers: the method's memory, and in a simulation also its secrets."""
    if kept.own is None and not kept.had and secret is None:
        return ClientResult(up, None, {})
    return ClientResult(up, job.codec.encode(replace(kept, secret=secret)), {})


class _Secrets:
    """The secrets of a round: in the record on a real client's disk, in the memory of a simulated one."""

    def __init__(self, job: Job, round: int, kept: SecureMemory) -> None:
        self._round, self._kept = round, kept.secret
        self._sessions = None if job.peers is None else job.peers.sessions

    def begin(self, session: str) -> None:
        """Begin a session."""
        if self._sessions is not None:
            self._sessions.begin(self._round, session)

    def take(self, step: str) -> Secret:
        """The secrets for a step; a real client gets them once."""
        return read_secret(self._kept if self._sessions is None else self._sessions.take(self._round, step))

    def put(self, secret: Secret) -> str | None:
        """Store them for the next step; what the memory of a simulated client must hold."""
        text = write_secret(secret)
        if self._sessions is None:
            return text
        self._sessions.put(secret.session.decode(), text)
        return None

    def open(self, arrived: Iterable[int]) -> None:
        """Note whose sum the client helps to open."""
        if self._sessions is not None:
            self._sessions.open(self._round, tuple(arrived))


def least(job: Job) -> int:
    """How many clients must stay in a round: two thirds of those that the run asks for, whatever the server says."""
    return threshold(job.cohort)


def signer(job: Job, client: int) -> Signer:
    """The private identity key of a client."""
    if job.peers is None:
        return identity(job, client)
    assert job.peers.signer is not None, "the server has no part in this"
    return job.peers.signer


def identities(job: Job, clients: Iterable[int]) -> dict[int, Verifier]:
    """The public identity keys of clients; those that are not known are missing."""
    if job.peers is None:
        return {k: identity(job, k).public_key() for k in clients}
    return {k: job.peers.identities[k] for k in clients if k in job.peers.identities}


def identity(job: Job, client: int) -> Ed25519PrivateKey:
    """The identity key of a simulated client, from the run's seed: everything is on one machine."""
    number = job.streams.number("identity", client=client)
    return Ed25519PrivateKey.from_private_bytes(sha256(str(number).encode()).digest())


def keys_up(given: Keys) -> KeysUp:
    """Public keys as a message."""
    return KeysUp(given.encryption.hex(), given.mask.hex(), given.signature.hex())


def keys_of(given: KeysUp) -> Keys:
    """Public keys from a message."""
    return Keys(*(bytes.fromhex(each) for each in (given.encryption, given.mask, given.signature)))


def write_secret(secret: Secret) -> str:
    """A client's secrets as text, for its memory."""
    return json.dumps(asdict(secret), default=lambda value: value.hex())


def read_secret(text: str | None) -> Secret:
    """The secrets that `write_secret` wrote."""
    if text is None:
        raise ValueError("this client has no secrets of the round")
    values = json.loads(text)
    plain = {name: bytes.fromhex(values[name]) for name in ("session", "encryption_key", "mask_key", "own_mask")}
    keys = {int(k): keys_of(KeysUp(**found)) for k, found in values["keys"].items()}
    shares = None
    if values["shares"] is not None:
        shares = {int(k): (bytes.fromhex(key), bytes.fromhex(own)) for k, (key, own) in values["shares"].items()}
    return Secret(**values | plain | {"keys": keys, "shares": shares})
