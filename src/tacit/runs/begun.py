"""What a run was begun with. Its settings and its data must still be the same when it is reopened."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tacit.data.split import partition
from tacit.data.split.split import Split, class_counts
from tacit.engines.job import Job
from tacit.runs import config as configs
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory, fingerprint


def is_as_begun(directory: RunDirectory, given: Mapping[str, Any], config: Config) -> bool:
    """Whether the config still determines the same model as when the run began."""
    if directory.schema() == 1:
        return directory.is_begun_with(fingerprint(given, ("engine", "track")))
    # Before configs were written in full, a given default counted too.
    as_written = {name: value for name, value in given.items() if name in configs.names_of(*configs.OUTCOME)}
    as_known = _known_to(given, config.tree(*configs.OUTCOME))
    return directory.is_begun_with(config.fingerprints().outcome, fingerprint(as_written), fingerprint(as_known))


def _known_to(file: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without sections and settings that a file does not have: they are newer, and at their defaults."""
    return {
        name: _known_to(file[name], value) if isinstance(value, Mapping) and isinstance(file[name], Mapping) else value
        for name, value in settings.items()
        if name in file
    }


def with_draw(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run; one that was begun before there was a choice of draws has those of 0.1."""
    data = given.get("data")
    return {**given, "data": {"draw": "0.1", **data}} if isinstance(data, Mapping) else dict(given)


def counts(job: Job, split: Split) -> dict[str, Any]:
    """Labeled and unlabeled samples per client and class, which the positions in a split do not show, and R."""
    federation = job.federation
    true = (federation.pool.y if federation.truth is None else federation.truth).numpy()
    classes = federation.classes + federation.unknown
    labeled, unlabeled = class_counts(true, len(classes), split)
    at_server = federation.server.labeled.take(federation.server.labeled.labeled)
    return {
        "classes": list(classes),
        "unknown": list(federation.unknown),
        "labeled": labeled.tolist(),
        "unlabeled": unlabeled.tolist(),
        "server": at_server.y.bincount(minlength=len(classes)).tolist(),
        "heterogeneity": partition.heterogeneity((labeled + unlabeled)[:, :-1]),
    }


def data_fingerprint(job: Job) -> str:
    """A SHA-256 of the samples themselves; the hash of the split covers their positions only."""
    digest, federation = sha256(), job.federation
    for tensor in (federation.pool.x, federation.truth, federation.test.x, federation.test.y):
        if tensor is not None:
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
