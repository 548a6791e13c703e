"""The table of each client's data: every number in its place, and no line wider than the terminal."""

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from tacit.report.client_table import GAP, Counts, Holdings, disambiguate, table

CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LETTERS = tuple(f"letter_{number}" for number in range(47))


def holdings(
    clients: int,
    classes: tuple[str, ...] = CLOTHES,
    most: int = 100,
    labels: int = 0,
    unknown: int = 0,
) -> Holdings:
    """Random unlabeled samples, and labels of each class at every client."""
    shape = (clients, len(classes) + 1)
    unlabeled = np.random.default_rng(0).integers(0, most, shape)
    labeled = np.full(shape, labels)
    unlabeled[:, -1], labeled[:, -1] = unknown, 0
    return Holdings(labeled, unlabeled, classes)


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def cells(lines: list[Text], head: str) -> list[str]:
    """The cells of the first row with this head."""
    return next(line.split()[1:] for line in plain(lines) if line.split()[0] == head)


def words(counts: Counts) -> list[str]:
    return [str(number) for number in [*counts.tolist(), counts.sum()]]


SHAPES = [
    holdings(3),
    holdings(10),
    holdings(10, labels=5),
    holdings(10, labels=5, most=3000),
    holdings(10, labels=5, most=30_000),
    holdings(100, labels=5),
    holdings(100, most=2000, unknown=33),
    holdings(1000, LETTERS),
    holdings(10, LETTERS, labels=2, unknown=5),
    holdings(12, ("x" * 300, "字" * 60, "ok")),
    holdings(1, ("one",)),
    holdings(4, ("[bold]", " ", "\n", "?"), unknown=1),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_line_is_wider_than_the_terminal(shape: Holdings) -> None:
    for width in range(60, 140):
        lines, _ = table(shape, width)
        assert max(cell_len(line) for line in plain(lines)) <= width
        assert not any("\n" in line or line != line.rstrip() for line in plain(lines))
        assert any(line.split()[0] == "0" for line in plain(lines))


def test_without_labels_at_clients_a_cell_is_one_number() -> None:
    held = holdings(10)
    lines, meaning = table(held, 80)
    for client in range(10):
        assert cells(lines, str(client)) == words(held.unlabeled[client, :-1])
    assert cells(lines, "total") == words(held.unlabeled[:, :-1].sum(axis=0))
    assert meaning == "Samples of each class, all unlabeled."


def test_with_all_labels_a_cell_is_one_number() -> None:
    held = holdings(10)
    lines, meaning = table(Holdings(held.unlabeled, held.labeled, CLOTHES), 80)
    assert cells(lines, "3") == words(held.unlabeled[3, :-1])
    assert meaning == "Samples of each class, all labeled."


def test_labeled_samples_come_before_unlabeled_ones() -> None:
    held = holdings(10, labels=5)
    held.labeled[3, 2] = 0
    lines, meaning = table(held, 80)
    expected = [f"5/{number}" for number in held.unlabeled[3, :-1].tolist()]
    expected[2] = str(held.unlabeled[3, 2])
    assert cells(lines, "3") == [*expected, f"45/{held.unlabeled[3].sum()}"]
    assert cells(lines, "labeled") == words(held.labeled[:, :-1].sum(axis=0))
    assert cells(lines, "unlabeled") == words(held.unlabeled[:, :-1].sum(axis=0))
    assert meaning == "Labeled/unlabeled samples of each class; a single number is unlabeled."


def test_wide_pairs_become_two_lines() -> None:
    held = holdings(10, labels=5, most=3000)
    lines = plain(table(held, 80)[0])
    place = next(place for place, line in enumerate(lines) if line.split()[:2] == ["7", "labeled"])
    assert lines[place].split()[2:] == words(held.labeled[7, :-1])
    assert lines[place + 1].split() == ["unlabeled", *words(held.unlabeled[7, :-1])]
    assert len(plain(table(held, 120)[0])) == len(lines) - 10  # pairs, since there is room


def test_unknown_classes_have_a_column() -> None:
    held = holdings(4, unknown=33)
    lines, _ = table(held, 80)
    assert plain(lines)[0].split()[-2:] == ["?", "total"]
    assert cells(lines, "2") == words(held.unlabeled[2])


def test_many_clients_are_shown_by_the_first_the_last_and_the_spread() -> None:
    held = holdings(100)
    lines, meaning = table(held, 80)
    heads = [line.split()[0] for line in plain(lines) if line.strip("─")]
    shown = [*map(str, range(6)), GAP, *map(str, range(96, 100))]
    assert heads == ["client", *shown, "fewest", "median", "most", "total"]
    assert cells(lines, "most")[:-1] == [str(number) for number in held.all[:, :-1].max(axis=0)]
    assert cells(lines, "most")[-1] == str(held.all.sum(axis=1).max())
    assert cells(lines, "median")[0] == f"{np.median(held.all[:, 0]):g}"
    assert cells(lines, "total") == words(held.all[:, :-1].sum(axis=0))
    assert "Clients 6 to 95 are left out" in meaning
    assert "together" not in meaning
    assert "labeled and unlabeled samples together" in table(holdings(100, labels=5), 80)[1]
    assert len(plain(table(holdings(20), 80)[0])) == 20 + 4


def test_with_many_classes_each_client_is_summarized() -> None:
    held = holdings(10, LETTERS, labels=2)
    held.unlabeled[4] = held.labeled[4] = 0
    held.unlabeled[5] = held.labeled[5] = 0
    held.unlabeled[5, [7, 9]] = 30, 10
    lines, meaning = table(held, 80)
    assert plain(lines)[0].split() == ["client", "labeled", "unlabeled", "classes", "largest", "class"]
    assert cells(lines, "4") == ["0", "0", "0"]
    assert cells(lines, "5") == ["0", "40", "2", "letter_7", "75%"]
    assert cells(lines, "total") == [str(held.labeled.sum()), str(held.unlabeled.sum()), "47"]
    sizes = held.all.sum(axis=0)[:-1]
    assert f"have {sizes.min()} to {sizes.max()} (median {np.median(sizes):g}) samples of each class" in meaning


def test_zeros_are_dim() -> None:
    unlabeled = np.array([[0, 10, 0]])
    lines, _ = table(Holdings(np.zeros_like(unlabeled), unlabeled, ("a", "b")), 80)
    (row,) = (line for line in lines if line.plain.split()[0] == "0")
    dim = [row.plain[span.start : span.end].strip() for span in row.spans if span.style == "dim"]
    assert dim == ["0"]


def test_names_are_complete_if_there_is_room() -> None:
    assert plain(table(holdings(3), 120)[0])[0].split() == ["client", *" ".join(CLOTHES).split(), "total"]
    narrow = plain(table(holdings(3), 80)[0])[0].split()
    assert len(narrow) == 12
    for short, name in zip(narrow[1:10], CLOTHES[:9], strict=True):
        assert short in (name, name[: len(short) - 1] + "…")


def test_shortened_names_stay_distinct() -> None:
    assert disambiguate(["abcdef", "abcxyz"], [5, 5]) == ["abcd…", "abcx…"]
    assert disambiguate(["class_10", "class_11"], [4, 4]) == ["…_10", "…_11"]
    assert disambiguate(["a111b", "a222b"], [3, 3]) == ["a1…", "a2…"]
    assert disambiguate(["aaaa1bbbb", "aaaa2bbbb"], [3, 3]) == ["0", "1"]


def test_numbers_in_place_of_names_do_not_replace_the_total() -> None:
    similar = tuple(f"{'a' * 40}{number}{'b' * 40}" for number in range(12))
    assert plain(table(holdings(3, similar), 80)[0])[0].split() == ["client", *map(str, range(12)), "total"]


def test_invisible_names_are_quoted() -> None:
    assert holdings(1, (" ", "\n", "a")).names == ["' '", "'\\n'", "a"]
