"""The app that every node runs: it describes the node, and does a client's work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tacit.engines import failures
from tacit.engines.client import LOCAL_ACCURACY, run_client
from tacit.engines.counts import CountDown
from tacit.engines.flower.messages import (
    NodeInfo,
    RunInfo,
    content_size,
    from_records,
    node_info_records,
    read_run_info,
    to_records,
)
from tacit.engines.flower.site_scores import RECORD, own_scores
from tacit.engines.job import ClientFailure, ClientOutcome, ClientResult, ClientTask, Job
from tacit.engines.memory import MemoryStore
from tacit.engines.reply import ReplyHeader
from tacit.engines.secure_messages import MaskedUp, in_words
from tacit.errors import TacitError
from tacit.process import one_thread, tune_malloc
from tacit.protect import sample_dp
from tacit.protect.sample_budget import Spent


def _anything(up: object) -> None:
    """Let every upload leave."""


@dataclass(frozen=True)
class Workspace:
    """What a client works with: its view of the job, and the store of its memory; without one, its memory travels."""

    job: Job
    store: MemoryStore | None = None
    permit: Callable[[object], None] = _anything  # raises if the node does not let an upload leave
    shares_scores: bool = False  # whether the owner lets scores on held-out samples leave
    counts: bool = True  # whether the owner lets counts of right labels among those held out leave
    evaluates: bool = True  # whether the client's own model may be evaluated too, if the server asks
    keep_accuracy: Callable[[int, float], None] | None = None  # gets round and accuracy of its own model; stays there


@dataclass(frozen=True)
class Departure:
    """A reply that is about to leave a node; `round` is None for a description of the node."""

    round: int | None
    fields: tuple[str, ...]  # names of what it holds
    size: int  # bytes
    refusal: str = ""  # why the node does not take part
    failure: str = ""  # why it could not do its work
    scores: Mapping[str, float] = field(default_factory=dict)  # of the common model on the node's own samples
    spent: Spent | None = None  # the steps behind a trained update; without noise, if samples are not protected
    samples: int = 0  # that the node holds in this round
    exchange: bool = False  # a step of secure aggregation in which nothing that was trained leaves


class Safeguards:
    """What a node does before a reply leaves it. Nothing, if it is part of a simulation."""

    def record(self, about: RunInfo, node: Mapping[str, Any], departure: Departure) -> None:
        """Take note of a reply; raise to keep it."""

    def failure(self, about: RunInfo, node: Mapping[str, Any], error: Exception) -> ClientFailure:
        """What the server may know about an error, while the error is handled."""
        return failures.failed(error)


# Both get the server's run info and the node's settings; a workspace also depends on the client's number.
OpenWorkspace = Callable[[RunInfo, Mapping[str, Any], int], Workspace]
Introduce = Callable[[RunInfo, Mapping[str, Any]], NodeInfo]


def client_app(open_workspace: OpenWorkspace, introduce: Introduce, safeguards: Safeguards | None = None) -> ClientApp:
    """The app of a node: `introduce` describes it, `open_workspace` opens what a client works with."""
    app, guards = ClientApp(), safeguards or Safeguards()

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        about, node = read_run_info(message.content), context.node_config
        info = introduce(about, node)
        content = RecordDict(node_info_records(info))
        said = ("name",) if info.refusal else tuple(item.name for item in fields(info) if item.name != "refusal")
        guards.record(about, node, Departure(None, said, content_size(content), refusal=info.refusal))
        return Message(content, reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        tune_malloc()
        with one_thread():
            return Message(_work(message.content, context, open_workspace, guards), reply_to=message)

    @app.evaluate()
    def score(message: Message, context: Context) -> Message:
        with one_thread():
            return Message(_score(message.content, context, open_workspace, guards), reply_to=message)

    return app


def _score(content: RecordDict, context: Context, open_workspace: OpenWorkspace, guards: Safeguards) -> RecordDict:
    """Scores of the common model, if the owner of the node lets them leave; otherwise, and after an error, nothing."""
    about, node = read_run_info(content), context.node_config
    round: int | None = None
    found: dict[str, float] = {}
    failure = ""
    try:
        task: Any = content["task"]
        workspace = open_workspace(about, node, task["client"])
        round = workspace.job.rounds - 1
        found = own_scores(workspace.job, content) if workspace.shares_scores else {}
    except Exception as error:
        failure = guards.failure(about, node, error).reason
    reply = RecordDict({RECORD: ConfigRecord({**found})})
    said = tuple(f"score {name}" for name in found)
    guards.record(about, node, Departure(round, said, content_size(reply), failure=failure, scores=found))
    return reply


def _work(content: RecordDict, context: Context, open_workspace: OpenWorkspace, guards: Safeguards) -> RecordDict:
    """A client's reply; an error becomes part of it."""
    about, node, round = read_run_info(content), context.node_config, None
    try:
        values: Any = content["task"]
        round, client = values["round"], values["client"]
        workspace = open_workspace(about, node, client)
        job, store = workspace.job, workspace.store
        _require_round(round, job.rounds)
        down = job.codec.from_parts(from_records(content, "down"), job.device)
        memory = values["memory"] if values["has_memory"] else None
        if store and memory is not None:
            memory = store.load(memory)
        result = _trained(workspace, round, client, ClientTask(down, memory, values["evaluate"]))
        workspace.permit(result.up)
        if store and result.memory is not None:
            result = replace(result, memory=store.save(round, result.memory))
        up = {} if result.up is None else to_records("up", job.codec.to_parts(result.up))
        reply = RecordDict(_header(result, result.memory) | up)
        said = (*(in_words(result.up) or _field_names(result.up)), *sorted(result.metrics))
        departure = Departure(round, said, content_size(reply), samples=job.held(client))
        guards.record(about, node, _with_account(departure, job, result))
        return reply
    except Exception as error:
        failure = guards.failure(about, node, error)
        reply = RecordDict(_header(failure))
        guards.record(about, node, Departure(round, (), content_size(reply), failure=failure.reason))
        return reply


