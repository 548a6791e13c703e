"""Sites without processes: own data gives the bits of one machine, and sites that do not fit are left out."""

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
from tacit.data.sources import images
from tacit.engines.in_process import InProcessTransport
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs import toml_file
from tacit.runs.build import build_data, build_job, refuse_missing_labels
from tacit.runs.config import Config
from tacit.runs.experiment import Experiment
from tests.deploy import places
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import image_cache
from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower


def federated(config: Config, sites: Mapping[str, Path]) -> tuple[FlowerTransport, DirectGrid]:
    """The sites as nodes, not in the order of their names."""
    nodes = [places.trial(sites[name]) for name in sorted(sites, reverse=True)]
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), nodes)
    numbers = {name: number for number, name in enumerate(sorted(sites))}
    return FlowerTransport(build_job(config)[0], ClientNodes(GridClient(grid), places.run_info(config), numbers)), grid


def outcomes(records: list[RoundRecord]) -> list[tuple[Any, ...]]:
    """The outcome of every round, without the accuracy of pseudo-labels, which only a simulation knows."""
    return [(each.accuracy, each.loss, each.steps, each.traffic, each.skipped) for each in records]


@pytest.mark.parametrize(
    "method, labels", [("fedavg+fixmatch", "server"), ("fedmatch", "server"), ("fedmix", "all"), ("scaffold", "all")]
)
def test_sites_with_their_own_data_give_the_bits_of_one_machine(method: str, labels: str, tmp_path: Path) -> None:
    x, y = places.arrays(120)
    np.savez(tmp_path / "whole.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:])
    given = places.SMALL | {"method": method, "labels": labels, "clients": 3}
    budget = {"per_class": 4} if labels == "server" else {}
    whole = configs.from_options(given | budget | {"data": str(tmp_path / "whole.npz"), "partition": "dirichlet:1"})
    here = played(build_job(whole)[0], InProcessTransport(build_job(whole)[0]), tmp_path / "here")

    split = build_data(whole)[1]
    at_hub = split.server if len(split.server) else np.arange(3)
    np.savez(tmp_path / "hub.npz", x=x[at_hub], y=y[at_hub], x_test=x[90:], y_test=y[90:])
    parts = dict(zip(("a", "b", "c"), split.clients, strict=True))
    sites = {name: places.site_with_arrays(tmp_path, name, x=x[part], y=y[part]) for name, part in parts.items()}
    config = configs.from_options(given | {"data": str(tmp_path / "hub.npz"), "partition": "sites"})
    there = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "there")
    assert there[0] == here[0]
    assert outcomes(there[1]) == outcomes(here[1])


def test_a_site_without_data_gets_a_share(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="scaffold", partition="iid", labels="all")
    here = played(build_job(config)[0], InProcessTransport(build_job(config)[0]), tmp_path / "here")
    sites = {name: places.site(tmp_path, name) for name in ("a", "b", "c")}
    there = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "there")
    assert there[:2] == here[:2]


@pytest.mark.parametrize("allowed", [[], ["other.npz"], ["../hub.npz"], ["{folder}/hub.npz"]])
def test_a_site_reads_no_path_that_a_run_names(tmp_path: Path, allowed: list[str]) -> None:
    """Unless its own settings name exactly that path."""
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    named = [each.format(folder=tmp_path) for each in allowed]
    info = introduce(places.run_info(config), places.trial(places.site(tmp_path, "a", allow_data=named)))
    assert bool(info.refusal) == (allowed != ["{folder}/hub.npz"])
    assert not info.refusal or "this site reads no file or folder that a run names" in info.refusal


def test_memory_stays_on_the_sites_disk_separate_for_every_run(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="scaffold", partition="iid", labels="all")
    sites = {name: places.site(tmp_path, name) for name in ("a", "b", "c")}
    transport, grid = federated(config, sites)
    _, _, memories = played(build_job(config)[0], transport, tmp_path / "there")
    versions = [version or b"" for version in memories]
    assert all(re.fullmatch(rb"2:[0-9a-f]{32}", version) for version in versions)  # last round and digest, no more
    store = tmp_path / "a" / "memory" / "run-1"
    assert (store / "2").stat().st_size > 1000
    assert (store.stat().st_mode & 0o777, (store / "2").stat().st_mode & 0o777) == (0o700, 0o600)
    orders: list[Any] = [message.content["task"] for message in grid.pushed if message.metadata.message_type == "train"]
    assert {order["memory"].partition(b":")[0] for order in orders} == {b"", b"0", b"1"}


