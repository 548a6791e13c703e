"""The tables of the papers: complete, every number from the paper and in a cell that is run, with a reduced scale."""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache

import pytest

from tacit.bench import plan, spec
from tacit.bench.plan import Cell
from tacit.data.split.config import DataConfig
from tacit.data.split.split import draw_split
from tacit.random import Streams
from tests.data.class_counts import CLASS_COUNTS, labels_of
from tests.data.real import SHARED

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
def planned(name: str, quick: bool) -> list[Cell]:
    """All cells, with their configs checked; no data is read."""
    return plan.cells(spec.find(name), quick)


def scenarios() -> Iterator[DataConfig]:
    """Every distinct `[data]` section at the reduced scale."""
    found = {replace(cell.config.data, split=None): None for name in NAMES for cell in planned(name, True)}
    yield from (data for data in found if data.name in CLASS_COUNTS)


def test_every_table_has_a_benchmark() -> None:
    assert set(NAMES) <= spec.names().keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_an_accuracy_of_a_cell(name: str) -> None:
    published = spec.find(name).published
    assert bool(published) == (name not in WITHOUT_NUMBERS)
    numbers = {(column, row): number for row, of in published.items() for column, number in of.items()}
    assert all(0 < number < 100 for number in numbers.values())
    assert numbers.keys() <= {cell.place for cell in planned(name, False)}


# Where the numbers come from: texts extracted from the papers, and how many lines before and after a mention of a
# table to search for the table.

TEXTS = {
    "fedmatch": ("papers/fedmatch.txt", 20),
    "moon": ("papers/slides-moon-fedmix-fedmatch.txt", 10),
    "fedmix": ("papers/slides-moon-fedmix-fedmatch.txt", 15),
    "fedsiam": ("papers/fedsiam.txt", 40),
    "fedseal": ("papers/fedseal.txt", 30),
    "ssfl": ("papers/ssfl-benchmark.txt", 40),
}
# Not in these texts: the file that has the numbers, in a line with these words.
FACTS = {
    "fedmix-table4": ("FACTS.md", "local-epoch sweep"),
    "newer": ("NEWER.md", "Fashion-MNIST @40 labels"),
}
ALSO = {"ssfl-table1": "96.17"}  # a line elsewhere that has one more number
SAME_TABLE = {"moon-cifar10": "moon-table1"}  # at another scale
WITH_NUMBERS = [name for name, path in spec.names().items() if "[published." in path.read_text(encoding="utf-8")]


def numbers(text: str) -> set[Decimal]:
    """Every number of a text, in percent: 74.37, 74.37 ± 0.2, .7437; LaTeX markup within a number is ignored."""
    plain = re.sub(r"\\[a-zA-Z]+|[{}$*]", "", text.replace("\\pm", " ± "))
    found = {Decimal(number) for number in re.findall(r"(?<![\w.])\d*\.?\d+(?!\w|\.\d)", plain)}
    return found | {100 * number for number in found if number < 1}


def mention(name: str) -> str:
    """The table's name in the paper: `ssfl-table-c1` is Table C.1."""
    kind, letter, number = re.findall(r"-(table|figure)-?([a-z]?)(\d+)", SAME_TABLE.get(name, name))[0]
    return f"{kind.title()} {letter.upper() + '.' if letter else ''}{number}"


