"""The tables of the papers: all there, every number in a cell that is played, and a smaller scale that can be dealt."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from tacit.bench import cells, files
from tacit.bench.cells import Spot
from tacit.data.scenario import Scenario, split
from tacit.random import Streams
from tests.data.test_papers import CLASS_COUNTS, labels_of

TABLES = {
    "fedmatch": ["table1", "table2", "table5", "table6", "covid"],
    "moon": [f"table{number}" for number in range(1, 6)],
    "fedmix": [f"table{number}" for number in range(1, 7)],
    "fedsiam": [f"table5-{data}" for data in ("mnist", "mnist-15", "mnist-20", "cifar", "svhn")]
    + ["table6", "table7", "table8"],
    "fedseal": [f"table{number}" for number in (1, 2, 4, 7, 8, 9, 10)],  # Table 5 is a column of table4
    "ssfl": ["table1", "table2", "table3", "table4", "table-c1", "table-f1", "figure2", "figure3", "figure4"],
}
NAMES = [f"{paper}-{table}" for paper, tables in TABLES.items() for table in tables]
WITHOUT_NUMBERS = {"fedmatch-covid", "moon-table2"}  # an image; numbers of rounds


@cache
def planned(name: str, quick: bool) -> list[Spot]:
    """All cells, their configs checked; no data is read."""
    return cells.spots(files.find(name), quick)


def scenarios() -> Iterator[Scenario]:
    """Every setting of `[data]` at the smaller scale, once."""
    found = {replace(spot.config.data, split=None): None for name in NAMES for spot in planned(name, True)}
    yield from (data for data in found if data.name in CLASS_COUNTS)


def test_every_table_is_there() -> None:
    assert set(NAMES) <= files.names().keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_an_accuracy_of_a_cell_that_is_played(name: str) -> None:
    published = files.find(name).published
    assert bool(published) == (name not in WITHOUT_NUMBERS)
    numbers = {(column, row): number for row, of in published.items() for column, number in of.items()}
    assert all(0 < number < 100 for number in numbers.values())
    assert numbers.keys() <= {spot.place for spot in planned(name, False)}


@pytest.mark.parametrize("name", NAMES)
def test_every_doubt_is_about_a_number(name: str) -> None:
    benchmark = files.find(name)
    numbers = [(row, column) for row, of in benchmark.published.items() for column in of]
    for doubt in benchmark.doubts:
        assert any(doubt.concerns(row, column) for row, column in numbers), doubt.why


@pytest.mark.parametrize("name", NAMES)
def test_the_smaller_scale_has_the_same_cells_and_fewer_rounds(name: str) -> None:
    full, small = planned(name, False), planned(name, True)
    assert [spot.place for spot in small] == [spot.place for spot in full]
    for one, other in zip(small, full, strict=True):
        assert one.config.rounds < other.config.rounds
        assert one.config.train.warmup < one.config.rounds


def test_the_smaller_scale_can_be_dealt() -> None:
    """From class counts of the real data sets: enough samples for all clients, labels and held-out sets."""
    dealt = 0
    for data in scenarios():
        y, classes = labels_of(data)
        result = split(y, classes, data, Streams(0))
        assert all(len(part) for part in result.clients), data
        dealt += 1
    assert dealt > 50