def test_a_site_may_lack_classes_and_one_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
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
    infos = {name: introduce(places.run_info(config), places.trial(path)) for name, path in sites.items()}
    assert {name: (info.samples, info.labeled) for name, info in infos.items() if not info.refusal} == {
        "a": (9, 5),
        "b": (8, 8),
        "c": (7, 0),
    }
    (record,) = played(build_job(config)[0], federated(config, sites)[0], tmp_path / "run")[1]
    assert record.skipped == {3: f"refused: {infos['d'].refusal}", 4: f"refused: {infos['e'].refusal}"}
    expected = (
        "this site's images are 12×12 grey and the federation's 16×16 grey; "
        "scale them, or set data.size at the hub if they are image files"
    )
    assert infos["e"].refusal == expected
    assert record.clients == 3
    job = open_workspace(places.run_info(config), places.trial(sites["b"]), 1).job
    assert set(job.federation.client(1, 0).y.tolist()) == {1, 2}
    assert [len(job.federation.client(k, 0)) for k in range(5)] == [0, 8, 0, 0, 0]
    assert job.federation.test.y.tolist() == [1, 1]


def test_labels_are_hidden_where_the_server_has_them(tmp_path: Path) -> None:
    x, y = places.arrays(9)
    path = places.site_with_arrays(tmp_path, "a", x=x, y=y)
    config = places.hub_config(tmp_path, method="fedavg+fixmatch", labels="server")
    info = introduce(places.run_info(config), places.trial(path))
    assert (info.refusal, info.samples, info.labeled) == ("", 9, 0)
    job = open_workspace(places.run_info(config), places.trial(path), 2).job
    assert job.federation.client(2, 0).y.tolist() == [-1] * 9
    assert job.federation.true_labels(2, 0) is None


def test_a_site_normalises_its_images_like_the_hub(tmp_path: Path) -> None:
    x, y = places.arrays(9)
    path = places.site_with_arrays(tmp_path, "a", x=x // 4, y=y)  # darker, so its own mean differs
    config = places.hub_config(tmp_path, labels="all", **{"data.normalise": "data", "data.flip": True, "data.shift": 1})
    job = open_workspace(places.run_info(config), places.trial(path), 0).job
    assert job.federation.views == build_job(config)[0].federation.views


def test_a_site_decodes_its_images_once_for_all_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "SETTLE_SECONDS", 0.0)
    path, config = places.site(tmp_path, "a", data="scans"), places.hub_config(tmp_path)
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    assert introduce(places.run_info(config), places.trial(path)).samples == 5
    monkeypatch.setattr(images, "load", None)
    assert len(open_workspace(places.run_info(config), places.trial(path), 0).job.federation.client(0, 0)) == 5
    assert (path.parent / "memory" / "_images.safetensors").exists()


def deep_folder(folder: Path, held: Mapping[str, int]) -> Path:
    """16-bit grey images in folders such as `labeled/cat`: two with the value 900 and one with the given value."""
    for place, most in held.items():
        (folder / place).mkdir(parents=True)
        for number, value in enumerate((900, 900, most)):
            Image.fromarray(np.full((16, 16), value, dtype=np.uint16)).save(folder / place / f"{number}.png")
    return folder


def deep_hub(folder: Path, most: int, **options: Any) -> Config:
    """The config of a run whose hub has images up to a grey value."""
    labeled = {f"{part}/{name}": most for part in ("labeled", "test") for name in places.NAMES}
    data = str(deep_folder(folder / "hub", labeled))
    given = {"data": data, "partition": "sites", "clients": 2, "labels": "client", "method": "fedavg+fixmatch"}
    return configs.from_options(places.SMALL | given | options)


