"""Settings that were changed and have no effect on this run: one line each, so that no user waits for their effect."""

from collections.abc import Iterator
from dataclasses import fields

from tacit.data.inputs import KINDS
from tacit.data.split import partition
from tacit.data.split.config import DataConfig
from tacit.engines.faults import Faults
from tacit.federation import UNLABELED, Federation
from tacit.method import Training
from tacit.runs.config import SERVER, Config
from tacit.runs.settings import default_of

# Partitions that do not go by the class of a sample, or that divide samples without a class as they promise.
CLASSLESS = ("iid", "even", "by-writer", "by-speaker", partition.SITES)


def without_effect(config: Config, federation: Federation) -> list[str]:
    """A line for each such setting."""
    found = (*_of_data(config.data, federation), *_of_training(config, federation), *_of_engine(config))
    return [f"without effect: {name} ({why})" for name, why in found]


def _of_data(data: DataConfig, federation: Federation) -> Iterator[tuple[str, str]]:
    changed = {item.name for item in fields(data) if getattr(data, item.name) != default_of(item)}
    if "labeled_clients" in changed and data.labels != "some":
        yield "data.labeled_clients", f"labels are at {data.labels}, not at some"
    for name in ("rounds_per_step", "keep"):
        if name in changed and data.stream_steps == 1:
            yield f"data.{name}", "all samples are there from the start, data.stream_steps = 1"
    kind = federation.inputs.kind
    foreign = [name for each in KINDS.values() for name in each.settings if name not in federation.inputs.settings]
    yield from ((f"data.{name}", f"the samples are {kind}") for name in foreign if name in changed)
    yield from _of_partition(data, federation)


def _of_partition(data: DataConfig, federation: Federation) -> Iterator[tuple[str, str]]:
    name, _ = partition.parse(data.partition)
    true = federation.pool.y if federation.truth is None else federation.truth
    unknown = int((true[federation.order] == UNLABELED).sum())
    if name not in CLASSLESS and unknown:
        whom = (
            "all samples" if unknown == len(federation.order) else f"{unknown:,} of {len(federation.order):,} samples"
        )
        yield f"{data.partition} for {whom}", "they have no known class, so the clients share them evenly"
    if data.labels == "all" and data.budget and data.stream_steps == 1 and name not in partition.OF_LABELED:
        yield "the number of labels", "labels = all shows every label"


def _of_training(config: Config, federation: Federation) -> Iterator[tuple[str, str]]:
    for section, train in (("train", config.train), ("server", config.server_train)):
        usual = SERVER["epochs"] if section == "server" else Training.epochs
        if train.steps is not None and train.epochs != usual:
            yield f"{section}.epochs", f"{section}.steps = {train.steps} replaces it"
    at_server = [name for name, value in config.server.items() if value != SERVER.get(name) and name != "buffers"]
    if at_server and not len(federation.server.labeled):
        yield ", ".join(f"server.{name}" for name in at_server), "the server has no labels to train on"


def _of_engine(config: Config) -> Iterator[tuple[str, str]]:
    engine = config.engine
    if engine.ray and engine.name == "local":
        yield "engine.ray", "the engine is local"
    if engine.threads > 1 and engine.name == "flower":
        yield "engine.threads", "clients on Flower compute on one thread"
    faults = config.faults
    if not faults.hostile and (faults.attack, faults.strength) != (Faults.attack, None):
        yield "faults.attack and faults.strength", "no client is hostile, faults.hostile = 0"
    if engine.strict and engine.workers != 0:
        yield "engine.strict", "worker processes encode every message anyway"
