"""Scores of the common model on each node's own held-out samples, from nodes whose owners allow it.

A node sends one number per score and nothing else: no sample, no label, no count.
"""

import math
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from tacit.engines.client import evaluate_all
from tacit.engines.flower.messages import from_records, run_info_records, to_records
from tacit.engines.flower.nodes import ClientNodes
from tacit.engines.job import ClientFailure, Job
from tacit.engines.reply import typed
from tacit.engines.scores import predictions
from tacit.metrics.scores import scores
from tacit.params import Params

RECORD = "scores"
SECONDS = 600.0  # that a node may take


def wanted(job: Job) -> tuple[str, ...]:
    """The scores that a run asks for: accuracy, and those of `log.metrics`."""
    return tuple(dict.fromkeys(("accuracy", *job.metrics)))


def own_scores(job: Job, content: RecordDict) -> dict[str, float]:
    """The scores of the model in a message on the node's own held-out samples; nothing without such samples."""
    if not len(job.federation.test):
        return {}
    model: Any = job.codec.from_parts(from_records(content, "model"), job.device)
    found = scores(predictions(job, evaluate_all(job, model, outputs=True)), wanted(job))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def ask_for_scores(job: Job, nodes: ClientNodes, model: Params) -> dict[int, dict[str, float]]:
    """Send the model to every connected node that shares scores; the scores of each client that sent some."""
    sharing = {node for node, info in nodes.infos().items() if info.shares_scores}
    places = nodes.find(dict.fromkeys(range(job.federation.clients)))
    model_records = to_records("model", job.codec.to_parts(model))
    messages = {}
    for client, node in places.items():
        if not isinstance(node, ClientFailure) and node in sharing:
            task = {"task": ConfigRecord({"client": client})} | run_info_records(nodes.run_info)
            messages[client] = Message(RecordDict(task | model_records), node, "evaluate", ttl=SECONDS)
    found: dict[int, dict[str, float]] = {}
    for answered in nodes.grid.ask(messages, SECONDS):
        if answered is not None and isinstance(answered[1], Message) and not answered[1].has_error():
            found[answered[0]] = _read(answered[1].content, wanted(job))
    return {client: numbers for client, numbers in sorted(found.items()) if numbers}


def _read(content: RecordDict, names: tuple[str, ...]) -> dict[str, float]:
    """The scores in an answer; what was not asked for, or is no finite number, is left out."""
    try:
        said: Any = content.config_records[RECORD]
        numbers = {name: float(typed(said[name], (int, float))) for name in names if name in said}
    except (KeyError, TypeError, OverflowError):
        return {}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
