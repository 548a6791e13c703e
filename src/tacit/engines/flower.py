"""Flower carries the rounds: its simulation on Ray, or SuperLink and SuperNodes on real machines.

All that concerns Flower is in this file. The loop is that of every engine; here its parcels become Flower's
messages: a record of orders, and the method's own message as an ArrayRecord of named arrays with a ConfigRecord that
describes the tree. A node is a client by the name it gives itself, never by its id, which may be new in every run.
"""

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from queue import Queue
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable import inflatable_utils

from tacit.engines.local import keep_freed_memory, one_thread
from tacit.engines.loop import Absent, Arrived, Job, Parcel
from tacit.engines.memory import Shelf
from tacit.engines.wire import Codec, Parts, Values
from tacit.engines.work import Done, evaluate_all, numbers, struck, visit
from tacit.errors import TacitError
from tacit.learn import Score
from tacit.params import Params

RAW = "tacit.raw"  # how an array's bytes are to be read: one value after the other, little end first
PART_LOOK = 0.1  # seconds between two looks for a part of a message that is still on its way
TRANSIT = 5.0  # seconds a reply may be on its way after a client's deadline
ASK_AGAIN = 60.0  # seconds after which a node that refused or failed is asked once more: it may have been mended
STRANGE = "sent what can not be read: see that it has the same version of Tacit"
UNSENT = "could not be reached"
GONE = {3: UNSENT, 4: "did not answer in time", 5: "was gone"}  # Flower's codes for a lost message

T = TypeVar("T")
About = Mapping[str, str]  # what a client is told about the federation in every message, beside its orders


@dataclass(frozen=True)
class Desk:
    """Where a client works: the job as seen from there, and its memory's shelf; None: its memory travels."""

    job: Job
    shelf: Shelf | None = None


@dataclass(frozen=True)
class Place:
    """What a node says of itself: the client's name, why it can not take part, if so, and what it holds."""

    name: str
    refusal: str = ""
    samples: int = 0
    labeled: int = 0


# From what the server and the node's own settings say; a desk also from which client this is, which orders say.
OpenDesk = Callable[[About, Mapping[str, Any], int], Desk]
Introduce = Callable[[About, Mapping[str, Any]], Place]


def client_app(open_desk: OpenDesk, introduce: Introduce) -> ClientApp:
    """The app that every node runs: it says who it is, and does a client's work."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        place = introduce(_strings(message.content["about"]), context.node_config)
        record = ConfigRecord({**asdict(place)})
        return Message(RecordDict({"place": record}), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        keep_freed_memory()
        with one_thread():
            return Message(_work(message.content, context, open_desk), reply_to=message)

    return app


def _work(content: RecordDict, context: Context, open_desk: OpenDesk) -> RecordDict:
    """A client's reply; whatever goes wrong is part of it, with the traceback."""
    try:
        orders: Any = content["orders"]
        desk = open_desk(_strings(content["about"]), context.node_config, orders["client"])
        job, shelf, round = desk.job, desk.shelf, orders["round"]
        memory = orders["memory"] if orders["remembers"] else None
        down = _message(content, "down", job.codec, job)
        remembered = shelf.take(memory) if shelf and memory is not None else memory
        done = visit(job, round, orders["client"], remembered, down, orders["evaluate"])
        kept = shelf.put(round, done.memory) if shelf and done.memory is not None else done.memory
        return _reply(job.codec, done, kept)
    except Exception as error:
        reason = f"failed: {type(error).__name__}: {error}"
        return RecordDict({"reply": ConfigRecord({"failed": reason, "detail": traceback.format_exc()})})


def _reply(codec: Codec, done: Done, memory: bytes | None) -> RecordDict:
    head: dict[str, Any] = {
        "failed": "",
        "sends": done.up is not None,
        "remembers": memory is not None,
        "memory": memory or b"",
    }
    records = {"reply": ConfigRecord(head), "metrics": MetricRecord({**done.metrics})}
    return RecordDict(records | ({} if done.up is None else _records("up", codec.take_apart(done.up))))


