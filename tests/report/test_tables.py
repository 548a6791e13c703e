from pathlib import Path

import pytest
from rich.console import Console

from tacit.report.history import Run, load
from tacit.report.page import page
from tacit.report.tables import notes, summarise, to_rich
from tests.report.runs import a_run, record, two_seeds, write_run

LONG = "fedavg+supervised, all labels"


def printed(runs: list[Run], title: str = "a title") -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(to_rich(summarise(runs), title))
    return capture.get()


def test_a_row_has_the_mean_and_spread_of_its_seeds(tmp_path: Path) -> None:
    (row,) = summarise(
        [
            a_run(tmp_path / "0", [0.2, 0.4], "ours"),  # last five: 0.3
            a_run(tmp_path / "1", [0.4, 0.8], "ours"),  # last five: 0.6
        ]
    )
    assert (row.label, row.seeds) == ("ours", 2)
    assert row.last5.mean == pytest.approx((0.3 + 0.6) / 2)
    assert row.last5.std == pytest.approx((2 * 0.15**2 / (2 - 1)) ** 0.5)
    assert row.best.mean == pytest.approx((0.4 + 0.8) / 2)
    assert (row.rounds.mean, row.steps.mean, row.seconds.mean) == (2, 20, 4)
    assert (row.bytes_up.mean, row.bytes_down.mean) == (1000, 2000)


def test_names_are_not_parsed_as_markup(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "0", [0.5], "a[red]b"), a_run(tmp_path / "1", [0.5, 0.5], "c")]
    text = printed(runs, "x[bold]y.toml")
    assert text.split()[0] == "x[bold]y.toml"
    assert "or of fewer: a[red]b" in text


def test_rows_are_in_order_of_first_appearance(tmp_path: Path) -> None:
    runs = two_seeds(tmp_path, "b", 0.1, 0.2) + two_seeds(tmp_path, "a", 0.3, 0.4)
    assert [row.label for row in summarise(runs)] == ["b", "a"]


@pytest.mark.parametrize(
    "ours, theirs, leads",
    [
        # std of (x - d, x + d) is d * sqrt(2): here 1.41 and 1.41 points, together 2.83
        ((0.74, 0.76), (0.70, 0.72), True),  # leads by 4 points
        ((0.74, 0.76), (0.72, 0.74), False),  # leads by 2 points
        ((0.70, 0.80), (0.70, 0.71), False),  # leads by 4.5 points with a std of 7.1
    ],
)
def test_a_row_leads_if_it_is_ahead_by_more_than_both_spreads(
    tmp_path: Path, ours: tuple[float, float], theirs: tuple[float, float], leads: bool
) -> None:
    rows = summarise(two_seeds(tmp_path, "theirs", *theirs) + two_seeds(tmp_path, "ours", *ours))
    assert [row.leads for row in rows] == [False, leads]


def test_a_leader_is_ahead_of_every_row_not_only_the_next_best(tmp_path: Path) -> None:
    runs = two_seeds(tmp_path, "ours", 0.80, 0.80) + two_seeds(tmp_path, "next", 0.75, 0.75)
    wild = two_seeds(tmp_path, "wild", 0.60, 0.84)  # mean 0.72, std 0.17
    assert [row.leads for row in summarise(runs)] == [True, False]
    assert not any(row.leads for row in summarise(runs + wild))


def test_with_one_seed_no_row_leads(tmp_path: Path) -> None:
    best = a_run(tmp_path / "best", [0.9], "best")
    assert not any(row.leads for row in summarise([best, a_run(tmp_path / "worse", [0.1], "worse")]))
    assert not any(row.leads for row in summarise([best, *two_seeds(tmp_path, "two", 0.1, 0.1)]))


def test_a_single_row_does_not_lead(tmp_path: Path) -> None:
    assert not summarise(two_seeds(tmp_path, "alone", 0.5, 0.5))[0].leads


