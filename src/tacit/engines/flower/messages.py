"""Flower's records: a method's message as named arrays and their tree, run info, and what a node says about itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from tacit.engines import failures
from tacit.engines.job import ClientFailure
from tacit.engines.reply import typed
from tacit.engines.wire import Parts, Values
from tacit.formatting import printable

MOST_SAMPLES = 10**9  # that one site can hold; more is no declaration but a way to outweigh the others
RAW = "tacit.raw"  # Flower's name for how an array is stored: its values one after the other, little-endian
SCHEMA = "1"  # of all messages; raised when a node with another number could misread one
RunInfo = Mapping[str, str]  # what the server says about the run in every message


@dataclass(frozen=True)
class NodeInfo:
    """What a node says about itself: the client's name, why it cannot take part, if so, and what it holds."""

    name: str
    refusal: str = ""
    samples: int = 0
    labeled: int = 0
    shares_scores: bool = False  # it answers with scores of the common model on its own held-out samples
    version: str = ""  # of Tacit; a node that refuses names it only in its reason


# A query and its answer keep the record names of 0.1: a node of another version must understand the question, see
# which version the server has, and be understood when it refuses.
_RUN_INFO, _NODE_INFO = "about", "place"


def run_info_records(run_info: RunInfo) -> dict[str, Any]:
    """The run info as a record."""
    return {_RUN_INFO: ConfigRecord({**run_info})}


def read_run_info(content: RecordDict) -> dict[str, str]:
    """The run info in a message."""
    return {name: str(value) for name, value in content.config_records[_RUN_INFO].items()}


def node_info_records(info: NodeInfo) -> dict[str, Any]:
    """A node's description as a record."""
    said = {name: value for name, value in asdict(info).items() if name not in ("shares_scores", "version") or value}
    return {_NODE_INFO: ConfigRecord(said)}


def read_node_info(content: RecordDict) -> NodeInfo:
    """The description in a node's answer; raises KeyError or TypeError for anything else."""
    kinds: dict[str, Any] = {item.name: item.type for item in fields(NodeInfo)}
    said = content.config_records[_NODE_INFO]
    info = NodeInfo(**{name: typed(value, kinds[name]) for name, value in said.items()})
    if not all(0 <= count <= MOST_SAMPLES for count in (info.samples, info.labeled)):
        raise TypeError(f"{max(info.samples, info.labeled, key=abs)} is not a number of samples")
    texts = {"name": 128, "refusal": failures.REASON, "version": 32}
    shown: dict[str, Any] = {name: printable(getattr(info, name), length) for name, length in texts.items()}
    return replace(info, **shown)


def to_records(name: str, parts: Parts) -> dict[str, Any]:
    """A method's message as two records: its arrays by name, and its tree."""
    arrays = {at: Array(value.kind, value.shape, RAW, value.data) for at, value in parts.values.items()}
    return {name: ArrayRecord(arrays), f"{name}.tree": ConfigRecord({"json": parts.tree})}


def from_records(content: RecordDict, name: str) -> Parts:
    """The method's message that `to_records` wrote under this name."""
    arrays, tree = content.array_records[name], content.config_records[f"{name}.tree"]
    values = {at: Values(array.dtype, tuple(array.shape), array.data) for at, array in arrays.items()}
    return Parts(str(tree["json"]), values)


def content_size(content: RecordDict) -> int:
    """The bytes of the values in a message, without their names."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    plain = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(value) if isinstance(value, bytes) else len(str(value).encode()) for value in plain)


def lost(answer: Message) -> ClientFailure:
    """Why Flower answers with an error instead of the node."""
    return failures.lost(answer.error.code, answer.error.reason)


def is_expired(answer: Message | ClientFailure) -> bool:
    """Whether Flower has dropped a message or its answer, as it does when their time is over."""
    return isinstance(answer, Message) and answer.has_error() and answer.error.code in failures.EXPIRED