class Post:
    """Sends messages over a grid and waits for the answers; faster than the grid's own three seconds a look."""

    def __init__(self, grid: Grid, alive: Callable[[], bool] = lambda: True) -> None:
        """`alive` tells whether whoever carries the messages is still there."""
        self.grid, self._alive = grid, alive

    def ask(self, messages: Mapping[int, Message], timeout: float | None) -> dict[int, Message | str | None]:
        """The answer to each message; None where none came in time, a reason where it could not be sent."""
        taken = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        if messages and not taken:
            raise TacitError("Flower takes no message of this size: use a smaller network")
        sent = {key: message.metadata.message_id for key, message in messages.items()}
        waiting = {id: key for key, id in sent.items() if id in taken}
        answers: dict[int, Message | str | None] = {key: None if sent[key] in taken else UNSENT for key in messages}
        began = time.monotonic()
        while waiting and (timeout is None or time.monotonic() < began + timeout):
            for answer in self.grid.pull_messages(list(waiting)):
                answers[waiting.pop(answer.metadata.reply_to_message_id)] = answer
            if waiting and not self._alive():
                raise TacitError("Flower's simulation ended before its time: see what it said above, then resume")
            time.sleep(min(0.02 + (time.monotonic() - began) / 20, 1.0) if waiting else 0)
        return answers


class FlowerCourier:
    """Carries parcels over a grid to the nodes that are there."""

    def __init__(self, job: Job, roster: "Roster") -> None:
        """`roster` tells which node is which client."""
        self._job, self._roster = job, roster

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome."""
        job, nodes = self._job, self._roster.nodes(parcels)
        apart = {
            id(parcel.down): job.codec.take_apart(parcel.down) for parcel in parcels.values()
        }  # one may go to many
        outcomes: dict[int, Arrived | Absent] = {}
        messages: dict[int, Message] = {}
        for client, parcel in parcels.items():
            parts, node = apart[id(parcel.down)], nodes[client]
            if absent := struck(job, round, client, len(parts)):
                outcomes[client] = absent
            elif isinstance(node, str):
                outcomes[client] = Absent(node)
            else:
                messages[client] = self._message(round, client, node, parcel, parts)
        timeout = None if job.deadline is None else job.deadline + TRANSIT
        for client, answer in self._roster.post.ask(messages, timeout).items():
            outcomes[client] = self._outcome(answer, len(apart[id(parcels[client].down)]))
        return {client: outcomes[client] for client in sorted(outcomes)}

    def evaluate(self, model: Params) -> Score:
        """The model's score on the test set, which is at the server."""
        return evaluate_all(self._job, model)

    def close(self) -> None:
        """Nothing to end: the grid belongs to whoever gave it."""

    def _message(self, round: int, client: int, node: int, parcel: Parcel, parts: Parts) -> Message:
        orders: dict[str, Any] = {"round": round, "client": client, "evaluate": parcel.evaluate}
        memory = {"remembers": parcel.memory is not None, "memory": parcel.memory or b""}
        content = RecordDict(
            {"orders": ConfigRecord(orders | memory), "about": ConfigRecord({**self._roster.about})}
            | _records("down", parts)
        )
        return Message(content, node, "train", ttl=self._job.deadline, group_id=str(round))

    def _outcome(self, answer: Message | str | None, sent: int) -> Arrived | Absent:
        if isinstance(answer, str):
            return Absent(answer)
        if answer is None:
            return Absent(f"took longer than {self._job.deadline} s", bytes_down=sent)
        if answer.has_error():
            return Absent(_lost(answer), bytes_down=sent)
        try:
            return self._opened(answer.content, sent)
        except (KeyError, TypeError, ValueError) as error:
            return Absent(f"{STRANGE} ({type(error).__name__}: {error})", bytes_down=sent)

    def _opened(self, content: RecordDict, sent: int) -> Arrived | Absent:
        reply: Any = content["reply"]
        if failed := _typed(reply["failed"], str):
            return Absent(failed, _typed(reply["detail"], str), sent)
        parts = _parts(content, "up") if reply["sends"] else None
        up = None if parts is None else self._job.codec.put_together(parts, self._job.device)
        metrics: Any = content["metrics"]
        memory = _typed(reply["memory"], bytes) if reply["remembers"] else None
        return Arrived(up, memory, numbers(metrics), sent, len(parts) if parts else 0)


def _lost(answer: Message) -> str:
    reason = " ".join(str(answer.error.reason or "").split())
    return GONE.get(answer.error.code, f"failed: {reason or f'Flower reports error {answer.error.code}'}")


def _place(said: Mapping[str, Any]) -> Place:
    kinds: dict[str, Any] = {item.name: item.type for item in fields(Place)}
    return Place(**{name: _typed(value, kinds[name]) for name, value in said.items()})