def test_an_upper_bound_does_not_compete(tmp_path: Path) -> None:
    few, every = {"labels": "server", "n_labels": 50}, {"labels": "all"}
    rows = summarise(
        two_seeds(tmp_path, "few", 0.7, 0.7, data=few)
        + two_seeds(tmp_path, "fewer", 0.6, 0.6, data=few)
        + two_seeds(tmp_path, "bound", 0.9, 0.9, data=every)
    )
    assert [row.leads for row in rows] == [True, False, False]
    assert notes(rows)[-1].startswith("★ leads every other row by more than the sum of their standard deviations; ")


def test_upper_bounds_compete_among_themselves(tmp_path: Path) -> None:
    every = {"labels": "all"}
    runs = two_seeds(tmp_path, "a", 0.7, 0.7, data=every) + two_seeds(tmp_path, "b", 0.6, 0.6, data=every)
    rows = summarise(runs)
    assert [row.leads for row in rows] == [True, False]
    assert "do not compete" not in notes(rows)[-1]


def test_the_terminal_table_fits_80_columns_and_cuts_no_number(tmp_path: Path) -> None:
    heavy = record(9999, 1.0, steps=999_999, seconds=5990.0, bytes_up=888_800_000, bytes_down=888_800_000)
    light = heavy | {"accuracy": 0.0, "seconds": 4790.0}  # 79.8 min
    runs = [
        load(write_run(tmp_path / str(seed), [line], seed=seed), LONG) for seed, line in enumerate((heavy, light))
    ] + two_seeds(tmp_path, "labels only", 0.5, 0.6)
    text = printed(runs)
    assert max(map(len, text.splitlines())) <= 80
    for number in ("50.0 ± 70.7", "55.0 ± 7.1", "999,999", "888.8 MB", " 89.8 min"):
        assert number in text
    assert "…" not in text
    assert text.count("±") == 2 * 2 + 1  # two accuracies in two rows, and the caption
    label_column = [line[:14].strip() for line in text.splitlines()]
    assert LONG.replace(" ", "") in "".join(label_column).replace(" ", "")


def test_the_terminal_table_prints_labels_unchanged(tmp_path: Path) -> None:
    assert "[red]ours[/red]" in printed([a_run(tmp_path / "run", [0.5], "[red]ours[/red]")])


def test_the_terminal_table_explains_its_numbers(tmp_path: Path) -> None:
    one, two = a_run(tmp_path / "one", [0.5], "one"), two_seeds(tmp_path, "two", 0.5, 0.5)
    assert "seeds" not in printed([one])
    assert "mean ± std over 2 seeds" in " ".join(printed(two).split())
    assert "mean ± std over 1 to 2 seeds" in " ".join(printed([one, *two]).split())


@pytest.mark.parametrize(
    "evaluations, head, note",
    [
        ({"a": 9, "b": 5}, "last 5 (%)", "last 5: mean of the last 5 evaluations"),
        ({"a": 3, "b": 3}, "last 3 (%)", "last 3: mean of the last 3 evaluations"),
        ({"a": 1, "b": 1}, "last (%)", "last: the last evaluation"),
        ({"a": 9, "b": 2, "c": 1}, "last 5 (%)", "last 5: mean of the last 5 evaluations, or of fewer: b (2), c (1)"),
        ({"a": 3, "b": 2}, "last 3 (%)", "last 3: mean of the last 3 evaluations, or of fewer: b (2)"),
    ],
)
def test_the_heading_states_the_number_of_evaluations(
    tmp_path: Path, evaluations: dict[str, int], head: str, note: str
) -> None:
    runs = [a_run(tmp_path / label, [0.5] * number, label) for label, number in evaluations.items()]
    text = printed(runs)
    assert text.splitlines()[1].split("best")[0].removeprefix("run").strip() == head
    assert note in " ".join(text.split())
    assert f"<p class='note'>{note}.</p>" in page(runs)
    assert f"<th scope='col' role='columnheader'>{head}</th>" in page(runs)


def test_seeds_with_different_numbers_of_evaluations_are_named(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(number), [0.5] * number, "a", seed=number, rounds=9) for number in (2, 9)]
    assert "or of fewer: a (2 to 5); mean ± std over 2 seeds" in " ".join(printed(runs).split())
