"""`auto`: what it decides for which data, and that given settings stay."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.data.federate import federate
from tacit.data.inputs import ImageInputs
from tacit.random import Streams
from tacit.runs import auto
from tacit.runs import config as configs
from tacit.runs.auto import Seen, decide, epochs
from tacit.runs.build import build_data
from tacit.runs.choices import views as view_choice
from tacit.runs.choices.views import ViewChoice, chosen
from tacit.runs.compare import compare
from tacit.runs.resolve import resolve
from tests.cli.shell import fits
from tests.data.tables import cancer_csv
from tests.engines import farm
from tests.refusals import refused


@pytest.fixture(autouse=True)
def quick_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are measured in their own tests."""
    found = ViewChoice("gentle", {"fixmatch": 0.5, "gentle": 0.75}, 12)
    monkeypatch.setattr(auto, "choose_views", lambda *_: found)


def images(folder: Path, unlabeled: int = 0) -> str:
    """A file with 120 + 30 images, the last ones of the first part without a label."""
    farm.write_images(folder / "images.npz")
    with np.load(folder / "images.npz") as file:
        arrays = dict(file)
    arrays["y"][len(arrays["y"]) - unlabeled :] = -1
    np.savez(folder / "images.npz", **arrays)
    return str(folder / "images.npz")


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"data": images(folder), "clients": 4, "labels": "server", "per_class": 3} | changes


def test_what_it_decides_is_a_complete_config_without_its_name(tmp_path: Path) -> None:
    found = resolve(small(tmp_path))
    text = configs.dumps(found.config)
    assert "auto" not in configs.flat(tomllib.loads(text)).values()
    assert configs.make(tomllib.loads(text)) == found.config
    assert [line.split()[0] for line in found.lines] == ["data", "method", "network", "steps", "views", "guard"]
    assert found.lines[-1].startswith("guard    off")
    assert all(len(line) < 200 for line in found.lines)


def test_labels_at_the_server_are_counted_in_steps(tmp_path: Path) -> None:
    config = resolve(small(tmp_path)).config
    assert (config.method_name, config.net.norm, config.data.augment) == ("anchor", "group", "gentle")
    assert (config.server_train.steps, config.server_train.batch, config.server_train.lr) == (28, 9, 0.01)
    assert (config.train.lr, config.train.schedule, config.rounds) == (0.03, "cosine", 40)


def test_a_setting_that_is_given_stays(tmp_path: Path) -> None:
    given = {"lr": 0.5, "rounds": 3, "net.norm": "none", "data.augment": "none", "method.threshold": 0.5}
    config = resolve(small(tmp_path, method="auto", **given)).config
    assert (config.train.lr, config.rounds, config.net.norm, config.data.augment) == (0.5, 3, "none", "none")
    assert config.method["threshold"] == 0.5
    base = {"train": {"epochs": 2}, "rounds": 5}
    config = resolve(small(tmp_path), base).config
    assert (config.train.epochs, config.rounds) == (2, 5)


def test_a_file_or_option_about_a_method_is_not_decided_anew(tmp_path: Path) -> None:
    assert resolve(small(tmp_path), {"objective": {"threshold": 0.5}}).config.method_name == "fedavg"
    assert resolve(small(tmp_path, **{"method.weights": "uniform"})).config.method_name == "fedavg"
    assert resolve(small(tmp_path), {"method": {"name": "fedprox"}}).config.method_name == "fedprox"


def test_own_data_has_the_labels_that_are_there(tmp_path: Path) -> None:
    data = images(tmp_path, unlabeled=90)
    found = resolve({"data": data, "clients": 4})
    assert (found.config.data.labels, found.config.data.label_fraction) == ("server", 1.0)
    assert "30 labels at the server, 90 unlabeled at clients of 22 to 23 samples" in found.lines[0]
    with refused("data.needs-label-amount"):
        resolve({"data": images(tmp_path), "clients": 4})


def test_it_is_the_default_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--data", images(tmp_path, unlabeled=90), "--clients", "4", "--explain"]
    output = CliRunner().invoke(app.app, words).output
    assert "\nmethod   anchor" in output
    assert fits(output)
    assert not (tmp_path / "runs").exists()


def test_samples_that_all_have_a_label_need_no_pseudo_labels(tmp_path: Path) -> None:
    found = resolve(small(tmp_path, labels="all", per_class=None))
    assert found.config.method_name == "fedavg+supervised"
    assert "every sample has a label" in found.lines[1]


def test_a_table_gets_a_network_that_reads_it(tmp_path: Path) -> None:
    table = cancer_csv(tmp_path / "table.csv")
    config = resolve({"data": str(table), "clients": 2, "labels": "server", "per_class": 2}).config
    assert config.net.name == "mlp"


@pytest.mark.parametrize(
    "sizes, labeled, expected",
    [((600,) * 10, 0, 3), ((600,) * 10, 10, 2), ((5000,) * 10, 0, 1), ((20,) * 10, 10, 10), ((), 0, 3)],
)
def test_small_clients_make_more_passes(sizes: tuple[int, ...], labeled: int, expected: int) -> None:
    assert epochs(Seen(0, 5 * labeled, labeled, 100, sizes), 32) == expected


