"""A site with valid credentials sends whatever it likes: it loses its own round, and the others' model is the same."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tacit.engines.events import ClientFailed, RoundEnded
from tacit.engines.limits import Limits
from tacit.engines.memory import VERSION_BYTES
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import run_rounds
from tacit.methods.fedavg import FedAvg
from tacit.objectives import Supervised
from tests.toys import PLAIN_SGD, labeled

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import Message

from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, simulated
from tests.engines.attacks import ATTACKS, FALSE_MEMORY, Attack
from tests.engines.grid import DirectGrid, run_state

pytestmark = pytest.mark.flower
EVIL = 3
GIVEN = labeled(
    FedAvg(Supervised()), clients=4, rounds=4, limits=Limits(norm_factor=10.0), train=replace(PLAIN_SGD, lr=0.01)
)


class EvilGrid(DirectGrid):
    """One node changes its answer of the second round, or sends none at all."""

    def __init__(self, attack: Attack | None) -> None:
        nodes = [{"partition-id": client} for client in range(4)]
        super().__init__(simulated(lambda run_info: GIVEN), nodes)
        self.attack, self.attacked = attack, 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            if answer.metadata.src_node_id == 100 - EVIL and "up" in answer.content and answer.metadata.group_id == "1":
                self.attacked += 1
                if self.attack is None:
                    del answer.content["reply"]
                else:
                    self.attack(answer.content)
        return answers


@dataclass(frozen=True)
class Outcome:
    """The final state, the records, and the codes of the failures in each round."""

    state: bytes
    records: list[RoundRecord]
    failed: list[dict[int, str]]


def outcome(attack: Attack | None, folder: Path) -> Outcome:
    """What a run comes to; with None, the reply is lost."""
    grid = EvilGrid(attack)
    nodes = ClientNodes(GridClient(grid), {}, {str(client): client for client in range(4)})
    state = run_state(folder)
    failed: list[dict[int, str]] = [{} for _ in range(GIVEN.rounds)]
    records = []
    for event in run_rounds(GIVEN, FlowerTransport(GIVEN, nodes, VERSION_BYTES), state):
        if isinstance(event, ClientFailed):
            failed[event.round][event.client] = event.code
        elif isinstance(event, RoundEnded):
            records.append(event.record)
    assert grid.attacked == 1
    return Outcome(GIVEN.codec.encode(state.state), records, failed)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return outcome(None, tmp_path_factory.mktemp("lost"))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_only_its_sender_the_round(name: str, tmp_path: Path, lost: Outcome) -> None:
    attack, code = ATTACKS[name]
    found = outcome(attack, tmp_path)
    assert [record.round for record in found.records] == [0, 1, 2, 3]
    for record in found.records:
        line = record.to_json()
        assert len(line) < 20_000
        known = RoundRecord.from_json(line)
        assert (known.skipped, known.codes) == (record.skipped, record.codes)
        assert record.codes == found.failed[record.round]
        assert all(reason.isprintable() and len(reason) <= 600 for reason in record.skipped.values())
        assert all(len(detail) <= 20_000 and "\x1b" not in detail for detail in record.details.values())
    # The site is honest again in the next round, and nobody else is ever blamed.
    assert found.failed == [{}, {EVIL: code}, {}, {}]
    assert found.state == lost.state
    assert [record.accuracy for record in found.records] == [record.accuracy for record in lost.records]


def test_a_false_memory_harms_only_its_owner(tmp_path: Path) -> None:
    found = outcome(FALSE_MEMORY, tmp_path)
    assert found.failed == [{}, {}, {EVIL: "client.failed"}, {EVIL: "client.failed"}]
    assert all(record.clients == 3 for record in found.records[2:])