def _trained(workspace: Workspace, round: int, client: int, task: ClientTask) -> ClientResult:
    """The result of a client's work; the accuracy of its own model is in it only if the node lets it leave."""
    if isinstance(task.down, CountDown) and not workspace.counts:
        return ClientResult(None, None, {})
    leaves, keep = task.evaluate and workspace.evaluates, workspace.keep_accuracy
    result = run_client(workspace.job, round, client, replace(task, evaluate=leaves or keep is not None))
    if keep is not None and LOCAL_ACCURACY in result.metrics:
        keep(round, result.metrics[LOCAL_ACCURACY])
    if leaves:
        return result
    return replace(result, metrics={name: each for name, each in result.metrics.items() if name != LOCAL_ACCURACY})


def _with_account(departure: Departure, job: Job, result: ClientResult) -> Departure:
    """The departure with the steps of training behind it; most exchanges of secure aggregation have none."""
    if in_words(result.up) and not isinstance(result.up, MaskedUp):
        return replace(departure, exchange=True)
    return replace(departure, spent=sample_dp.spent(job.sample_noise, result.metrics))


def _require_round(round: int, rounds: int) -> None:
    if round not in range(rounds):
        raise TacitError(
            f"the run has {rounds} rounds, so there is no round {round + 1}",
            "start a run with more rounds",
            code="client.no-such-round",
        )


def _field_names(up: object) -> tuple[str, ...]:
    """What an upload holds, by the names of its fields."""
    if not is_dataclass(up):
        return () if up is None else ("upload",)
    return tuple(item.name for item in fields(up) if getattr(up, item.name) is not None)


def _header(outcome: ClientOutcome, memory: bytes | None = None) -> dict[str, Any]:
    return {"reply": ConfigRecord({"header": ReplyHeader.of(outcome).to_json(), "memory": memory or b""})}
