import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from tacit.report import curves, plots
from tacit.report.curves import Curve
from tacit.report.history import Run
from tests.refusals import refused
from tests.report.runs import a_run


def some_runs(folder: Path, labels: tuple[str, ...] = ("labels only", "fedavg+supervised, all labels")) -> list[Run]:
    accuracies = [round / 40 for round in range(1, 31)]
    return [a_run(folder / str(n), accuracies, label) for n, label in enumerate(labels)]


def test_a_curve_has_mean_and_range_over_rounds_common_to_all_seeds(tmp_path: Path) -> None:
    ahead, behind = a_run(tmp_path / "0", [0.1, 0.2, 0.9], "x"), a_run(tmp_path / "1", [0.3, 0.6], "x", rounds=3)
    (curve,) = curves.accuracy([ahead, behind])
    assert curve.label == "x"
    assert curve.x == [1, 2]
    assert curve.mean == pytest.approx([(10 + 30) / 2, (20 + 60) / 2])
    assert curve.low == pytest.approx([10, 20])
    assert curve.high == pytest.approx([30, 60])


def test_seeds_without_common_rounds_make_a_curve(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "0", [0.5, None], "x"), a_run(tmp_path / "1", [None, 0.25], "x")]
    assert curves.accuracy(runs) == [Curve("x", [1, 2], [50, 25], [50, 25], [50, 25])]


@pytest.mark.parametrize("width, height", [(80, 20), (40, 12), (133, 40)])
def test_a_terminal_curve_has_the_given_size(tmp_path: Path, width: int, height: int) -> None:
    runs = some_runs(tmp_path, ("labels only", "fedavg+supervised, all labels", "z" * 200, "字" * 90))
    lines = plots.terminal_curve(runs, width, height, color=False).split("\n")
    assert len(lines) == height
    assert max(map(cell_len, lines)) == width


def test_a_terminal_curve_has_the_given_width_in_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "5")
    lines = plots.terminal_curve(some_runs(tmp_path), 80, 20, color=False).split("\n")
    assert (len(lines), max(map(len, lines))) == (20, 80)


def test_a_terminal_curve_has_a_legend_and_round_ticks(tmp_path: Path) -> None:
    lines = plots.terminal_curve(some_runs(tmp_path), 80, 20, color=False).split("\n")
    assert lines[-1] == " oo labels only   xx fedavg+supervised, all labels"
    assert lines[-2].split() == ["5", "10", "15", "20", "25", "30"]
    assert [line.split("┤")[0].strip() for line in lines if "┤" in line] == ["60", "40", "20"]


def test_a_terminal_curve_has_colors_only_on_request(tmp_path: Path) -> None:
    runs = some_runs(tmp_path)
    assert "\x1b" not in plots.terminal_curve(runs, 80, 20, color=False)
    colored = plots.terminal_curve(runs, 80, 20, color=True)
    for number in plots.TERMINAL_COLORS[: len(runs)]:
        assert f"\x1b[38;5;{number}m" in colored


def test_a_terminal_curve_follows_the_numbers(tmp_path: Path) -> None:
    lines = plots.terminal_curve([a_run(tmp_path / "run", [0.2, 0.4, 0.8])], 60, 15, color=False).split("\n")
    drawn = [line for line in lines[:-1] if "o" in line.split("│")[-1].split("┤")[-1] and "round" not in line]
    assert drawn[0].rstrip().endswith("o")  # the highest is at the right
    assert drawn[-1].lstrip("2│┤0 ").startswith("o")
    assert len(drawn[-1].rstrip()) < len(drawn[0].rstrip())


def test_a_single_point_is_drawn(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "run", [1.0])]
    assert plots.terminal_curve(runs, 40, 10, color=False).split("\n")[1] == "100┤" + " " * 35 + "o"
    assert plots.figure(runs).axes[0].lines[0].get_marker() == "o"


def test_a_figure_shows_means_and_the_range_of_the_seeds(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "0", [0.1, 0.2], "x"), a_run(tmp_path / "1", [0.3, 0.6], "x")]
    axes = plots.figure(runs).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([20, 40])  # type: ignore[arg-type]
    box = axes.collections[0].get_datalim(axes.transData)
    assert (box.ymin, box.ymax) == pytest.approx((10, 60))


def test_the_legend_starts_with_the_curve_that_ends_highest(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "low", [0.1], "low"), a_run(tmp_path / "high", [0.9], "high")]
    picture = plots.figure(runs)
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == ["high", "low"]
    assert [line.get_color() for line in picture.axes[0].lines] == list(plots.COLORS[:2])
    assert legend.get_lines()[0].get_color() == plots.COLORS[1]


@pytest.mark.parametrize("name, start", [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_the_name_decides_the_format_and_bytes_are_reproducible(tmp_path: Path, name: str, start: bytes) -> None:
    runs = some_runs(tmp_path / "runs")
    plots.save(plots.figure(runs), tmp_path / "first" / name)
    plots.save(plots.figure(runs), tmp_path / "second" / name)
    first = (tmp_path / "first" / name).read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / "second" / name).read_bytes()
    assert [path.name for path in (tmp_path / "first").iterdir()] == [name]
    assert b"<dc:date>" not in first
    assert b"/CreationDate" not in first


def test_an_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with refused("report.picture-format"):
        plots.save(plots.figure(some_runs(tmp_path / "runs")), tmp_path / "a.gif")


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("storage.cannot-write"):
        plots.save(plots.figure(some_runs(tmp_path / "runs")), tmp_path / "file" / "a.png")


def test_an_inline_svg_uses_the_text_color_of_the_page(tmp_path: Path) -> None:
    svg = plots.inline_svg(plots.figure(some_runs(tmp_path)))
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "fill: #ffffff" not in svg  # no background
    assert ">labels only</text>" in svg


def test_a_label_is_not_parsed_as_math_or_html(tmp_path: Path) -> None:
    svg = plots.inline_svg(plots.figure(some_runs(tmp_path, (r"_$\frac$ <b>",))))
    assert r">_$\frac$ &lt;b&gt;</text>" in svg


def test_characters_missing_in_the_font_cause_no_warning(tmp_path: Path) -> None:
    picture = plots.figure([a_run(tmp_path / "run", [0.2, 0.4], "猫")])
    with pytest.warns(UserWarning, match="Glyph"):
        picture.savefig(tmp_path / "plain.png")
    plots.save(picture, tmp_path / "a.png")  # a warning would be an error here
    assert "猫" in plots.inline_svg(picture)


def test_importing_reports_loads_no_slow_package() -> None:
    code = "import sys, tacit.report.page; print({'torch', 'numpy', 'matplotlib', 'plotext'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_drawing_does_not_import_pyplot(tmp_path: Path) -> None:
    plots.save(plots.figure(some_runs(tmp_path / "runs")), tmp_path / "a.png")
    assert "matplotlib.pyplot" not in sys.modules