def _typed(value: object, kind: type[T]) -> T:
    """A value that somebody else chose, once it is known to be of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} is expected")
    return value


class Roster:
    """Which node is which client: nodes are asked when they are first seen, and later if they refused or failed."""

    def __init__(
        self,
        post: Post,
        about: About,
        clients: Mapping[str, int],
        patience: float | None = None,
        owners: Callable[[], Mapping[int, str]] | None = None,
    ) -> None:
        """`clients` numbers the names that are expected; `about` goes to every node with every message.

        `patience` is how many seconds a node may take to say who it is. Where nodes have keys, `owners` tells the names
        that these belong to at the moment, and a node that gives itself another is refused.
        """
        self.post, self.about, self._clients, self._patience = post, about, clients, patience
        self._owners = owners
        self._seen: dict[int, Place] = {}  # by node
        self._unsettled: dict[int, float] = {}  # nodes that refused or could not say who they are, and when
        self._silent: dict[int, int] = {}  # how often each was waited for in vain
        self.failures: dict[int, str] = {}  # nodes that could not say who they are, and why

    def expect(self, clients: Mapping[str, int]) -> None:
        """Number the names anew, once it is known who takes part."""
        self._clients = clients

    def nodes(self, wanted: Mapping[int, object]) -> dict[int, int | str]:
        """The node of each client that is wanted, or why there is none."""
        found: dict[int, int | str] = dict.fromkeys(wanted, "is not connected")
        for node, place in self.places().items():
            client = self._clients.get(place.name)
            if client in found:
                found[client] = f"refused: {place.refusal}" if place.refusal else node
        return found

    def places(self) -> dict[int, Place]:
        """What every node that is there says of itself."""
        there = set(self.post.grid.get_node_ids())
        self._forget_all_but(there)
        record = RecordDict({"about": ConfigRecord({**self.about})})
        due = sorted(node for node in there if self._is_due(node))
        strangers = {node: Message(record, node, "query", ttl=self._patience) for node in due}
        for node, answer in self.post.ask(strangers, self._patience).items():
            self._note(node, answer)
        return dict(self._seen)

    def _forget_all_but(self, there: set[int]) -> None:
        """Nodes that are gone have nothing against them any more, and introduce themselves anew when they come back."""
        known: tuple[dict[int, Any], ...] = (self._seen, self._unsettled, self._silent, self.failures)
        for book in known:
            for node in book.keys() - there:
                del book[node]

    def _is_due(self, node: int) -> bool:
        """Whether to ask a node who it is; everybody waits for one that is silent, so that is done ever more seldom."""
        if node not in self._unsettled:
            return node not in self._seen
        return time.monotonic() >= self._unsettled[node] + ASK_AGAIN * max(1, self._silent.get(node, 0))

    def _note(self, node: int, answer: Message | str | None) -> None:
        """Keep what a node says of itself, or why nothing is known."""
        self._unsettled[node] = time.monotonic()
        if answer is None:
            self._silent[node] = self._silent.get(node, 0) + 1
            self.failures[node] = "did not answer in time"
        elif isinstance(answer, str) or answer.has_error():
            self.failures[node] = answer if isinstance(answer, str) else _lost(answer)
        else:
            self._settle(node, answer.content)

    def _settle(self, node: int, content: RecordDict) -> None:
        try:
            said: Any = content["place"]
            place = self._vouched(node, _place(said))
        except (KeyError, TypeError):
            self.failures[node] = STRANGE
            return
        self._seen[node] = place
        self.failures.pop(node, None)
        self._silent.pop(node, None)
        if not place.refusal:
            del self._unsettled[node]

    def _vouched(self, node: int, place: Place) -> Place:
        owner = place.name if self._owners is None else self._owners().get(node)
        if owner == place.name:
            return place
        whose = f"the key of {owner}" if owner else "a key that nobody was given"
        return Place(owner or f"node {node}", f"it calls itself {place.name} and has {whose}")


def look_often() -> None:
    """Have Flower look for the parts of a message sooner than after a second, then two, then four.

    A message is known before its arrays are there, so that whoever is quick to start would wait the longest. Flower
    gives up after as many looks as fill an hour at its own pace; what bounds these is its time limit of two hours.
    """
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(inflatable_utils, name).__kwdefaults__
        defaults |= {"initial_backoff": PART_LOOK, "backoff_cap": PART_LOOK, "max_tries_per_object": None}


def server_app(main: Callable[[Post, Mapping[str, Any]], None]) -> ServerApp:
    """The app of a hub: `main` gets the way to the nodes and the settings that the run was started with."""
    app = ServerApp()

    @app.main()
    def begin(grid: Grid, context: Context) -> None:
        look_often()
        main(Post(grid), context.run_config)

    return app


class SimulationCourier(FlowerCourier):
    """Flower's simulation: one virtual node per client, on Ray actors with a core each."""

    def __init__(self, job: Job, app: ClientApp, about: About, cores: int, address: str | None) -> None:
        """Start Ray with so many cores, or use the cluster at `address`; `close` ends what was started."""
        self._closing, self._ended = threading.Event(), threading.Event()
        grids: Queue[Grid | BaseException] = Queue()
        started: dict[str, Any] = {"address": address} if address else {"num_cpus": cores}
        quiet = {"logging_level": "error", "log_to_driver": False}
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": started | quiet}
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._closing.wait()

        def play() -> None:
            try:
                _simulate(server, app, job.federation.clients, backend)
            except BaseException as error:
                grids.put(error)
            finally:
                grids.put(RuntimeError("it ended before it began"))  # which nobody takes once there was a grid
                self._ended.set()

        self._thread = threading.Thread(target=play, name="Flower's simulation", daemon=True)
        self._thread.start()
        grid = grids.get()
        if isinstance(grid, BaseException):
            self.close()
            raise TacitError(f"Flower's simulation could not start: {grid}; mend that, or use --engine local") from grid
        while len(list(grid.get_node_ids())) < job.federation.clients and not self._ended.is_set():
            time.sleep(0.02)  # the grid is there before its nodes are
        names = {str(client): client for client in range(job.federation.clients)}
        super().__init__(job, Roster(Post(grid, lambda: not self._ended.is_set()), about, names))

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome; a deadline counts from a client's start, so then none is asked before it can work."""
        if self._job.deadline is None:
            return super().exchange(round, parcels)
        clients, cores, outcomes = list(parcels), _cores(), dict[int, Arrived | Absent]()
        for first in range(0, len(clients), cores):
            some = {client: parcels[client] for client in clients[first : first + cores]}
            outcomes |= super().exchange(round, some)
        return outcomes

    def close(self) -> None:
        """End the simulation and the Ray that was started for it."""
        import ray

        self._closing.set()
        self._thread.join()
        ray.shutdown()


