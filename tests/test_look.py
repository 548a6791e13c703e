"""`tacit data`: what is printed and drawn is what a run with the same settings would hold."""

import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from tacit import cli, look
from tacit.config import from_options
from tacit.data import scenario
from tacit.data.arrays import text_source
from tacit.errors import TacitError
from tacit.look import Look
from tacit.prepare import build_data
from tacit.report.federation import Counts

DIRICHLET: dict[str, Any] = {"partition": "dirichlet:0.5", "labels": "server", "per_class": 10}
PLACES: list[dict[str, Any]] = [
    DIRICHLET,
    {"labels": "client", "per_class": 5, "validation": 100},
    {"labels": "client", "label_fraction": 0.5, "data.steps": 4, "data.shared": 20},
    {"labels": "some", "data.some": 0.3},
    {"labels": "all", "clients": 3},
    {"labels": "client", "per_class": 5, "clients": 100, "partition": "classes:2"},
]


def looked(**options: Any) -> Look:
    return Look.at(from_options(options))


def shown(folder: Path, form: str = "svg", **options: Any) -> str:
    """What is printed at 80 columns by the whole command."""
    console = Console(file=StringIO(), width=80)
    look.show(from_options(options), folder, form, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def told(**options: Any) -> str:
    """What is printed at 80 columns, without the figures."""
    console = Console(file=StringIO(), width=80)
    look.tell(looked(**options), console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def joined(text: str) -> str:
    """Sentences without their line breaks."""
    return " ".join(text.split())


def mean_distance(counts: Counts) -> float:
    """R by its definition, pair by pair."""
    mix = counts / counts.sum(axis=1, keepdims=True)
    pairs = [(a, b) for a in range(len(mix)) for b in range(a)]
    return float(np.mean([np.abs(mix[a] - mix[b]).sum() / 2 for a, b in pairs]))


@pytest.mark.parametrize("place", PLACES)
def test_everything_fits_eighty_columns(place: dict[str, Any]) -> None:
    text = told(**place)
    assert max(map(len, text.splitlines())) <= 80
    held = looked(**place).held
    assert f"R = {mean_distance(held.all[:, :-1]):.2f} (mean distance" in text


def test_the_table_counts_what_a_run_would_hold() -> None:
    text = told(**DIRICHLET)
    config = from_options(DIRICHLET)
    source, split = build_data(config)
    federation = scenario.federation(source, split, config.data)
    for client in range(10):
        true = federation.true_labels(client, 0)
        assert true is not None
        row = re.search(rf"^ +{client}((?: +\d+)+)$", text, re.MULTILINE)
        assert row is not None
        assert list(map(int, row[1].split())) == [*torch.bincount(true, minlength=10).tolist(), len(true)]


@pytest.mark.parametrize(
    "place, sentence",
    [
        (DIRICHLET, "The server has 100 labels (10 per class). 10 clients"),
        (
            DIRICHLET,
            "fashion-small: 7,000 images (6,000 for training, 1,000 for testing), 28×28 grey, 10 classes. The server",
        ),
        (DIRICHLET, "samples each and no label."),
        (PLACES[1], "7,000 images (5,900 for training, 100 for validation, 1,000 for testing), 28×28"),
        (PLACES[1], "The server has no labels beside the samples for validation."),
        (PLACES[1], "10 clients (iid) hold 590 samples each, 50 of them labeled."),
        (PLACES[2], "Every client has a copy of the same 20 labeled samples."),
        (PLACES[3], "10 clients (iid) hold 600 samples each; 3 clients show labels, 600 each."),
        (PLACES[4], "3 clients (iid) hold 2,000 samples each, all of them labeled."),
        ({**DIRICHLET, "data.test": 500}, "7,000 images (6,500 for training, 500 for testing), 28×28 grey"),
        ({**DIRICHLET, "data.samples": 5000}, "(5,000 for training, 1,000 for testing, 1,000 not used)"),
        (PLACES[2], "7,000 images (6,000 for training, 1,000 for testing)"),  # shared samples are counted once
        (PLACES[5], "5 labels per class were asked for; a client shows all it has where it has fewer."),
        ({"labels": "client", "per_class": 1, "partition": "classes:2"}, "1 label per class was asked for; a client"),
        ({**DIRICHLET, "data.test": 9}, "There is no test sample of "),
        ({"labels": "server", "n_labels": 15}, "The server has 15 labels (1 to 2 per class)"),
        (DIRICHLET, "Unlabeled samples are counted by their true class, which no client sees."),
    ],
)
def test_sentences(place: dict[str, Any], sentence: str) -> None:
    assert sentence in joined(told(**place))


def test_nothing_is_said_about_what_is_not_missing() -> None:
    some = {"labels": "some", "data.some": 0.3, "per_class": 5, "data.shared": 20}
    for place in (DIRICHLET, PLACES[1], PLACES[2], some):
        said = joined(told(**place))
        assert "asked for" not in said
        assert "no test sample" not in said


def test_classes_without_a_test_sample_are_named(tmp_path: Path) -> None:
    y, x = np.arange(60) % 12, np.zeros((60, 6, 6), dtype=np.uint8)

    def said(classes: int) -> str:
        np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x[:classes], y_test=np.arange(classes))
        return joined(told(data=str(tmp_path / "mine.npz"), clients=2, labels="all"))

    assert "There is no test sample of 10, 11. The server" in said(10)
    assert "There is no test sample of 1, 2, 3, 4, 5, 6, 7, 8 and 3 more. The server" in said(1)


def test_what_a_reader_did_to_the_images_is_told(tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / "pics" / "labeled" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((9 + number, 8, 3), dtype=np.uint8)).save(path)
    said = joined(told(data=str(tmp_path / "pics"), labels="all", clients=2, **{"data.size": 7}))
    assert "pics: 12 images (10 for training, 2 for testing), 7×7 colour, 2 classes. Images were cut" in said
    assert "resized from 8×9 … 8×20; data.size changes that. The server" in said


def test_a_manifest_with_groups_goes_all_the_way(tmp_path: Path) -> None:
    """Few test samples drawn from its own, and classes by their names."""
    rows = ["path,label,split,group"]
    for number in range(80):
        Image.fromarray(np.full((6, 6), number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{('cat', 'dog')[number % 2]},{'test' if number >= 60 else 'train'},{number % 4}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    options = {"data": str(tmp_path / "list.csv"), "clients": 4, "partition": "by-writer", "data.test": 8}
    assert "list.csv: 68 images (60 for training, 8 for testing)" in joined(told(**options, labels="all"))
    with pytest.raises(TacitError, match="31 labels per class are asked for and class cat has 30 samples"):
        looked(**options, labels="server", per_class=31)


def test_where_all_labels_are_shown_nothing_is_said_about_hidden_ones() -> None:
    assert "true class" not in joined(told(**PLACES[4]))


@pytest.mark.parametrize("keep, after", [(False, "are gone with the next step"), (True, "stay")])
def test_arriving_samples_are_told(keep: bool, after: str) -> None:
    options = {"labels": "server", "per_class": 10, "data.steps": 5, "data.step_rounds": 1, "data.keep": keep}
    said = joined(told(**options))
    assert "arrive in 5 steps of 1 round, 118 at each client in each step (1,180 in all)" in said
    assert f", and {after}." in said


def test_unknown_classes_stay_unknown(tmp_path: Path) -> None:
    y = np.arange(200) // 2 % 4
    y[::2] = -1
    x = np.random.default_rng(0).integers(0, 256, (200, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    text = told(data=str(tmp_path / "mine.npz"), clients=3, labels="client", per_class=2)
    assert re.search(r"^ +client .* \? +total$", text, re.MULTILINE)
    assert "mine.npz: 200 images (180 for training, 20 for testing)" in text
    held = looked(data=str(tmp_path / "mine.npz"), clients=3, labels="client", per_class=2)
    scale = look.heat_map(held).axes[0].collections[0].get_clim()[1]
    assert scale == held.held.all[:, :-1].max() < held.held.all[:, -1].max()
    assert "Nobody knows the class of 100 samples (?)." in joined(text)
    assert "over the samples whose class is known (mean" in joined(text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("normalise", ["data", "unit", "half"])
def test_images_are_shown_as_they_are_stored(normalise: str) -> None:
    seen = looked(**DIRICHLET, **{"data.normalise": normalise})
    axes = look.sample_grid(seen).axes
    names = [each.get_xlabel().replace("\n", " ") for each in axes[-10:]]
    assert len(axes) == 4 * 10
    assert len(set(names)) == 10
    for place, name in enumerate(names):
        image = np.asarray(axes[place].images[0].get_array())
        stored = seen.source.x[seen.source.y == seen.source.classes.index(name), 0].numpy()
        assert any(np.array_equal(np.rint(image * 255), each) for each in stored)


def test_views_are_those_of_the_run() -> None:
    """The rows of the grid are the views a client would draw, with streams of their own."""
    seen = looked(**DIRICHLET)
    rows = [
        [np.asarray(axes.images[0].get_array()) for axes in look.sample_grid(seen).axes[row * 10 :][:10]]
        for row in range(4)
    ]
    plain, weak, first, second = (np.stack(row) for row in rows)
    assert not np.array_equal(plain, weak)
    assert not np.array_equal(first, second)
    still = looked(**DIRICHLET, **{"data.augment": "none", "data.shift": 0, "data.flip": False})
    images = np.stack([np.asarray(axes.images[0].get_array()) for axes in look.sample_grid(still).axes])
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
def test_every_class_is_shown_once_before_any_is_shown_again(tmp_path: Path, classes: int, shown: str) -> None:
    x = np.arange(190 * 36, dtype=np.int64).reshape(190, 6, 6).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(190) % classes)
    axes = look.sample_grid(looked(data=str(tmp_path / "mine.npz"), labels="all", clients=2)).axes
    assert " ".join(each.get_xlabel() for each in axes[3 * len(axes) // 4 :]) == shown


def test_the_map_has_a_panel_for_labels_only_where_some_are_hidden() -> None:
    def names(**place: Any) -> list[str]:
        return [axes.get_title(loc="left") for axes in look.heat_map(looked(**place)).axes]

    assert names(**PLACES[5])[:2] == ["all samples", "labeled samples"]
    assert names(**PLACES[1]) == ["", ""]  # the same number everywhere is said in the title
    assert names(**PLACES[4]) == ["", ""]  # the map and its scale
    assert names(**DIRICHLET) == ["", "", ""]  # and the server


def test_labels_that_are_alike_everywhere_are_a_line_of_the_title() -> None:
    def title(**place: Any) -> str:
        return look.heat_map(looked(**place)).get_suptitle()

    assert title(**PLACES[1]).endswith("\n5 labeled samples of every class at every client")
    assert "\n" not in title(**PLACES[5])
    assert "\n" not in title(**PLACES[4])


def test_the_map_of_labels_has_no_row_for_unknown_classes(tmp_path: Path) -> None:
    y = np.arange(200) // 2 % 4
    y[::2] = -1
    np.savez(tmp_path / "mine.npz", x=np.zeros((200, 6, 6), dtype=np.uint8), y=y)
    seen = looked(data=str(tmp_path / "mine.npz"), clients=3, labels="client", label_fraction=0.4)
    every, labeled = look.heat_map(seen).axes[:2]
    assert [text.get_text() for text in every.get_yticklabels()] == ["0", "1", "2", "3", "?"]
    assert [text.get_text() for text in labeled.get_yticklabels()] == ["0", "1", "2", "3"]
    assert labeled.get_ylim() == (3.5, -0.5)


def test_figures_of_an_earlier_look_are_replaced_and_nothing_else(tmp_path: Path) -> None:
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
    monkeypatch.setattr("tacit.data.sources.load", lambda name, size, bits: source)
    text = shown(tmp_path, labels="all", clients=2)
    said = "800 windows of 90 characters (400 for training, 400 for testing), 29 classes: what follows."
    assert said in joined(text)
    assert len(re.findall(r"^plain  ….* → '.+'$", text, re.MULTILINE)) == 3
    assert len(re.findall(r"^strong ….* → '.+'$", text, re.MULTILINE)) == 3
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80  # a path is not broken
    assert [path.name for path in tmp_path.iterdir()] == ["partition.svg"]


def test_an_unknown_format_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "build_data", None)
    with pytest.raises(TacitError, match="unknown format 'gif': choose one of pdf, png, svg"):
        shown(tmp_path / "out", "gif", **DIRICHLET)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(TacitError, match="mine.txt is not a folder: choose another --out"):
        shown(tmp_path / "mine.txt", **DIRICHLET)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TacitError, match="can not write .*; choose another"):
        shown(tmp_path / "file" / "out", **DIRICHLET)
    with pytest.raises(TacitError, match="can not write to .*: File name too long; choose another --out"):
        shown(tmp_path / ("x" * 300), **DIRICHLET)


# --- the command ------------------------------------------------------------------------------------------------------


def tacit(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    for name, value in (("COLUMNS", "80"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


ISSUE = ("data", "--data", "fashion-small", "--clients", "10", "--partition", "dirichlet:0.5")
LABELS = ("--labels", "server", "--per-class", "10")


def test_the_command_prints_and_draws_into_a_fresh_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data-fashion-small", "data-fashion-small-2"):
        assert tacit(monkeypatch, *ISSUE, *LABELS) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert max(map(len, out.splitlines())) <= 80
        assert out.splitlines()[-2:] == [f"figure: runs/{folder}/{name}.png" for name in ("partition", "samples")]
        for name in ("partition", "samples"):
            assert (tmp_path / "runs" / folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    seen = looked(data="fashion-small", **DIRICHLET)
    assert f"\nR = {seen.heterogeneity:.2f} " in out


def test_config_options_and_settings_count_as_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text("[data]\nclients = 4\nlabels = 'all'\n")
    words = ("--partition", "classes:5", "--seed", "2", "--set", "data.samples=1000", "--out", str(tmp_path / "out"))
    assert tacit(monkeypatch, "data", str(tmp_path / "c.toml"), *words, "--format", "svg") == 0
    out = capsys.readouterr().out
    assert "4 clients (classes:5) hold 250 samples each, all of them labeled." in out
    assert (tmp_path / "out" / "partition.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    "words, sentence",
    [
        ((*LABELS, "--format", "gif"), "unknown format 'gif': choose one of pdf, png, svg"),
        (("--labels", "server"), "labels at the server need a number"),
        ((*LABELS, "--out", "there"), "there is not a folder: choose another --out"),
        ((*LABELS, "--rounds", "3"), "No such option"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    assert tacit(monkeypatch, *ISSUE, *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tacit: ")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("command", ["run", "data"])
def test_the_help_says_where_the_partitions_are_listed(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit(monkeypatch, command, "--help") == 0
    assert "How samples are dealt, of `tacit ls partitions`." in joined(capsys.readouterr().out.replace("│", " "))