def test_the_same_data_gives_the_same_decision_and_run(tmp_path: Path) -> None:
    options = small(tmp_path, rounds=1, workers=0, **{"method": "auto", "method.bootstrap": 3, "epochs": 1})
    first = tacit.run(out=tmp_path / "run", **options)
    assert first.config == decide(options, {}).config
    assert tacit.resume(tmp_path / "run").config == first.config
    again = tacit.run(tmp_path / "run" / "config.toml")
    assert again.history[-1]["loss"] == first.history[-1]["loss"]


# --- views ------------------------------------------------------------------------------------------------------------


def hits(count: int, of: int = 40) -> torch.Tensor:
    return torch.arange(of) < count


@pytest.mark.parametrize("heavy, light, best", [(30, 30, "fixmatch"), (30, 34, "gentle"), (36, 30, "fixmatch")])
def test_light_views_have_to_be_clearly_better(heavy: int, light: int, best: str) -> None:
    choice = chosen({"fixmatch": hits(heavy), "gentle": hits(light)})
    assert choice == ViewChoice(best, {"fixmatch": heavy / 40, "gentle": light / 40}, 40)


def test_views_that_destroy_the_label_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The label is a corner, bright or dark: inverting and covering it takes the label away."""
    monkeypatch.setattr(view_choice, "LEARNED", 0.0)
    monkeypatch.setattr(view_choice, "TRAIN", replace(view_choice.TRAIN, steps=8))
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randint(60, 196, (60, 1, 16, 16), generator=stream)
    x[:, :, :8, :8] = torch.where(y == 1, 250, 5)[:, None, None, None]
    pixels = x.numpy().astype(np.uint8)
    np.savez(tmp_path / "tone.npz", x=pixels, y=y.numpy(), x_test=pixels, y_test=y.numpy())
    config = configs.from_options({"data": str(tmp_path / "tone.npz"), "labels": "server", "per_class": 20})
    federation = federate(*build_data(config), config.data)
    choice = view_choice.choose_views(federation, federation.server.labeled, config.data, Streams(0))
    assert choice is not None
    assert choice.accuracy["gentle"] >= choice.accuracy["fixmatch"]
    assert choice == view_choice.choose_views(federation, federation.server.labeled, config.data, Streams(0))
    monkeypatch.setattr(view_choice, "LEARNED", 1.1)
    assert view_choice.choose_views(federation, federation.server.labeled, config.data, Streams(0)) is None
    lonely = federation.server.labeled.take(torch.tensor([0, 1, 2]))
    assert view_choice.choose_views(federation, lonely, config.data, Streams(0)) is None


def test_a_comparison_can_have_a_row_that_decides(tmp_path: Path) -> None:
    options = small(tmp_path, rounds=1, epochs=1, workers=0, **{"server.steps": 2})
    places = compare({}, options, ["labels-only", "auto"], [0], tmp_path / "all", "quiet", Console())
    written = {name: configs.make(configs.read(place / "config.toml")) for place, name in places.items()}
    assert written["auto"] == decide(options, {}).config
    assert written["auto"].method_name == "anchor"


def test_a_hub_decides_by_its_own_data(tmp_path: Path) -> None:
    found = resolve(small(tmp_path, method="auto", partition="sites", per_class=None))
    assert (found.config.method_name, found.config.train.epochs) == ("anchor", 3)
    assert "120 labels at the server, other samples at 4 sites" in found.lines[0]
    assert "auto" not in configs.dumps(found.config)


def test_the_reason_of_unmeasured_views_is_the_one_that_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "choose_views", view_choice.choose_views)

    def reason(**changes: Any) -> str:
        return next(line for line in resolve(small(tmp_path, **changes)).lines if line.startswith("views"))

    assert reason(**{"data.augment": "gentle"}) == "views    gentle (given)"
    assert reason(per_class=1) == "views    fixmatch (too few labels to compare it with gentle)"


def test_views_are_compared_on_small_images(tmp_path: Path) -> None:
    config = configs.from_options(small(tmp_path, **{"data.shift": 4}))
    federation = federate(*build_data(config), config.data)
    labeled, inputs = federation.server.labeled, federation.inputs
    assert view_choice.smaller(federation, labeled, config.data) == (federation, labeled, config.data)
    large = replace(labeled, x=labeled.x.repeat_interleave(8, 2).repeat_interleave(6, 3))
    assert isinstance(inputs, ImageInputs)
    wide = replace(federation, inputs=replace(inputs, shape=(1, 128, 96)))
    made, few, data = view_choice.smaller(wide, large, config.data)
    assert (made.inputs.shape, few.x.shape[1:], few.x.dtype) == ((1, 64, 48), (1, 64, 48), torch.uint8)
    assert data.shift == 2
    assert view_choice.is_slow(wide, large)
    assert not view_choice.is_slow(federation, labeled)


def test_a_slow_comparison_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    resolve(small(tmp_path), tell=heard.append)
    assert heard == []
    monkeypatch.setattr(view_choice, "SLOW", 15)
    resolve(small(tmp_path), tell=heard.append)
    assert [line.startswith("comparing strong views") for line in heard] == [True]
