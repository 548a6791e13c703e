"""On Flower, each site sends another malformed message, and only the honest ones count."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tacit.engines.record import RoundRecord
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tests.toys import labeled

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, simulated
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower
HONEST = (6, 7)


def without_first(arrays: dict[str, Array]) -> dict[str, Array]:
    """One array is missing."""
    return dict(list(arrays.items())[1:])


def shortened(arrays: dict[str, Array]) -> dict[str, Array]:
    """The first array has fewer bytes than its shape asks for."""
    name, first = next(iter(arrays.items()))
    return {**arrays, name: Array(first.dtype, first.shape, first.stype, first.data[:-4])}


def with_tree(old: str, new: str) -> Callable[[RecordDict], None]:
    """The description of the message is changed."""

    def change(content: RecordDict) -> None:
        tree: Any = content["up.tree"]
        assert old in tree["json"]
        content["up.tree"] = ConfigRecord({"json": tree["json"].replace(old, new, 1)})

    return change


def with_arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Callable[[RecordDict], None]:
    """The arrays of the message are changed."""

    def apply(content: RecordDict) -> None:
        arrays: Any = content["up"]
        content["up"] = ArrayRecord(change(dict(arrays.items())))

    return apply


def without_reply(content: RecordDict) -> None:
    """The header of the reply is missing."""
    del content["reply"]


BAD: dict[int, Callable[[RecordDict], None]] = {
    0: with_tree('"WeightsUp"', '"WeightsDown"'),
    1: with_arrays(without_first),
    2: with_arrays(shortened),
    3: with_tree('"n":', '"n":-'),
    4: with_tree('"fc.weight"', '"fc.stranger"'),
    5: without_reply,
}


class BadGrid(DirectGrid):
    """Some nodes change their answers before they leave."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            client = 100 - answer.metadata.src_node_id
            if "up" in answer.content and client in BAD:
                BAD[client](answer.content)
        return answers


def test_each_site_sends_another_bad_message_and_the_honest_ones_count(tmp_path: Path) -> None:
    given = labeled(FedAvg(Supervised()), clients=8)
    app = simulated(lambda run_info: given)
    names = {str(client): client for client in range(8)}

    def run(grid: DirectGrid, folder: str) -> tuple[bytes, list[RoundRecord], list[bytes | None]]:
        return played(given, FlowerTransport(given, ClientNodes(GridClient(grid), {}, names)), tmp_path / folder)

    nodes = [{"partition-id": client} for client in range(8)]
    state, records, memories = run(BadGrid(app, nodes), "bad")
    assert len(records) == given.rounds
    for record in records:
        assert record.skipped.keys() == BAD.keys()
        assert set(record.codes.values()) == {"client.bad-upload", "client.unreadable"}, record.skipped
    alone = run(DirectGrid(app, [nodes[client] for client in HONEST]), "alone")
    assert (state, memories) == (alone[0], alone[2])
    assert [record.accuracy for record in records] == [record.accuracy for record in alone[1]]


class Boasting(ClientNodes):
    """Every site declares more samples than there are."""

    def samples(self, client: int) -> int:
        return 10**9


def test_where_the_hub_knows_how_many_samples_a_site_has_its_word_does_not_count(tmp_path: Path) -> None:
    given = labeled(FedAvg(Supervised()), clients=3)

    class Grid(DirectGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            answers = list(super().pull_messages(message_ids))
            for answer in answers:
                if answer.metadata.src_node_id == 100 and "up" in answer.content:
                    with_tree('"n":', '"n":1')(answer.content)  # ten times as many and more
            return answers

    grid = Grid(simulated(lambda run_info: given), [{"partition-id": client} for client in range(3)])
    nodes = Boasting(GridClient(grid), {}, {str(client): client for client in range(3)})
    _, records, _ = played(given, FlowerTransport(given, nodes), tmp_path)
    for record in records:
        assert list(record.skipped) == [0]
        assert record.codes == {0: "client.bad-upload"}
