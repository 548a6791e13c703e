"""Sites at work, without processes: own data gives the bits of one machine, and who does not fit is left out."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tacit import __version__
from tacit import config as configs
from tacit.config import Config
from tacit.data import images
from tacit.engines.inline import InlineCourier
from tacit.engines.loop import Record
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.prepare import build_data, build_job, refuse_missing_labels
from tests.deploy import places

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import hub, join, kept
from tacit.deploy.settings import Site
from tacit.deploy.site import introduce, open_desk
from tacit.engines.flower import FlowerCourier, Post, Roster, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower


def about(config: Config, run: str = "run-1") -> dict[str, str]:
    return hub.about(config, places.describe(config), run, build_data(config)[1])


def federated(config: Config, sites: Mapping[str, Path]) -> tuple[FlowerCourier, DirectGrid]:
    """The sites as nodes, in an order that is not that of their names."""
    nodes = [{"site": str(sites[name])} for name in sorted(sites, reverse=True)]
    grid = DirectGrid(client_app(open_desk, introduce), nodes)
    numbers = {name: number for number, name in enumerate(sorted(sites))}
    return FlowerCourier(build_job(config)[0], Roster(Post(grid), about(config), numbers)), grid


def judged(records: list[Record]) -> list[tuple[Any, ...]]:
    """What every round came to; how right pseudo-labels are is known to a simulator alone."""
    return [(each.accuracy, each.loss, each.steps, each.traffic, each.skipped) for each in records]


@pytest.mark.parametrize(
    "method, labels", [("fedavg+fixmatch", "server"), ("fedmatch", "server"), ("fedmix", "all"), ("scaffold", "all")]
)
def test_own_data_that_is_a_share_gives_the_bits_of_one_machine(method: str, labels: str, tmp_path: Path) -> None:
    x, y = places.arrays(120)
    np.savez(tmp_path / "whole.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:])
    given = places.SMALL | {"method": method, "labels": labels, "clients": 3}
    budget = {"per_class": 4} if labels == "server" else {}
    whole = configs.from_options(given | budget | {"data": str(tmp_path / "whole.npz"), "partition": "dirichlet:1"})
    here = played(build_job(whole)[0], InlineCourier(build_job(whole)[0]), tmp_path / "here")

    split = build_data(whole)[1]
    at_hub = split.server if len(split.server) else np.arange(3)
    np.savez(tmp_path / "hub.npz", x=x[at_hub], y=y[at_hub], x_test=x[90:], y_test=y[90:])
    parts = dict(zip(("a", "b", "c"), split.clients, strict=True))
    sites = {name: places.site_with(tmp_path, name, x=x[part], y=y[part]) for name, part in parts.items()}
    config = configs.from_options(given | {"data": str(tmp_path / "hub.npz"), "partition": "sites"})
    there = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "there")
    assert there[0] == here[0]
    assert judged(there[1]) == judged(here[1])


def test_a_site_without_data_takes_its_share(tmp_path: Path) -> None:
    config = places.hub(tmp_path, method="scaffold", partition="iid", labels="all")
    here = played(build_job(config)[0], InlineCourier(build_job(config)[0]), tmp_path / "here")
    sites = {name: places.site(tmp_path, name) for name in ("a", "b", "c")}
    there = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "there")
    assert there[:2] == here[:2]


def test_memory_stays_on_the_sites_disk_apart_for_every_run(tmp_path: Path) -> None:
    config = places.hub(tmp_path, method="scaffold", partition="iid", labels="all")
    sites = {name: places.site(tmp_path, name) for name in ("a", "b", "c")}
    courier, grid = federated(config, sites)
    _, _, memories = played(build_job(config)[0], courier, tmp_path / "there")
    assert memories == [b"2"] * 3  # the number of the last round and nothing else
    shelf = tmp_path / "a" / "memory" / "run-1"
    assert (shelf / "2").stat().st_size > 1000
    assert (shelf.stat().st_mode & 0o777, (shelf / "2").stat().st_mode & 0o777) == (0o700, 0o600)
    orders = [message.content["orders"] for message in grid.pushed if message.metadata.message_type == "train"]
    assert {order["memory"] for order in orders} == {b"", b"0", b"1"}


def test_sites_have_the_classes_they_have_and_who_does_not_fit_is_left_out(tmp_path: Path) -> None:
    at_hub = {"labeled/cat": 6, "labeled/dog": 6, "labeled/yak": 6}
    data = places.image_folder(tmp_path / "hub", at_hub | {f"test/{name}": 3 for name in places.NAMES})
    given = {"data": str(data), "partition": "sites", "clients": 5, "method": "fedavg+fixmatch", "labels": "client"}
    config = configs.from_options(places.SMALL | given | {"rounds": 1})
    held: dict[str, tuple[dict[str, int], int]] = {
        "a": ({"labeled/cat": 5, "unlabeled": 4}, 16),
        "b": ({"labeled/dog": 4, "labeled/yak": 4, "test/dog": 2}, 16),
        "c": ({"unlabeled": 7}, 16),
        "d": ({"labeled/yeti": 4}, 16),
        "e": ({"labeled/cat": 4}, 12),
    }
    sites = {}
    for name, (counts, side) in held.items():
        sites[name] = places.site(tmp_path, name, data="scans")
        places.image_folder(tmp_path / name / "scans", counts, side)
    said = {name: introduce(about(config), {"site": str(path)}) for name, path in sites.items()}
    assert {name: (place.samples, place.labeled) for name, place in said.items() if not place.refusal} == {
        "a": (9, 5),
        "b": (8, 8),
        "c": (7, 0),
    }
    (record,) = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "run")[1]
    assert record.skipped == {
        3: "refused: scans has a class yeti, which the federation does not know: use only cat, dog, yak",
        4: "refused: images in scans are 12×12 grey and the federation's 16×16 grey: "
        "scale them, or set data.size at the hub",
    }
    assert record.clients == 3
    job = open_desk(about(config), {"site": str(sites["b"])}, 1).job
    assert set(job.federation.client(1, 0).y.tolist()) == {1, 2}
    assert [len(job.federation.client(k, 0)) for k in range(5)] == [0, 8, 0, 0, 0]
    assert job.federation.test.y.tolist() == [1, 1]


def test_labels_are_hidden_where_the_server_has_them(tmp_path: Path) -> None:
    x, y = places.arrays(9)
    path = places.site_with(tmp_path, "a", x=x, y=y)
    config = places.hub(tmp_path, method="fedavg+fixmatch", labels="server")
    place = introduce(about(config), {"site": str(path)})
    assert (place.refusal, place.samples, place.labeled) == ("", 9, 0)
    job = open_desk(about(config), {"site": str(path)}, 2).job
    assert job.federation.client(2, 0).y.tolist() == [-1] * 9
    assert job.federation.true_labels(2, 0) is None


def test_a_site_sees_its_images_as_the_hub_does(tmp_path: Path) -> None:
    x, y = places.arrays(9)
    path = places.site_with(tmp_path, "a", x=x // 4, y=y)  # darker, so that its own mean is another
    config = places.hub(tmp_path, labels="all", **{"data.normalise": "data", "data.flip": True, "data.shift": 1})
    job = open_desk(about(config), {"site": str(path)}, 0).job
    assert job.federation.views == build_job(config)[0].federation.views


def test_a_site_decodes_its_images_once_for_all_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "SETTLED", 0.0)
    path, config = places.site(tmp_path, "a", data="scans"), places.hub(tmp_path)
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    assert introduce(about(config), {"site": str(path)}).samples == 5
    monkeypatch.setattr(images, "load", None)
    assert len(open_desk(about(config), {"site": str(path)}, 0).job.federation.client(0, 0)) == 5
    assert (path.parent / "memory" / "_images.safetensors").exists()


def deep_folder(folder: Path, held: Mapping[str, int]) -> Path:
    """Grey images of 16 bits in folders such as `labeled/cat`: two with the value 900 and one with that given."""
    for place, most in held.items():
        (folder / place).mkdir(parents=True)
        for number, value in enumerate((900, 900, most)):
            Image.fromarray(np.full((16, 16), value, dtype=np.uint16)).save(folder / place / f"{number}.png")
    return folder


def deep_hub(folder: Path, most: int, **options: Any) -> Config:
    """A run of a hub whose images go up to a grey value."""
    labeled = {f"{part}/{name}": most for part in ("labeled", "test") for name in places.NAMES}
    data = str(deep_folder(folder / "hub", labeled))
    given = {"data": data, "partition": "sites", "clients": 2, "labels": "client", "method": "fedavg+fixmatch"}
    return configs.from_options(places.SMALL | given | options)


def test_grey_values_of_16_bits_mean_the_same_at_every_site(tmp_path: Path) -> None:
    config = deep_hub(tmp_path, 4000)
    seen = [build_data(config)[0].x[0, 0, 0, 0]]
    for name, most in {"a": 4000, "b": 1000}.items():
        path = places.site(tmp_path, name, data="scans")
        deep_folder(path.parent / "scans", {"labeled/cat": most})
        seen.append(open_desk(about(config), {"site": str(path)}, 0).job.federation.client(0, 0).x[0, 0, 0, 0])
    assert seen == [56, 56, 56]  # 900 of 4095, whatever a site's own largest value


def test_a_site_whose_values_the_federations_bits_do_not_hold_is_refused(tmp_path: Path) -> None:
    path = places.site(tmp_path, "a", data="scans")
    deep_folder(path.parent / "scans", {"unlabeled": 4000})
    dim = deep_hub(tmp_path / "dim", 1000)
    said = introduce(about(dim), {"site": str(path)}).refusal
    assert (
        said
        == "scans/unlabeled/2.png has the grey value 4000, more than 10 bits hold: set data.bits = 12 in the config"
    )
    assert not introduce(about(deep_hub(tmp_path / "deep", 1000, **{"data.bits": 12})), {"site": str(path)}).refusal


def test_a_site_with_16_bits_where_the_hub_has_none_is_told_what_to_ask_for(tmp_path: Path) -> None:
    path = places.site(tmp_path, "a", data="scans")
    deep_folder(path.parent / "scans", {"unlabeled": 4000})
    said = introduce(about(places.hub(tmp_path)), {"site": str(path)}).refusal
    assert "set data.bits in the config at the hub; here 12 hold the largest value" in said
    config = places.hub(tmp_path, **{"data.bits": 14})
    job = open_desk(about(config), {"site": str(path)}, 0).job
    assert job.federation.pool.x[:, 0, 0, 0].tolist() == [14, 14, 62]  # 900 and 4000 of 16383


@pytest.mark.parametrize("kind", ["scans", "own.npz"])
def test_grey_images_take_part_in_a_federation_of_colour(kind: str, tmp_path: Path) -> None:
    x, y = places.arrays(60)
    config = places.hub(tmp_path)
    np.savez(tmp_path / "hub.npz", x=x[:12].repeat(3, 1), y=y[:12], x_test=x[12:].repeat(3, 1), y_test=y[12:])
    path = places.site_with(tmp_path, "a", x=x[:9], y=y[:9], x_test=x[9:12], y_test=y[9:12])
    places.site(tmp_path, "a", data=kind)
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    assert not introduce(about(config), {"site": str(path)}).refusal
    federation = open_desk(about(config), {"site": str(path)}, 0).job.federation
    own = federation.client(0, 0).x.numpy()
    assert np.array_equal(own, x[: len(own)].repeat(3, 1))
    assert federation.test.x.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize(
    "settings, options, message",
    [
        ({}, {}, "this run deals no data: name a folder, .csv or .npz as data in site.toml"),
        ({"data": "own.npz"}, {"partition": "iid", "per_class": 1}, "this run deals its own data"),
        ({"data": "gone.npz"}, {}, "there is no file gone.npz: check the path"),
        ({"data": "own.npz", "device": "abacus"}, {}, "there is no device 'abacus' here"),
        ({"data": "many.npz"}, {}, "many.npz has a sample of class 3 and the federation's classes are 0 to 2"),
        ({"data": "none.npz"}, {}, "none.npz has 0 images"),
        ({"data": "list.csv"}, {}, "line 2 of list.csv names gone.png, where there is no file"),
        ({"data": "rgb.npz"}, {}, "16×16 in colour and the federation's 16×16 grey: save them as grey ones, or have"),
        ({"data": "rgba.npz"}, {}, "are 16×16 of 4 channels and the federation's 16×16 grey: make them alike"),
    ],
)
def test_a_site_that_can_not_take_part_says_why(
    settings: dict[str, str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = places.hub(tmp_path, method="fedavg+fixmatch", **options)
    path = places.site(tmp_path, "a", **settings)
    x, y = places.arrays(6)
    held = {"own": (x, y), "many": (x, y + 1), "none": (x[:0], y[:0]), "rgb": (x.repeat(3, 1), y)}
    held["rgba"] = x.repeat(4, 1), y
    for name, (pixels, labels) in held.items():
        np.savez(path.parent / f"{name}.npz", x=pixels, y=labels)
    (path.parent / "list.csv").write_text("path,label\ngone.png,\n", encoding="utf-8")
    refusal = introduce(about(config), {"site": str(path)}).refusal
    assert message in refusal
    assert str(tmp_path) not in refusal  # where the data lies is nobody's business


@pytest.mark.parametrize("run", ["../b", "/tmp", "", ".", "a/b"])
def test_the_name_of_a_run_does_not_lead_out_of_the_memory(run: str, tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    node = {"site": str(places.site(tmp_path, "a"))}
    assert "give it a name of letters" in introduce(about(config, run), node).refusal
    with pytest.raises(TacitError, match="give it a name of letters"):
        open_desk(about(config, run), node, 0)


def test_a_hub_begins_without_samples_at_clients(tmp_path: Path) -> None:
    config = places.hub(tmp_path, method="fedavg+supervised", labels="client")
    experiment = Experiment.create(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "split.json").read_text())["clients"] == [[], [], []]
    x, y = places.arrays(12)
    sites = {name: places.site_with(tmp_path, name, x=x, y=y) for name in ("a", "b", "c")}
    courier, _ = federated(config, sites)
    assert next(experiment.rounds(courier)).clients == 3
    again = Experiment.reopen(tmp_path / "run")
    assert [record.round for record in again.rounds(courier)] == [1, 2]
    with pytest.raises(TacitError, match="sites hold data of their own: use `tacit hub run`"):
        next(again.rounds())


def test_missing_labels_are_judged_once_sites_have_said_what_they_hold(tmp_path: Path) -> None:
    config = places.hub(tmp_path, method="fedavg+supervised", labels="client")
    job = build_job(config)[0]
    refuse_missing_labels(config, job, labels_at_clients=True)
    with pytest.raises(TacitError, match="needs labels at the clients and these have none"):
        refuse_missing_labels(config, job, labels_at_clients=False)


def test_a_site_loads_no_more_than_it_needs() -> None:
    code = (
        "import sys, tacit.engines.flower; before = set(sys.modules); import tacit.deploy.site; "
        "print(*({'matplotlib', 'typer', 'rich', 'plotext', 'requests', 'pooch'} & (set(sys.modules) - before)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.strip() == ""


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"version": "9.9"}, f"the hub has version 9.9 of Tacit and this site {__version__}: install the same at both"),
        ({"version": "9.9", "config": "new = 1"}, "the hub has version 9.9 of Tacit"),
        ({"version": None}, "the hub does not say its version: use the same version of Tacit there"),
        ({"split": "another"}, "hub.npz are dealt otherwise here than at the hub: get the data set"),
    ],
)
def test_a_site_refuses_a_hub_of_another_version_or_with_other_data(
    change: dict[str, str | None], reason: str, tmp_path: Path
) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    node = {"site": str(places.site(tmp_path, "a"))}
    told = {name: value for name, value in {**about(config), **change}.items() if value is not None}
    assert reason in introduce(told, node).refusal
    with pytest.raises(TacitError, match=re.escape(reason)):
        open_desk(told, node, 0)


def test_data_that_is_not_the_hubs_is_not_dealt_from(tmp_path: Path) -> None:
    """With other labels, shares of sites could overlap."""
    config = places.hub(tmp_path, partition="dirichlet:1", labels="all")
    node = {"site": str(places.site(tmp_path, "a"))}
    told = about(config)
    assert not introduce(told, node).refusal
    x, y = places.arrays(42)
    np.savez(tmp_path / "hub.npz", x=x[:12], y=y[:12][::-1], x_test=x[12:], y_test=y[12:])
    assert "dealt otherwise here than at the hub" in introduce(told, node).refusal


def test_the_settings_of_a_site_are_read_once_for_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they could change in the middle of an answer."""
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    read: list[str] = []

    def note(file: Path) -> dict[str, Any]:
        read.append(file.name)
        return real(file)

    real = configs.read
    monkeypatch.setattr(configs, "read", note)
    introduce(about(config), {"site": str(path)})
    open_desk(about(config), {"site": str(path)}, 0)
    assert read == ["site.toml", "federation.toml"] * 2


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"lr": 0.5}, "train.lr is 0.5, not "),
        ({"method": "fedmix"}, "'fedmix', not 'fedavg"),
        ({"data.normalise": "unit"}, "data.normalise is 'unit', not 'half'"),
        ({"labels": "client", "per_class": 2}, "data.labels is 'client', not 'all'"),
    ],
)
def test_a_site_refuses_a_run_that_it_was_not_told_of(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    node = {"site": str(path)}
    assert not introduce(about(config), node).refusal
    other = places.hub(tmp_path, **{"partition": "iid", "labels": "all", **change})
    assert reason in introduce(about(other), node).refusal
    assert "tacit hub describe" in introduce(about(other), node).refusal
    with pytest.raises(TacitError, match="not the run that the site has agreed to"):
        open_desk(about(other), node, 0)


def test_what_does_not_touch_the_data_may_change_without_a_word(tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    later = places.hub(tmp_path, partition="iid", labels="all", rounds=9, seed=3, workers=1)
    assert not introduce(about(later), {"site": str(path)}).refusal


def test_a_description_of_other_samples_is_refused_too(tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    told = about(config)
    told["description"] = told["description"].replace("flip = false", "flip = true")
    assert told != about(config)
    assert "other samples" in introduce(told, {"site": str(path)}).refusal


def test_a_site_that_refuses_says_so_on_its_own_machine_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    refusal = introduce(about(places.hub(tmp_path, partition="iid", labels="all", lr=0.5)), {"site": str(path)}).refusal
    printed: list[str] = []
    join._pass_on(capsys.readouterr().out.splitlines(), Site("a"), printed.append)
    assert printed == [f"not taking part: {refusal}"]


def test_a_federation_that_is_named_and_not_there_opens_no_door(tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.site(tmp_path, "a", federation="fed.tml")
    sentence = r"there is no .*fed.tml, which .*site.toml names: get it from the hub, or mend "
    assert re.match(sentence, introduce(about(config), {"site": str(path)}).refusal)
    with pytest.raises(TacitError, match=sentence):
        join.join(path, "127.0.0.1:1", lambda text: None)


@pytest.mark.parametrize(
    "setting, value, sentence",
    [
        ("data", "nowhere", "nowhere, which .* names: give the path of an image folder, a .csv or a .npz"),
        ("key", "lost.key", "lost.key, which .* names: bring it back, or make a new pair"),
        ("certificate", "lost.crt", "lost.crt, which .* names: get it from the hub"),
        ("certificate", "site.toml", "site.toml is no certificate: get ca.crt from the hub again"),
    ],
)
def test_what_every_run_would_be_refused_for_is_said_before_joining(
    setting: str, value: str, sentence: str, tmp_path: Path
) -> None:
    path = places.site(tmp_path, "a", **{setting: value})
    with pytest.raises(TacitError, match=sentence):
        join.join(path, "127.0.0.1:1", lambda text: None)


def test_the_memory_of_a_site_is_for_its_owner_alone(tmp_path: Path) -> None:
    config = places.hub(tmp_path, partition="iid", labels="all")
    path = places.tell(places.site(tmp_path, "a"), config)
    assert not introduce(about(config), {"site": str(path)}).refusal
    assert (path.parent / "memory").stat().st_mode & 0o777 == 0o700