def test_16_bit_grey_values_mean_the_same_at_every_site(tmp_path: Path) -> None:
    config = deep_hub(tmp_path, 4000)
    seen = [build_data(config)[0].x[0, 0, 0, 0]]
    for name, most in {"a": 4000, "b": 1000}.items():
        path = places.site(tmp_path, name, data="scans")
        deep_folder(path.parent / "scans", {"labeled/cat": most})
        seen.append(
            open_workspace(places.run_info(config), places.trial(path), 0).job.federation.client(0, 0).x[0, 0, 0, 0]
        )
    assert seen == [56, 56, 56]  # 900 of 4095, whatever a site's own largest value


def test_a_site_with_larger_values_than_the_federations_bits_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = places.site(tmp_path, "a", data="scans")
    deep_folder(path.parent / "scans", {"unlabeled": 4000})
    dim = deep_hub(tmp_path / "dim", 1000)
    assert introduce(places.run_info(dim), places.trial(path)).refusal
    assert "data.bits = 12" in capsys.readouterr().out
    assert not introduce(
        places.run_info(deep_hub(tmp_path / "deep", 1000, **{"data.bits": 12})), places.trial(path)
    ).refusal


def test_a_site_with_16_bits_where_the_hub_has_none_names_its_bits(tmp_path: Path) -> None:
    path = places.site(tmp_path, "a", data="scans")
    deep_folder(path.parent / "scans", {"unlabeled": 4000})
    refusal = introduce(places.run_info(places.hub_config(tmp_path)), places.trial(path)).refusal
    assert "set data.bits in the config at the hub; here 12 bits hold the largest value" in refusal
    config = places.hub_config(tmp_path, **{"data.bits": 14})
    job = open_workspace(places.run_info(config), places.trial(path), 0).job
    assert job.federation.pool.x[:, 0, 0, 0].tolist() == [14, 14, 62]  # 900 and 4000 of 16383


@pytest.mark.parametrize("kind", ["scans", "own.npz"])
def test_grey_images_fit_a_federation_of_colour_images(kind: str, tmp_path: Path) -> None:
    x, y = places.arrays(60)
    config = places.hub_config(tmp_path)
    np.savez(tmp_path / "hub.npz", x=x[:12].repeat(3, 1), y=y[:12], x_test=x[12:].repeat(3, 1), y_test=y[12:])
    path = places.site_with_arrays(tmp_path, "a", x=x[:9], y=y[:9], x_test=x[9:12], y_test=y[9:12])
    places.site(tmp_path, "a", data=kind)
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    assert not introduce(places.run_info(config), places.trial(path)).refusal
    federation = open_workspace(places.run_info(config), places.trial(path), 0).job.federation
    own = federation.client(0, 0).x.numpy()
    assert np.array_equal(own, x[: len(own)].repeat(3, 1))
    assert federation.test.x.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize("run", ["../b", "/tmp", "", ".", "a/b"])
def test_the_id_of_a_run_cannot_leave_the_memory_folder(run: str, tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    node = places.trial(places.site(tmp_path, "a"))
    assert introduce(places.run_info(config, run), node).refusal
    with refused("site.bad-run-id"):
        open_workspace(places.run_info(config, run), node, 0)


def test_a_hub_starts_without_the_sites_samples(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="fedavg+supervised", labels="client")
    experiment = Experiment.create(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "split.json").read_text())["clients"] == [[], [], []]
    x, y = places.arrays(12)
    sites = {name: places.site_with_arrays(tmp_path, name, x=x, y=y) for name in ("a", "b", "c")}
    transport, _ = federated(config, sites)
    assert next(experiment.rounds(transport)).clients == 3
    again = Experiment.reopen(tmp_path / "run")
    assert [record.round for record in again.rounds(transport)] == [1, 2]
    with pytest.raises(TacitError):
        next(again.rounds())  # without the hub


def test_missing_labels_are_refused_once_the_sites_are_known(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="fedavg+supervised", labels="client")
    job = build_job(config)[0]
    refuse_missing_labels(config, job, labels_at_clients=True)
    with pytest.raises(TacitError):
        refuse_missing_labels(config, job, labels_at_clients=False)


