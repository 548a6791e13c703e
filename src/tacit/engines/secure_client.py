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
from tacit.protect import secure
from tacit.protect.secure import Keys, Secret

Train = Callable[[ClientTask], ClientResult]
SAID = ("steps", "sampling_rate")  # metrics that leave: all others are numbers about one client


def answer(job: Job, client: int, task: ClientTask, train: Train) -> ClientResult:
    """The reply to one of the server's messages; `train` does the method's own work."""
    kept = SecureMemory(None, False, None) if task.memory is None else job.codec.decode(task.memory, job.device)
    down = task.down
    if isinstance(down, KeysDown):
        secret, public = secure.advertise(identity(job, client), client, down.session.encode())
        return _reply(job, replace(kept, had=kept.had or kept.own is not None), secret, keys_up(public))
    secret = read_secret(kept.secret)
    if isinstance(down, SharesDown):
        keys = {k: keys_of(each) for k, each in down.keys.items()}
        secret, sealed = secure.share(secret, keys, pinned(job, keys))
        return _reply(job, kept, secret, SharesUp({peer: each.hex() for peer, each in sealed.items()}))
    if isinstance(down, MaskDown):
        return _masked(job, task, kept, secret, down, train)
    assert isinstance(down, RevealDown)
    _, revealed = secure.unmask(secret, down.arrived)
    up = RevealUp({peer: (kind, share.hex()) for peer, (kind, share) in revealed.items()})
    if kept.own is None and not kept.had:
        return ClientResult(up, None, {})
    return ClientResult(up, job.codec.encode(SecureMemory(kept.own, True, None)), {})


def _masked(
    job: Job,
    task: ClientTask,
    kept: SecureMemory,
    secret: Secret,
    down: MaskDown,
    train: Train,
) -> ClientResult:
    memory = job.codec.encode(kept.own) if kept.had else None
    result = train(ClientTask(down.down, memory, task.evaluate))
    words = job.sum_form.encode(result.up, len(secret.keys))
    secret, masked = secure.mask(secret, {peer: bytes.fromhex(each) for peer, each in down.inbox.items()}, words)
    own = None if result.memory is None else job.codec.decode(result.memory, job.device)
    reply = _reply(job, SecureMemory(own, kept.had, None), secret, MaskedUp(from_numpy(masked.view("int64"))))
    logged = {name: value for name, value in result.metrics.items() if name in (*SAID, "local_accuracy")}
    return replace(reply, metrics=logged)


def _reply(job: Job, kept: SecureMemory, secret: Secret, up: object) -> ClientResult:
    return ClientResult(up, job.codec.encode(replace(kept, secret=write_secret(secret))), {})


def identity(job: Job, client: int) -> Ed25519PrivateKey:
    """The identity key of a simulated client, from the run's seed: everything is on one machine."""
    number = job.streams.number("identity", client=client)
    return Ed25519PrivateKey.from_private_bytes(sha256(str(number).encode()).digest())


def pinned(job: Job, clients: Iterable[int]) -> dict[int, bytes]:
    """The public identity keys of simulated clients."""
    return {k: identity(job, k).public_key().public_bytes_raw() for k in clients}


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
