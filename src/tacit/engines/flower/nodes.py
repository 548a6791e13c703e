"""Which node is which client. A node is known by the name it gives, never by its id, which may change between runs."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Message, RecordDict

from tacit.engines import failures
from tacit.engines.flower.grid import Answer, GridClient
from tacit.engines.flower.messages import NodeInfo, RunInfo, is_expired, lost, read_node_info, run_info_records
from tacit.engines.job import ClientFailure

QUERY_AGAIN = 60.0  # seconds until a node that refused or failed is queried again; its site may have been fixed


class ClientNodes:
    """The node of each client. A node is queried when it first appears, and again later if it refused or failed."""

    def __init__(
        self,
        grid: GridClient,
        run_info: RunInfo,
        clients: Mapping[str, int],
        timeout: float | None = None,
        owners: Callable[[], Mapping[int, str]] | None = None,
    ) -> None:
        """`clients` gives the number of each expected name; every message carries `run_info`.

        `timeout` is how many seconds a node may take to answer a query. Where nodes have keys, `owners` gives the name
        that each node's key belongs to at the moment; a node that gives another name is refused.
        """
        self.grid, self.run_info, self._clients, self._timeout = grid, run_info, clients, timeout
        self._owners = owners
        self._infos: dict[int, NodeInfo] = {}  # by node
        self._declared: dict[int, int] = {}  # samples by client
        self._unsettled: dict[int, float] = {}  # when each node that refused or failed was last queried
        self._silent: dict[int, int] = {}  # how many queries each node left unanswered
        self.failures: dict[int, str] = {}  # why the query of a node failed

    def expect(self, clients: Mapping[str, int]) -> None:
        """Set the number of each name, once it is known who takes part."""
        self._clients = clients

    def find(self, wanted: Mapping[int, object]) -> dict[int, int | ClientFailure]:
        """The node of each wanted client, or why there is none."""
        found: dict[int, int | ClientFailure] = dict.fromkeys(wanted, failures.not_connected())
        for node, info in self.infos().items():
            client = self._clients.get(info.name)
            if client is not None and not info.refusal:
                self._declared.setdefault(client, info.samples)  # its word of the first time: it cannot grow later
            if client in found:
                found[client] = failures.refused(info.refusal) if info.refusal else node
        return found

    def samples(self, client: int) -> int:
        """How many samples a client said it holds when it first joined this run; 0 if it did not say."""
        return self._declared.get(client, 0)

    @property
    def known(self) -> dict[str, NodeInfo]:
        """What the connected nodes have said about themselves so far, by name; sends no query."""
        return {info.name: info for info in self._infos.values()}

    def infos(self, waiting: Callable[[list[str]], None] = lambda names: None) -> dict[int, NodeInfo]:
        """What each connected node says about itself; `waiting` is called with those that have not answered."""
        connected = set(self.grid.node_ids())
        self._forget_all_but(connected)
        content = RecordDict(run_info_records(self.run_info))
        due = sorted(node for node in connected if self._is_due(node))
        queries = {node: Message(content, node, "query", ttl=self._timeout) for node in due}
        until = math.inf if self._timeout is None else time.monotonic() + self._timeout
        for answered in self.grid.ask(queries, self._timeout):
            if answered is None:
                waiting([self._owner(node) for node in due])
            else:
                due.remove(answered[0])
                self._note(*answered, late=time.monotonic() >= until)
        return dict(self._infos)

    def _owner(self, node: int) -> str:
        """The name that belongs to a node's key, where nodes have keys."""
        names = self._owners() if self._owners else {}
        return names.get(node, f"node {node}")

    def _forget_all_but(self, connected: set[int]) -> None:
        """Forget nodes that have left; a node that comes back starts fresh."""
        known: tuple[dict[int, Any], ...] = (self._infos, self._unsettled, self._silent, self.failures)
        for by_node in known:
            for node in by_node.keys() - connected:
                del by_node[node]

    def _is_due(self, node: int) -> bool:
        """Whether to query this node now. A silent node blocks the round, so the pauses between queries grow."""
        if node not in self._unsettled:
            return node not in self._infos
        return time.monotonic() >= self._unsettled[node] + QUERY_AGAIN * max(1, self._silent.get(node, 0))

    def _note(self, node: int, answer: Answer, *, late: bool) -> None:
        """Store a node's answer, or why there is none."""
        self._unsettled[node] = time.monotonic()
        if answer is None or (late and is_expired(answer)):
            self._silent[node] = self._silent.get(node, 0) + 1
            self.failures[node] = failures.no_answer().reason
        elif isinstance(answer, ClientFailure) or answer.has_error():
            self.failures[node] = (answer if isinstance(answer, ClientFailure) else lost(answer)).reason
        else:
            self._settle(node, answer.content)

    def _settle(self, node: int, content: RecordDict) -> None:
        try:
            info = self._authenticated(node, read_node_info(content))
        except (KeyError, TypeError) as error:
            self.failures[node] = failures.unreadable(error).reason
            return
        self._infos[node] = info
        self.failures.pop(node, None)
        self._silent.pop(node, None)
        if not info.refusal:
            del self._unsettled[node]

    def _authenticated(self, node: int, info: NodeInfo) -> NodeInfo:
        """The description, or a refusal if the node's key belongs to another name."""
        owner = info.name if self._owners is None else self._owners().get(node)
        if owner == info.name:
            return info
        whose = f"the key of {owner}" if owner else "a key that was given to no site"
        return NodeInfo(owner or f"node {node}", f"it calls itself {info.name} and has {whose}")