def test_a_site_imports_no_plotting_or_network_packages() -> None:
    code = (
        "import sys, tacit.engines.flower; before = set(sys.modules); import tacit.deploy.site; "
        "print(*({'matplotlib', 'typer', 'rich', 'plotext', 'requests', 'pooch'} & (set(sys.modules) - before)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize(
    "change, code",
    [
        ({"version": "9.9"}, "site.other-version"),
        ({"version": "9.9", "config": "new = 1"}, "site.other-version"),
        ({"version": None}, "site.incomplete-message"),
        ({"schema": "0"}, "site.other-schema"),
        ({"split": "another"}, "site.other-split"),
        ({"description": "classes = ["}, "federation.broken"),
    ],
)
def test_a_site_refuses_a_hub_with_another_version_or_other_data(
    change: dict[str, str | None], code: str, tmp_path: Path
) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    node = places.trial(places.site(tmp_path, "a"))
    received = {name: value for name, value in {**places.run_info(config), **change}.items() if value is not None}
    with refused(code) as caught:
        open_workspace(received, node, 0)
    assert introduce(received, node).refusal == str(caught.error)


def test_a_site_may_have_another_patch_release_than_the_hub(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    node = places.trial(places.site(tmp_path, "a"))
    for patch in ("0", "99", "1.dev3"):
        version = ".".join([*__version__.split(".")[:2], patch])
        assert not introduce(places.run_info(config) | {"version": version}, node).refusal


def test_a_share_of_other_data_is_refused(tmp_path: Path) -> None:
    """With other labels, the shares of two sites could overlap."""
    config = places.hub_config(tmp_path, partition="dirichlet:1", labels="all")
    node = places.trial(places.site(tmp_path, "a"))
    received = places.run_info(config)
    assert not introduce(received, node).refusal
    x, y = places.arrays(42)
    np.savez(tmp_path / "hub.npz", x=x[:12], y=y[:12][::-1], x_test=x[12:], y_test=y[12:])
    with refused("site.other-split"):
        open_workspace(received, node, 0)


def test_each_message_reads_the_sites_settings_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they could change in the middle of a reply."""
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    path = places.agree(places.site(tmp_path, "a"), config)
    read: list[str] = []

    def record(file: Path) -> dict[str, Any]:
        read.append(file.name)
        return original(file)

    original = toml_file.read
    monkeypatch.setattr(toml_file, "read", record)
    introduce(places.run_info(config), places.member(path))
    open_workspace(places.run_info(config), places.member(path), 0)
    assert read == ["site.toml", "federation.toml"] * 2


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"lr": 0.5}, "train.lr is 0.5, not "),
        ({"method": "fedmix"}, "'fedmix', not 'fedavg"),
        ({"rounds": 4}, "it has 4 rounds, and 3 were agreed"),
        ({"data.normalise": "unit"}, "data.normalise is 'unit', not 'half'"),
        ({"labels": "client", "per_class": 2}, "data.labels is 'client', not 'all'"),
    ],
)
def test_a_site_refuses_a_run_that_it_has_not_agreed_to(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    path = places.agree(places.site(tmp_path, "a"), config)
    node = places.member(path)
    assert not introduce(places.run_info(config), node).refusal
    other = places.hub_config(tmp_path, **{"partition": "iid", "labels": "all", **change})
    assert reason in introduce(places.run_info(other), node).refusal
    with refused("site.not-agreed"):
        open_workspace(places.run_info(other), node, 0)


def test_fewer_rounds_seed_and_workers_may_change_without_consent(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    path = places.agree(places.site(tmp_path, "a"), config)
    shorter = places.hub_config(tmp_path, partition="iid", labels="all", rounds=2, seed=3, workers=1)
    assert not introduce(places.run_info(shorter), places.member(path)).refusal


def test_a_description_of_other_samples_needs_consent_too(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    path = places.agree(places.site(tmp_path, "a"), config)
    received = places.run_info(config)
    received["description"] = received["description"].replace("flip = false", "flip = true")
    assert received != places.run_info(config)
    with refused("site.not-agreed"):
        open_workspace(received, places.member(path), 0)


def test_only_the_owner_can_read_a_sites_memory(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    path = places.agree(places.site(tmp_path, "a"), config)
    assert not introduce(places.run_info(config), places.member(path)).refusal
    assert (path.parent / "memory").stat().st_mode & 0o777 == 0o700