def _cores() -> int:
    """How many clients can work at once."""
    import ray

    resources: Callable[[], Mapping[str, float]] = ray.cluster_resources
    return max(int(resources().get("CPU", 1)), 1)


def _simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
    """Flower's simulation without its own chatter."""
    for name in ("RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    from flwr.simulation import run_simulation

    loggers = {name: logging.getLogger(name) for name in ("flwr", "ray")}
    before = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        logger.setLevel(logging.ERROR)
    try:
        run_simulation(server, app, nodes, backend_config=backend)
    finally:
        for name, logger in loggers.items():
            logger.setLevel(before[name])


def simulated(open_job: Callable[[About], Job]) -> ClientApp:
    """The app of virtual nodes, which find their data by their number; their memory travels with the orders."""

    def introduce(about: About, node: Mapping[str, Any]) -> Place:
        return Place(str(node["partition-id"]))

    return client_app(lambda about, node, client: Desk(open_job(about)), introduce)


def _records(name: str, parts: Parts) -> dict[str, Any]:
    """A message of a method as two of Flower's records."""
    arrays = {at: Array(value.kind, value.shape, RAW, value.data) for at, value in parts.values.items()}
    return {name: ArrayRecord(arrays), f"{name}.tree": ConfigRecord({"json": parts.tree})}


def _parts(content: RecordDict, name: str) -> Parts:
    arrays, tree = content.array_records[name], content.config_records[f"{name}.tree"]
    values = {at: Values(array.dtype, tuple(array.shape), array.data) for at, array in arrays.items()}
    return Parts(str(tree["json"]), values)


def _message(content: RecordDict, name: str, codec: Codec, job: Job) -> Any:
    return codec.put_together(_parts(content, name), job.device)


def _strings(record: Any) -> dict[str, str]:
    return {name: str(value) for name, value in record.items()}
