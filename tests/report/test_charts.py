from pathlib import Path

import pytest

from tacit.report import charts, curves, plots
from tacit.report.curves import BYTES, ROUNDS, STEPS, TIME
from tacit.report.history import Run, load
from tests.report.runs import a_run, record, spread, write_run


def pseudo_labeling(folder: Path, label: str, accepted: float, seed: int = 0, **more: float) -> Run:
    """Two rounds, the first without pseudo-labels."""
    metrics = {"pseudo_kept": spread(accepted)} | {name: spread(value) for name, value in more.items()}
    rounds = [record(0, 0.1), record(1, 0.2, metrics=metrics)]
    return load(write_run(folder / f"{label}-{seed}", rounds, seed=seed), label)


def test_an_axis_shows_the_accumulated_cost(tmp_path: Path) -> None:
    rounds = [record(n, None if n == 1 else 0.5, seconds=n + 1.0, server={"steps": 5}) for n in range(3)]
    run = load(write_run(tmp_path / "run", rounds))
    found = {axis.name: curves.accuracy([run], axis)[0].x for axis in (ROUNDS, BYTES, STEPS, TIME)}
    # evaluated after rounds 1 and 3; a round costs 1,500 bytes and 10 + 5 steps, the n-th one n seconds
    assert found == {"rounds": [1, 3], "bytes": [1500, 4500], "steps": [15, 45], "time": [1, 1 + 2 + 3]}


def test_the_position_is_the_mean_cost_of_the_seeds(tmp_path: Path) -> None:
    runs = [
        load(write_run(tmp_path / str(n), [record(0, 0.5, seconds=cost)]), "x") for n, cost in enumerate((2.0, 6.0))
    ]
    assert curves.accuracy(runs, TIME)[0].x == [4.0]


@pytest.mark.parametrize(
    "seconds, x_label, right", [(3.0, "time (s)", 3.0), (600.0, "time (min)", 10.0), (9000.0, "time (h)", 2.5)]
)
def test_the_unit_of_an_axis_fits_its_values(tmp_path: Path, seconds: float, x_label: str, right: float) -> None:
    run = load(write_run(tmp_path / "run", [record(0, 0.5, seconds=seconds)]))
    chart = charts.accuracy([run], TIME)
    axes = plots.draw(chart).axes[0]
    assert (chart.x_label, axes.get_xlabel()) == (x_label, x_label)
    assert list(axes.lines[0].get_xdata()) == pytest.approx([right])  # type: ignore[arg-type]


def test_runs_without_communication_have_an_axis(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [record(0, 0.5, bytes_up=0, bytes_down=0)]))
    assert charts.accuracy([run], BYTES).x_label == "communication (B)"


def test_pseudo_labels_are_shown_for_runs_that_logged_them(tmp_path: Path) -> None:
    plain = a_run(tmp_path / "plain", [0.1, 0.2], "plain")
    assert charts.pseudo_labels([plain]) == []
    runs = [
        plain,
        pseudo_labeling(tmp_path, "a", 0.5, pseudo_accuracy=0.75),
        pseudo_labeling(tmp_path, "a", 0.7, seed=1),
    ]
    accepted, correct = charts.pseudo_labels(runs)
    assert (accepted.name, correct.name) == ("pseudo-kept", "pseudo-accuracy")
    (curve,) = accepted.curves
    assert (curve.label, curve.x) == ("a", [2])
    assert [*curve.mean, *curve.low, *curve.high] == pytest.approx([60, 50, 70])
    assert correct.curves[0].mean == pytest.approx([75])


def test_client_models_are_shown_from_the_worst_client_to_the_best(tmp_path: Path) -> None:
    rounds = [record(0, 0.5, metrics={"local_accuracy": spread(0.4)})]
    runs = [load(write_run(tmp_path / "run", rounds), "x"), a_run(tmp_path / "plain", [0.5], "y")]
    (chart,) = charts.client_models(runs)
    (curve,) = chart.curves
    assert [*curve.mean, *curve.low, *curve.high] == pytest.approx([40, 30, 60])
    assert charts.client_models(runs[1:]) == []


def test_a_label_has_the_same_color_in_every_chart(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "plain", [0.1, 0.2], "plain"), pseudo_labeling(tmp_path, "a", 0.5)]
    (accepted,) = charts.pseudo_labels(runs)
    assert plots.draw(accepted).axes[0].lines[0].get_color() == plots.COLORS[1]


def test_a_legend_can_be_left_out(tmp_path: Path) -> None:
    chart = charts.accuracy([a_run(tmp_path / "run", [0.1, 0.2])])
    assert plots.draw(chart).legends
    assert not plots.draw(chart, legend=False).legends


def test_pseudo_labels_of_unknown_classes_have_a_chart_after_their_accuracy(tmp_path: Path) -> None:
    run = pseudo_labeling(tmp_path, "a", 0.5, pseudo_accuracy=0.75, pseudo_unknown=0.2)
    found = charts.pseudo_labels([run])
    assert [chart.name for chart in found] == ["pseudo-kept", "pseudo-accuracy", "pseudo-unknown"]
    assert found[-1].curves[0].mean == pytest.approx([20.0])