def around(text: str, words: str, near: int) -> str:
    """The lines that mention something, and `near` lines before and after each."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if re.search(rf"{re.escape(words)}(?!\d)", line)]
    return "\n".join(line for place, line in enumerate(lines) if any(abs(place - at) <= near for at in places))


@pytest.mark.data
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_every_number_is_in_the_paper_near_its_table(name: str) -> None:
    path, near = (FACTS[name][0], 0) if name in FACTS else TEXTS[name.partition("-")[0]]
    source = SHARED.parent / path
    if not source.exists():
        pytest.skip(f"{path} is not on this machine")
    text = source.read_text(encoding="utf-8")
    printed = numbers(around(text, FACTS[name][1] if name in FACTS else mention(name), near))
    if name in ALSO:
        printed |= numbers(around(text, ALSO[name], 0))
    published = {
        (row, column): number for row, of in spec.find(name).published.items() for column, number in of.items()
    }
    assert [place for place, number in published.items() if Decimal(str(number)) not in printed] == []


# Tables whose lines and columns the text preserves. A line of FedSEAL's is one of our rows, with these columns …
ROWS_OF: list[tuple[str, list[str], list[str]]] = [
    ("fedseal-table1", ["server-sl", "fedavg-sl", "fedavg-fixmatch", "fedavg-uda", "fedseal"], ["noniid", "iid"]),
    (
        "fedseal-table2",
        ["server-sl-plain", "server-sl", "fedavg-sl", "fedmatch", "fedmatch-corrected", "fedrgd", "fedseal"],
        ["noniid", "iid"],
    ),
    (
        "fedseal-table4",
        ["server-sl", "fedavg-sl", "fedavg-fixmatch", "fedavg-uda", "fedseal", "fedseal-strong"],
        ["dir-0-1", "dir-0-3", "dir-0-9"],
    ),
    ("fedseal-table4", ["server-sl", "fedseal"], ["dir-0-3", "dir-0-3-1000"]),  # Table 5
    ("fedseal-table7", ["server-sl", "fedavg-sl", "fedavg-fixmatch", "fedavg-uda", "fedseal"], ["noniid", "iid"]),
    ("fedseal-table8", ["fedmatch-5", "fedseal-5", "fedseal-10"], ["iid"]),
    ("fedseal-table9", ["soft", "hard"], ["iid"]),
    ("fedseal-table10", ["server-sl", "fedavg-sl", "fedavg-fixmatch", "fedavg-uda", "fedseal"], ["noniid", "iid"]),
]
# … and a line of SSFL's is one of our columns, with these rows.
COLUMNS_OF: list[tuple[str, list[str], list[str]]] = [
    ("ssfl-table1", ["cifar10", "svhn"], ["k-10", "k-20", "k-30"]),
    ("ssfl-table1", ["cifar10", "svhn"], ["k-10", "k-20-c-10", "k-30-c-10"]),
    ("ssfl-table2", ["cifar10", "svhn"], ["fedavg", "groups-2"]),
    ("ssfl-table2", ["emnist"], ["fedavg", "groups-5"]),
    ("ssfl-table3", ["cifar10"], ["fedavg", "sharing", "ssfl"]),
    ("ssfl-table4", ["t-2", "t-8"], ["easgd", "overlap-sgd", "ssfl", "groups-2"]),
    ("ssfl-table4", ["t-32"], ["ssfl", "groups-2"]),
    ("ssfl-table-c1", ["emnist"], ["c-10", "c-30", "c-47"]),
    ("ssfl-table-f1", ["cifar10", "svhn"], ["c-3", "c-6", "c-10", "c-30"]),
]
PRINTED_AS = {  # where the paper names a line differently from our row or column
    ("fedseal-table2", "fedmatch"): "FEDMATCH",
    ("fedseal-table9", "soft"): "FEDSEAL W/O PSEUDO-LABELING (5 SAMPLED CLIENTS)",
    ("fedseal-table9", "hard"): "FEDSEAL (5 SAMPLED CLIENTS)",
    ("ssfl-table2", "cifar10"): "Cifar-10",
    ("ssfl-table2", "svhn"): "SVHN",
    ("ssfl-table2", "emnist"): "EMNIST",
    ("ssfl-table3", "cifar10"): "Cifar-10, Non-iid",
    ("ssfl-table4", "t-2"): "Non-iid, T = 2",
    ("ssfl-table4", "t-8"): "Non-iid, T = 8",
    ("ssfl-table4", "t-32"): "Non-iid, T = 32",
}


def printed_lines(text: str) -> list[tuple[str, list[Decimal]]]:
    """The lines of tables: the name, and the first number of every cell that has one."""
    cells = [line.split("\t") for line in text.splitlines() if "\t" in line]
    firsts = [[re.search(r"\d+\.\d+", cell) for cell in line[1:]] for line in cells]
    return [
        (named(line[0]), [Decimal(number[0]) for number in found if number])
        for line, found in zip(cells, firsts, strict=True)
    ]


def named(words: str) -> str:
    """A name in lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", words.lower())


