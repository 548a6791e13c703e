from pathlib import Path

import pytest

from tacit.report import charts, plots
from tacit.report.curves import BYTES, ROUNDS, STEPS, TIME, curves
from tacit.report.read import Run, load
from tests.report.runs import a_run, record, spread, write_run


def guessing(folder: Path, label: str, kept: float, seed: int = 0, **more: float) -> Run:
    """Two rounds, the first without a pseudo-label."""
    told = {"pseudo_kept": spread(kept)} | {name: spread(value) for name, value in more.items()}
    rounds = [record(0, 0.1), record(1, 0.2, metrics=told)]
    return load(write_run(folder / f"{label}-{seed}", rounds, seed=seed), label)


def test_an_axis_is_what_the_rounds_until_then_have_cost(tmp_path: Path) -> None:
    rounds = [record(n, None if n == 1 else 0.5, seconds=n + 1.0, server={"steps": 5}) for n in range(3)]
    run = load(write_run(tmp_path / "run", rounds))
    found = {axis.name: curves([run], axis)[0].x for axis in (ROUNDS, BYTES, STEPS, TIME)}
    # evaluated after rounds 1 and 3; a round costs 1,500 bytes and 10 + 5 steps, the n-th one n seconds
    assert found == {"rounds": [1, 3], "bytes": [1500, 4500], "steps": [15, 45], "time": [1, 1 + 2 + 3]}


def test_seeds_that_cost_different_amounts_are_put_at_the_mean(tmp_path: Path) -> None:
    runs = [
        load(write_run(tmp_path / str(n), [record(0, 0.5, seconds=cost)]), "x") for n, cost in enumerate((2.0, 6.0))
    ]
    assert curves(runs, TIME)[0].x == [4.0]


@pytest.mark.parametrize(
    "seconds, across, right", [(3.0, "time (s)", 3.0), (600.0, "time (min)", 10.0), (9000.0, "time (h)", 2.5)]
)
def test_an_axis_has_a_handy_unit(tmp_path: Path, seconds: float, across: str, right: float) -> None:
    run = load(write_run(tmp_path / "run", [record(0, 0.5, seconds=seconds)]))
    chart = charts.accuracy([run], TIME)
    axes = plots.draw(chart).axes[0]
    assert (chart.across, axes.get_xlabel()) == (across, across)
    assert list(axes.lines[0].get_xdata()) == pytest.approx([right])  # type: ignore[arg-type]


def test_runs_that_send_nothing_have_an_axis_too(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [record(0, 0.5, bytes_up=0, bytes_down=0)]))
    assert charts.accuracy([run], BYTES).across == "bytes, both ways (B)"


def test_pseudo_labels_are_shown_of_those_that_have_them(tmp_path: Path) -> None:
    plain = a_run(tmp_path / "plain", [0.1, 0.2], "plain")
    assert charts.pseudo_labels([plain]) == []
    runs = [plain, guessing(tmp_path, "a", 0.5, pseudo_accuracy=0.75), guessing(tmp_path, "a", 0.7, seed=1)]
    kept, right = charts.pseudo_labels(runs)
    assert (kept.name, right.name) == ("pseudo-kept", "pseudo-accuracy")
    (curve,) = kept.curves
    assert (curve.label, curve.x) == ("a", [2])
    assert [*curve.mean, *curve.low, *curve.high] == pytest.approx([60, 50, 70])
    assert right.curves[0].mean == pytest.approx([75])


def test_own_models_are_shown_from_the_worst_client_to_the_best(tmp_path: Path) -> None:
    rounds = [record(0, 0.5, metrics={"local_accuracy": spread(0.4)})]
    runs = [load(write_run(tmp_path / "run", rounds), "x"), a_run(tmp_path / "plain", [0.5], "y")]
    (chart,) = charts.own_models(runs)
    (curve,) = chart.curves
    assert [*curve.mean, *curve.low, *curve.high] == pytest.approx([40, 30, 60])
    assert charts.own_models(runs[1:]) == []


def test_a_label_has_the_same_colour_in_every_chart(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "plain", [0.1, 0.2], "plain"), guessing(tmp_path, "a", 0.5)]
    (kept,) = charts.pseudo_labels(runs)
    assert plots.draw(kept).axes[0].lines[0].get_color() == plots.COLORS[1]


def test_a_chart_without_a_key_has_none(tmp_path: Path) -> None:
    chart = charts.accuracy([a_run(tmp_path / "run", [0.1, 0.2])])
    assert plots.draw(chart).legends
    assert not plots.draw(chart, key=False).legends
