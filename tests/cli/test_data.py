"""`tacit data`: what is printed and drawn is what a run with the same settings would use."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from tacit.cli import data
from tacit.cli.data import Overview
from tacit.data.federate import federate
from tacit.data.sources.arrays import text_source
from tacit.errors import TacitError
from tacit.report.partition_plots import Counts
from tacit.runs.build import build_data
from tacit.runs.config import from_options
from tests.cli.shell import Shell, fits
from tests.refusals import refused
from tests.toys import images

DIRICHLET: dict[str, Any] = {"partition": "dirichlet:0.5", "labels": "server", "per_class": 10}
PLACES: list[dict[str, Any]] = [
    DIRICHLET,
    {"labels": "client", "per_class": 5, "validation": 100},
    {"labels": "client", "label_fraction": 0.5, "data.stream_steps": 4, "data.shared": 20},
    {"labels": "some", "data.labeled_clients": 0.3},
    {"labels": "all", "clients": 3},
    {"labels": "client", "per_class": 5, "clients": 100, "partition": "classes:2"},
]


def overview(**options: Any) -> Overview:
    return Overview.of(from_options(options))


def shown(folder: Path, form: str = "svg", **options: Any) -> str:
    """What the whole command prints at 80 columns."""
    console = Console(file=StringIO(), width=80)
    data.show(from_options(options), folder, form, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def printed(**options: Any) -> str:
    """What is printed at 80 columns, without drawing figures."""
    console = Console(file=StringIO(), width=80)
    data.print_overview(overview(**options), console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def joined(text: str) -> str:
    """Sentences without their line breaks."""
    return " ".join(text.split())


def numbers(topic: str, **options: Any) -> list[int]:
    """The numbers in the sentence on a topic, such as `The server has`; empty if nothing is said about it."""
    found = [sentence for sentence in data.about(overview(**options)) if re.search(topic, sentence)]
    return [int(number.replace(",", "")) for sentence in found for number in re.findall(r"\d[\d,]*", sentence)]


def mean_distance(counts: Counts) -> float:
    """R by its definition, pair by pair."""
    mix = counts / counts.sum(axis=1, keepdims=True)
    pairs = [(a, b) for a in range(len(mix)) for b in range(a)]
    return float(np.mean([np.abs(mix[a] - mix[b]).sum() / 2 for a, b in pairs]))


@pytest.mark.parametrize("place", PLACES)
def test_everything_fits_eighty_columns(place: dict[str, Any]) -> None:
    text = printed(**place)
    assert max(map(len, text.splitlines())) <= 80
    held = overview(**place).held
    assert f"R = {mean_distance(held.all[:, :-1]):.2f} (mean distance" in text


def test_the_table_counts_what_a_run_would_hold() -> None:
    text = printed(**DIRICHLET)
    config = from_options(DIRICHLET)
    source, split = build_data(config)
    federation = federate(source, split, config.data)
    for client in range(10):
        true = federation.true_labels(client, 0)
        assert true is not None
        row = re.search(rf"^ +{client}((?: +\d+)+)$", text, re.MULTILINE)
        assert row is not None
        assert list(map(int, row[1].split())) == [*torch.bincount(true, minlength=10).tolist(), len(true)]


DATA, SERVER, CLIENTS, SHARED, ASKED = (
    r"^fashion-small",
    r"^The server",
    r"\d clients \(",
    r"^Every client",
    r"asked for",
)


@pytest.mark.parametrize(
    "place, topic, expected",
    [
        (DIRICHLET, DATA, [7000, 6000, 1000, 28, 28, 10]),
        (PLACES[1], DATA, [7000, 5900, 100, 1000, 28, 28, 10]),
        (PLACES[2], DATA, [7000, 6000, 1000, 28, 28, 10]),  # shared samples are counted once
        ({**DIRICHLET, "data.test": 500}, DATA, [7000, 6500, 500, 28, 28, 10]),
        ({**DIRICHLET, "data.samples": 5000}, DATA, [7000, 5000, 1000, 1000, 28, 28, 10]),
        (DIRICHLET, SERVER, [100, 10]),
        (PLACES[1], SERVER, []),
        ({"labels": "server", "n_labels": 15}, SERVER, [15, 1, 2]),
        (PLACES[1], CLIENTS, [10, 590, 50]),
        (PLACES[3], CLIENTS, [10, 600, 3, 600]),
        (PLACES[4], CLIENTS, [3, 2000]),
        (PLACES[2], SHARED, [20]),
        (PLACES[4], SHARED, []),
        (PLACES[5], ASKED, [5]),
        ({"labels": "client", "per_class": 1, "partition": "classes:2"}, ASKED, [1]),
        (DIRICHLET, ASKED, []),
        (PLACES[1], ASKED, []),
        ({"labels": "some", "data.some": 0.3, "per_class": 5, "data.shared": 20}, ASKED, []),
    ],
)
def test_the_numbers_of_samples_and_labels_are_right(place: dict[str, Any], topic: str, expected: list[int]) -> None:
    assert numbers(topic, **place) == expected


def test_the_sentences_about_typical_data() -> None:
    assert data.about(overview(**{**DIRICHLET, "partition": "iid"})) == [
        "fashion-small: 7,000 images (6,000 for training, 1,000 for testing), 28×28 grey, 10 classes.",
        "The server has 100 labels (10 per class).",
        "10 clients (iid) hold 590 samples each, without labels.",
    ]
    assert data.about(overview(**PLACES[1])) == [
        "fashion-small: 7,000 images (5,900 for training, 100 for validation, 1,000 for testing), 28×28 grey, "
        "10 classes.",
        "The server has no labels apart from the validation samples.",
        "10 clients (iid) hold 590 samples each, 50 of them labeled.",
    ]
    assert data.about(overview(**PLACES[4]))[-1] == "3 clients (iid) hold 2,000 samples each, all of them labeled."


def test_classes_without_a_test_sample_are_named(tmp_path: Path) -> None:
    y, x = np.arange(60) % 12, np.zeros((60, 6, 6), dtype=np.uint8)

    def untested(classes: int) -> list[str]:
        np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x[:classes], y_test=np.arange(classes))
        sentences = data.about(overview(data=str(tmp_path / "mine.npz"), clients=2, labels="all"))
        return [sentence for sentence in sentences if "No test sample" in sentence]

    assert untested(12) == []
    assert untested(10) == ["No test sample has class 10, 11."]
    assert untested(1) == ["No test sample has class 1, 2, 3, 4, 5, 6, 7, 8 and 3 more."]


def test_the_overview_says_how_images_were_resized(tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / "pics" / "labeled" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((9 + number, 8, 3), dtype=np.uint8)).save(path)
    seen = overview(data=str(tmp_path / "pics"), labels="all", clients=2, **{"data.size": 7})
    first = data.about(seen)[0]
    assert first.startswith("pics: 12 images (12 for training), 7×7 colour, 2 classes. ")
    assert seen.source.note
    assert first.endswith(seen.source.note)


def test_a_manifest_with_groups_can_be_shown(tmp_path: Path) -> None:
    """Test samples are drawn from its test samples, and classes have their names."""
    rows = ["path,label,split,group"]
    for number in range(80):
        Image.fromarray(np.full((6, 6), number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{('cat', 'dog')[number % 2]},{'test' if number >= 60 else 'train'},{number % 4}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    options = {"data": str(tmp_path / "list.csv"), "clients": 4, "partition": "by-writer", "data.test": 8}
    assert numbers("^list.csv", **options, labels="all")[:3] == [68, 60, 8]
    with pytest.raises(TacitError, match="class cat"):
        overview(**options, labels="server", per_class=31)


def test_true_classes_are_mentioned_only_if_some_labels_are_hidden() -> None:
    assert "true class" in joined(printed(**DIRICHLET))
    assert "true class" not in joined(printed(**PLACES[4]))


@pytest.mark.parametrize("keep, after", [(False, "are gone in the next step"), (True, "stay")])
def test_arriving_samples_are_counted(keep: bool, after: str) -> None:
    options = {"labels": "server", "per_class": 10, "data.steps": 5, "data.rounds_per_step": 1, "data.keep": keep}
    assert numbers("arrive in", **options) == [5, 1, 118, 1180]
    assert data.about(overview(**options))[-1].endswith(f", and {after}.")


def test_samples_of_unknown_class_have_their_own_column(tmp_path: Path) -> None:
    y = np.arange(200) // 2 % 4
    y[::2] = -1
    x = np.random.default_rng(0).integers(0, 256, (200, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    text = printed(data=str(tmp_path / "mine.npz"), clients=3, labels="client", per_class=2)
    assert re.search(r"^ +client .* \? +total$", text, re.MULTILINE)
    held = overview(data=str(tmp_path / "mine.npz"), clients=3, labels="client", per_class=2)
    scale = data.heat_map(held).axes[0].collections[0].get_clim()[1]
    assert scale == held.held.all[:, :-1].max() < held.held.all[:, -1].max()
    assert "The class of 100 samples is unknown (?)." in joined(text)
    assert "over the samples whose class is known (mean" in joined(text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("normalise", ["data", "unit", "half"])
def test_images_are_shown_as_they_are_stored(normalise: str) -> None:
    seen = overview(**DIRICHLET, **{"data.normalise": normalise})
    axes = data.sample_grid(seen).axes
    names = [each.get_xlabel().replace("\n", " ") for each in axes[-10:]]
    assert len(axes) == 4 * 10
    assert len(set(names)) == 10
    for place, name in enumerate(names):
        image = np.asarray(axes[place].images[0].get_array())
        stored = seen.source.x[seen.source.y == seen.source.classes.index(name), 0].numpy()
        assert any(np.array_equal(np.rint(image * 255), each) for each in stored)


def test_the_grid_shows_the_views_of_a_run() -> None:
    """The rows are the views that a client would draw, with other random numbers."""
    seen = overview(**DIRICHLET)
    rows = [
        [np.asarray(axes.images[0].get_array()) for axes in data.sample_grid(seen).axes[row * 10 :][:10]]
        for row in range(4)
    ]
    plain, weak, first, second = (np.stack(row) for row in rows)
    assert not np.array_equal(plain, weak)
    assert not np.array_equal(first, second)
    still = overview(**DIRICHLET, **{"data.augment": "none", "data.shift": 0, "data.flip": False})
    images = np.stack([np.asarray(axes.images[0].get_array()) for axes in data.sample_grid(still).axes])
    assert np.allclose(images.reshape(4, 10, 28, 28), plain, atol=1e-6)


@pytest.mark.parametrize(
    "classes, shown",
    [
        (2, "0 0 0 0 1 1 1 1"),
        (5, "0 0 1 1 2 2 3 4"),
        (7, "0 0 1 2 3 4 5 6"),
        (9, "0 1 2 3 4 5 6 7 8"),
        (19, "0 2 4 6 8 10 12 14 16 18"),
    ],
)
def test_the_grid_shows_every_class_before_it_repeats_one(tmp_path: Path, classes: int, shown: str) -> None:
    x = np.arange(190 * 36, dtype=np.int64).reshape(190, 6, 6).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(190) % classes)
    axes = data.sample_grid(overview(data=str(tmp_path / "mine.npz"), labels="all", clients=2)).axes
    assert " ".join(each.get_xlabel() for each in axes[3 * len(axes) // 4 :]) == shown


def test_the_heat_map_has_a_panel_for_labels_if_some_are_hidden() -> None:
    def names(**place: Any) -> list[str]:
        return [axes.get_title(loc="left") for axes in data.heat_map(overview(**place)).axes]

    assert names(**PLACES[5])[:2] == ["all samples", "labeled samples"]
    assert names(**PLACES[1]) == ["", ""], "a uniform number is in the title"
    assert names(**PLACES[4]) == ["", ""], "the map and its scale"
    assert names(**DIRICHLET) == ["", "", ""], "and the server"


def test_a_uniform_number_of_labels_is_in_the_title() -> None:
    def title(**place: Any) -> str:
        return data.heat_map(overview(**place)).get_suptitle()

    assert title(**PLACES[1]).endswith("\n5 labeled samples of every class at every client")
    assert "\n" not in title(**PLACES[5])
    assert "\n" not in title(**PLACES[4])


def test_the_heat_map_of_labels_has_no_row_for_unknown_classes(tmp_path: Path) -> None:
    y = np.arange(200) // 2 % 4
    y[::2] = -1
    np.savez(tmp_path / "mine.npz", x=np.zeros((200, 6, 6), dtype=np.uint8), y=y)
    seen = overview(data=str(tmp_path / "mine.npz"), clients=3, labels="client", label_fraction=0.4)
    every, labeled = data.heat_map(seen).axes[:2]
    assert [text.get_text() for text in every.get_yticklabels()] == ["0", "1", "2", "3", "?"]
    assert [text.get_text() for text in labeled.get_yticklabels()] == ["0", "1", "2", "3"]
    assert labeled.get_ylim() == (3.5, -0.5)


def test_earlier_figures_are_replaced_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("partition.svg", "samples.png", "samples.txt", "notes.md", "other.png"):
        (tmp_path / name).write_text("old")
    shown(tmp_path, "svg", **DIRICHLET)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.md", "other.png", "partition.svg", "samples.svg", "samples.txt"]
    assert [name for name in names if (tmp_path / name).read_text(encoding="utf-8") == "old"] == [
        "notes.md",
        "other.png",
        "samples.txt",
    ]


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        shown(tmp_path / name, "svg", **DIRICHLET, seed=seed)
    for file in ("partition.svg", "samples.svg"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a.startswith(b"<?xml")
        assert a == b
        assert a != c


def test_text_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = ("\n", " ", *"abcdefghijklmnopqrstuvwxyz?")
    codes = np.random.default_rng(0).integers(0, len(alphabet), (400, 90)).astype(np.uint8)
    pair = codes, codes[:, 0].astype(np.int64)
    source = text_source("plays", pair, pair, alphabet, np.arange(400) % 4)
    monkeypatch.setattr("tacit.data.sources.load", lambda name, *reading: source)
    text = shown(tmp_path, labels="all", clients=2)
    assert "800 windows of 90 characters (400 for training, 400 for testing), 29 classes" in joined(text)
    assert len(re.findall(r"^plain  ….* → '.+'$", text, re.MULTILINE)) == 3
    assert len(re.findall(r"^strong ….* → '.+'$", text, re.MULTILINE)) == 3
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80, "only paths are longer"
    assert [path.name for path in tmp_path.iterdir()] == ["partition.svg"]


def test_an_unknown_format_and_a_file_as_folder_are_refused_before_data_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "build_data", None)
    with refused("names.unknown-format"):
        shown(tmp_path / "out", "gif", **DIRICHLET)
    (tmp_path / "mine.txt").touch()
    with refused("storage.not-a-folder"):
        shown(tmp_path / "mine.txt", **DIRICHLET)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "out", tmp_path / ("x" * 300)):
        with refused("storage.cannot-write"):
            shown(place, **DIRICHLET)


# --- the command ------------------------------------------------------------------------------------------------------


DATA_COMMAND = ("data", "--data", "fashion-small", "--clients", "10", "--partition", "dirichlet:0.5")
LABELS = ("--labels", "server", "--per-class", "10")


def test_the_command_prints_the_table_and_draws_into_a_new_folder(shell: Shell) -> None:
    for folder in ("data-fashion-small", "data-fashion-small-2"):
        said = shell(*DATA_COMMAND, *LABELS)
        assert (said.code, said.err) == (0, "")
        assert fits(said.out)
        assert said.lines[-2:] == [f"figure: runs/{folder}/{name}.png" for name in ("partition", "samples")]
        for name in ("partition", "samples"):
            assert (shell.folder / "runs" / folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    seen = overview(data="fashion-small", **DIRICHLET)
    assert f"\nR = {seen.heterogeneity:.2f} " in said.out


def test_config_file_options_and_settings_count_as_for_a_run(shell: Shell) -> None:
    (shell.folder / "c.toml").write_text("[data]\nclients = 4\nlabels = 'all'\n")
    words = ("--partition", "classes:5", "--seed", "2", "--set", "data.samples=1000", "--out", "out")
    said = shell("data", "c.toml", *words, "--format", "svg")
    assert said.code == 0
    assert "4 clients (classes:5) hold 250 samples each" in said.out
    assert (shell.folder / "out" / "partition.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    "words",
    [
        (*LABELS, "--format", "gif"),
        ("--labels", "server"),
        (*LABELS, "--out", "images.npz"),
        (*LABELS, "--rounds", "3"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_exit_code_2(shell: Shell, words: tuple[str, ...]) -> None:
    before = sorted(shell.folder.iterdir())
    said = shell(*DATA_COMMAND, *words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("tacit: ")
    assert said.err.count("\n") == 1
    assert sorted(shell.folder.iterdir()) == before


def test_unknown_classes_have_columns_of_their_own() -> None:
    settings: dict[str, Any] = {"labels": "server", "per_class": 5, "clients": 3, "data.unknown_classes": 2}
    found = overview(**settings)
    assert found.held.names[-2:] == ["(bag)", "(ankle boot)"]
    assert found.held.all[:, -3:-1].sum() == 1200
    text = joined(printed(**settings))
    assert "1,200 unlabeled samples (20%) belong to bag, ankle boot, which have no labels" in text
    assert "8 classes. 200 test samples of unknown classes are left out." in text
    assert "The model does not have the classes in parentheses." in text
    assert "samples of bag, ankle boot are left out" in joined(printed(**settings | {"labels": "all"}))


def test_few_samples_of_known_classes_are_noted_apart_from_unknown_ones() -> None:
    settings: dict[str, Any] = {"labels": "client", "per_class": 5, "clients": 3, "data.unknown_classes": 2}
    assert "were asked for" not in printed(**settings), "clients have five labels of every known class"


def test_own_data_needs_no_number_of_labels(shell: Shell) -> None:
    data = images(0, 40)
    y = data.y.clone()
    y[12:] = -1
    np.savez(shell.folder / "own.npz", x=data.x, y=y, x_test=data.x[:9], y_test=data.y[:9])
    said = shell("data", "--data", "own.npz", "--labels", "server", "--clients", "2", "--out", "figures")
    assert said.code == 0, said.err
    assert "The server has 12 labels" in said.out