@pytest.mark.data
@pytest.mark.parametrize("name, lines, across", ROWS_OF + COLUMNS_OF, ids=str)
def test_every_number_is_in_its_line_and_column(name: str, lines: list[str], across: list[str]) -> None:
    source = SHARED.parent / TEXTS[name.partition("-")[0]][0]
    if not source.exists():
        pytest.skip(f"{source.name} is not on this machine")
    benchmark, by_row = spec.find(name), name.startswith("fedseal")
    titles = {key: each.title for key, each in (benchmark.rows if by_row else benchmark.columns).items()}
    near = printed_lines(around(source.read_text(encoding="utf-8"), mention(name), TEXTS[name.partition("-")[0]][1]))
    for line in lines:
        places = [(line, other) if by_row else (other, line) for other in across]
        ours = [Decimal(str(benchmark.published[row][column])) for row, column in places]
        assert (named(PRINTED_AS.get((name, line), titles[line])), ours) in near


def test_every_published_number_of_these_tables_is_checked_by_line() -> None:
    seen = {(name, row, column) for name, rows, columns in ROWS_OF for row in rows for column in columns}
    seen |= {(name, row, column) for name, columns, rows in COLUMNS_OF for row in rows for column in columns}
    seen |= {("ssfl-table1", f"k-{k}-long", "svhn") for k in (10, 30)}  # in A.3, and in brackets after another number
    for name in {name for name, _, _ in seen}:
        there = {(name, row, column) for row, of in spec.find(name).published.items() for column in of}
        assert there <= seen


def test_lines_are_parsed_with_the_first_number_of_each_cell() -> None:
    text = "FEDSEAL (5 CLIENTS)\t74.39 \\pm 0.51%\t77.8\nno table 1.5\nNon-iid, $T = 2$\t—\t74.71% (93.94%*)"
    assert printed_lines(text) == [
        ("fedseal5clients", [Decimal("74.39"), Decimal("77.8")]),
        ("noniidt2", [Decimal("74.71")]),
    ]


@pytest.mark.parametrize(
    "text",
    ["74.37", "74.37%", "is 74.37.", "**74.37** ± 0.2", "$74.\\overline{37}\\pm0.2$", "74.37/73.8", ".7437", "0.7437"],
)
def test_a_number_is_found_however_it_is_written(text: str) -> None:
    assert Decimal("74.37") in numbers(text)


@pytest.mark.parametrize("text", ["74.371", "174.37", "74.3", "7437", "74.37.1", "x74.37", "7.437"])
def test_a_different_number_is_not_found(text: str) -> None:
    assert Decimal("74.37") not in numbers(text)


def test_all_tables_with_numbers_are_checked() -> None:
    assert set(NAMES) - WITHOUT_NUMBERS <= set(WITH_NUMBERS)
    assert mention("ssfl-table-c1") == "Table C.1"
    assert mention("fedsiam-table5-mnist-15") == "Table 5"
    assert mention("moon-cifar10") == "Table 1"


def test_only_lines_near_a_mention_are_searched() -> None:
    text = "1.5\n2.5\nTable 1: accuracies\n3.5\n4.5\nTable 10\n5.5"
    assert numbers(around(text, "Table 1", 1)) == {Decimal("2.5"), Decimal(1), Decimal("3.5")}


@pytest.mark.parametrize("name", NAMES)
def test_every_caveat_concerns_a_number(name: str) -> None:
    benchmark = spec.find(name)
    numbers = [(row, column) for row, of in benchmark.published.items() for column in of]
    for caveat in benchmark.caveats:
        assert any(caveat.concerns(row, column) for row, column in numbers), caveat.why


@pytest.mark.parametrize("name", NAMES)
def test_the_reduced_scale_has_the_same_cells_and_fewer_rounds(name: str) -> None:
    full, small = planned(name, False), planned(name, True)
    assert [cell.place for cell in small] == [cell.place for cell in full]
    for one, other in zip(small, full, strict=True):
        assert one.config.rounds < other.config.rounds
        assert one.config.train.warmup < one.config.rounds


def test_the_data_of_the_reduced_scale_can_be_split() -> None:
    """With the class counts of the real data sets there are enough samples for clients, labels and held-out sets."""
    done = 0
    for data in scenarios():
        y, classes = labels_of(data)
        result = draw_split(y, classes, data, Streams(0))
        assert all(len(part) for part in result.clients), data
        done += 1
    assert done > 50
