"""Figures of each client's data: the numbers in the cells are the counts, and the images are those given."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from tacit.report import plots
from tacit.report.partition_plots import Counts, Images, heat_map, sample_grid, shortened

NAMES = ("T-shirt", "bag", "$a$")


def some_counts(clients: int, classes: int = 3, most: int = 300) -> Counts:
    counts = np.random.default_rng(0).integers(0, most, (clients, classes))
    counts[0, 0] = 0
    return counts


def maps(picture: Figure) -> list[Axes]:
    """The axes without those of the color scales."""
    return [axes for axes in picture.axes if axes.get_label() != "<colorbar>"]


def mesh(axes: Axes) -> QuadMesh:
    (found,) = (each for each in axes.collections if isinstance(each, QuadMesh))
    return found


def values(axes: Axes) -> list[list[int]]:
    array = mesh(axes).get_array()
    assert array is not None
    found: list[list[int]] = np.asarray(array).tolist()
    return found


def written(axes: Axes) -> list[int]:
    """The numbers in the cells, line by line."""
    texts = sorted((text.get_position()[1], text.get_position()[0], text.get_text()) for text in axes.texts)
    return [int(text) for _, _, text in texts]


def images(n: int = 4, channels: int = 1) -> Images:
    return np.random.default_rng(0).random((n, 6, 5, channels), dtype=np.float32)


def test_colors_and_numbers_are_the_counts() -> None:
    counts = some_counts(4)
    (axes,) = maps(heat_map({"all": counts}, NAMES))
    assert values(axes) == counts.T.tolist()
    assert written(axes) == counts.T.reshape(-1).tolist()
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(NAMES)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "2", "3"]
    assert axes.get_xlabel() == "client"


def test_more_samples_are_darker_and_zero_is_white() -> None:
    (axes,) = maps(heat_map({"all": np.array([[0, 1, 5], [50, 299, 300]])}, NAMES))
    cells = mesh(axes)
    grey = cells.to_rgba(np.array([0, 1, 5, 50, 299, 300]))[:, :3] @ [0.299, 0.587, 0.114]  # as in grey print
    assert grey[0] == pytest.approx(1)
    assert grey[1] < 0.95
    assert (np.diff(grey) <= 0).all()
    assert grey[3] < grey[1]
    assert grey[4] < grey[3] - 0.3


def test_every_panel_has_a_separate_scale() -> None:
    counts = some_counts(4)
    picture = heat_map({"all": counts, "labeled": counts // 100}, NAMES)
    first, second = maps(picture)
    assert (mesh(first).get_clim()[1], mesh(second).get_clim()[1]) == (counts.max(), counts.max() // 100)
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["all", "labeled"]
    assert [axes.get_xlabel() for axes in (first, second)] == ["", "client"]
    assert len(picture.axes) == 4


def test_maps_of_many_classes_are_side_by_side() -> None:
    names = [f"class {number}" for number in range(47)]
    counts = some_counts(12, 47)
    picture = heat_map({"all": counts, "labeled": counts}, names)
    picture.draw_without_rendering()
    first, second = (axes.get_position() for axes in maps(picture))
    assert first.x1 < second.x0
    assert first.y0 == pytest.approx(second.y0)
    assert [len(axes.get_yticks()) for axes in maps(picture)] == [47, 0]


def test_the_server_is_a_column_on_the_same_scale() -> None:
    server = np.array([400, 5, 0])
    clients, alone = maps(heat_map({"all": some_counts(4)}, NAMES, server))
    assert values(alone) == [[400], [5], [0]]
    assert written(alone) == [400, 5, 0]
    assert [text.get_text() for text in alone.get_xticklabels()] == ["server"]
    assert mesh(clients).get_clim() == mesh(alone).get_clim()
    assert mesh(clients).get_clim()[1] == 400


def test_unknown_classes_do_not_set_the_scale() -> None:
    counts = np.array([[3, 7, 900], [4, 0, 800]])
    (plain,) = maps(heat_map({"all": counts}, NAMES))
    (axes,) = maps(heat_map({"all": counts}, NAMES, unknown=True))
    assert (mesh(plain).get_clim()[1], mesh(axes).get_clim()[1]) == (900, 7)
    assert written(axes) == counts.T.reshape(-1).tolist()


@pytest.mark.parametrize("clients, numbers", [(10, True), (50, False), (51, False), (1000, False)])
def test_cells_have_numbers_if_there_is_room(clients: int, numbers: bool) -> None:
    (axes,) = maps(heat_map({"all": some_counts(clients)}, NAMES))
    assert bool(axes.texts) is numbers


def test_many_clients_and_classes_have_some_ticks() -> None:
    names = [str(number) for number in range(200)]
    picture = heat_map({"all": some_counts(300, 200)}, names)
    (axes,) = maps(picture)
    picture.draw_without_rendering()
    assert 4 <= len(axes.get_xticks()) <= 14
    assert 40 <= len(axes.get_yticks()) < 100
    wide, high = picture.get_size_inches()
    assert wide <= 7.5
    assert high <= 9


def test_a_client_without_samples_can_be_drawn() -> None:
    (axes,) = maps(heat_map({"all": np.zeros((1, 3), dtype=np.int64)}, NAMES))
    assert written(axes) == [0, 0, 0]


@pytest.mark.parametrize("classes", [3, 30])  # maps stacked and side by side
def test_a_map_may_lack_the_row_of_unknown_classes(classes: int) -> None:
    counts = some_counts(4, classes + 1)
    rows = [*map(str, range(classes)), "?"]
    picture = heat_map({"all": counts, "labeled": counts[:, :-1]}, rows, counts[0], unknown=True)
    picture.draw_without_rendering()
    first, server, second, its_server = maps(picture)
    assert values(first) == counts.T.tolist()
    assert values(second) == counts[:, :-1].T.tolist()
    assert values(server) == [[number] for number in counts[0].tolist()]
    assert values(its_server) == values(server)[:-1]
    heights = [axes.get_position().height / abs(np.diff(axes.get_ylim())[0]) for axes in (first, second)]
    assert heights[0] == pytest.approx(heights[1], rel=0.02)  # rows have the same height in both


def test_the_grid_shows_the_given_images() -> None:
    plain, strong = images(), 1 - images()
    picture = sample_grid([("plain", plain), ("strong", strong)], ["a", "b", "c", "ankle boot"])
    assert len(picture.axes) == 8
    for axes, image in zip(picture.axes, [*plain, *strong], strict=True):
        (drawn,) = axes.images
        assert np.array_equal(np.asarray(drawn.get_array()), image[..., 0])
        assert drawn.get_clim() == (0, 1)
        assert drawn.get_cmap().name == "gray"
    assert [picture.axes[place].get_ylabel() for place in (0, 4)] == ["plain", "strong"]
    assert [axes.get_xlabel() for axes in picture.axes] == [""] * 4 + ["a", "b", "c", "ankle boot"]


@pytest.mark.parametrize("channels, shown", [(1, (6, 5)), (2, (6, 5)), (3, (6, 5, 3)), (4, (6, 5, 3))])
def test_three_channels_are_shown_as_colors(channels: int, shown: tuple[int, ...]) -> None:
    picture = sample_grid([("plain", images(2, channels))], ["a", "b"])
    array = picture.axes[0].images[0].get_array()
    assert array is not None
    assert array.shape == shown


def test_long_names_take_two_lines() -> None:
    picture = sample_grid([("plain", images(8))], ["n"] * 7 + ["a_very_long_name_with $dollars$ of a class"])
    label = picture.axes[-1].xaxis.label
    assert label.get_text().count("\n") == 1
    assert max(map(len, label.get_text().split("\n"))) <= 12
    assert not label.get_parse_math()
    assert shortened("a" * 9, 5) == "aaaa…"
    assert shortened("aaaa", 5) == "aaaa"


@pytest.mark.parametrize("form, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_are_saved_with_the_same_bytes_each_time(tmp_path: Path, form: str, start: bytes) -> None:
    for name in ("first", "second"):
        picture = heat_map({"all": some_counts(4), "labeled": some_counts(4)}, NAMES, some_counts(1)[0], "a $title$")
        plots.save(picture, tmp_path / name / f"map.{form}")
        plots.save(sample_grid([("plain", images())], list("abcd"), "title"), tmp_path / name / f"grid.{form}")
    for name in ("map", "grid"):
        first, second = ((tmp_path / folder / f"{name}.{form}").read_bytes() for folder in ("first", "second"))
        assert first.startswith(start)
        assert first == second


def test_text_in_an_svg_is_text(tmp_path: Path) -> None:
    plots.save(heat_map({"all": some_counts(4)}, NAMES, None, "a $title$"), tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text(encoding="utf-8")
    for words in ("T-shirt", "$a$", "a $title$", "client"):
        assert f">{words}</text>" in text


def test_drawing_needs_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, numpy as np\nfrom tacit.report.partition_plots import heat_map\n"
        "heat_map({'all': np.ones((2, 2), dtype=int)}, 'ab')\n"
        "print({'torch', 'matplotlib.pyplot'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
