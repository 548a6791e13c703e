"""The hub's side of a run, without processes: which sites it waits for, how it numbers them, and what it refuses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.data import sources
from tacit.data.sources import Source
from tacit.deploy import hub as hubs
from tacit.deploy import hub_admin, hub_sites, site_init
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub
from tacit.deploy.site import introduce, open_workspace
from tacit.engines.flower import ClientNodes, GridClient, NodeInfo, client_app
from tacit.errors import TacitError
from tacit.runs import auto
from tacit.runs import config as configs
from tacit.runs.auto import Seen
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tests.deploy import places
from tests.engines.farm import write_images
from tests.engines.grid import DirectGrid
from tests.refusals import refused

pytestmark = pytest.mark.flower


@pytest.fixture
def hub(tmp_path: Path) -> HubDirectory:
    return HubDirectory.create(tmp_path / "hub", Hub())


def add_site(hub: HubDirectory, name: str, folder: Path) -> None:
    key = folder / f"{name}.pub"
    key.write_bytes(site_init.create_key_pair(name)[1])
    hub_sites.add_site(hub, name, key)


def test_a_run_needs_one_client_per_site(hub: HubDirectory, tmp_path: Path) -> None:
    for name in ("north", "south"):
        add_site(hub, name, tmp_path)
    config = tmp_path / "run.toml"
    data: dict[str, Any] = {"name": str(write_images(tmp_path / "data.npz")), "labels": "client", "per_class": 2}
    config.write_text(tomli_w.dumps({"data": data}))
    assert hubs.load_config(hub, config, {}).data.clients == 2
    config.write_text(tomli_w.dumps({"data": data | {"clients": 5}}))
    with refused("hub.wrong-client-count") as caught:
        hubs.load_config(hub, config, {})
    assert "5 clients and the hub 2 sites (north, south)" in caught.error.problem


def test_a_hub_waits_an_hour_for_a_site(hub: HubDirectory, tmp_path: Path) -> None:
    """A site that stays connected and never answers stops nobody for ever."""
    config = tmp_path / "run.toml"
    data = {"name": str(write_images(tmp_path / "data.npz")), "labels": "client", "per_class": 2}
    config.write_text(tomli_w.dumps({"data": data}))
    assert hubs.load_config(hub, config, {}).engine.deadline == 3600
    config.write_text(tomli_w.dumps({"data": data, "engine": {"deadline": 5.0}}))
    assert hubs.load_config(hub, config, {}).engine.deadline == 5


@pytest.mark.parametrize("given", [None, "mine"])
def test_only_the_owner_enters_a_runs_folder(hub: HubDirectory, tmp_path: Path, given: str | None) -> None:
    data = {"name": str(write_images(tmp_path / "data.npz")), "labels": "client", "per_class": 2, "clients": 2}
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"data": data}))
    made = hubs.create_run(hub, tmp_path / "run.toml", {}, tmp_path / given if given else None)
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_run_that_hides_its_clients_has_a_secret_in_place_of_the_seed(hub: HubDirectory, tmp_path: Path) -> None:
    """Sites know the seed: with it they could compute the noise and who takes part."""
    data = {"name": str(write_images(tmp_path / "data.npz")), "labels": "client", "per_class": 2, "clients": 2}
    hides = {"protect": {"client_noise": 1.0, "client_clip": 1.0}, "net": {"norm": "group"}}
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"data": data} | hides))
    made = [hubs.create_run(hub, tmp_path / "run.toml", {}, tmp_path / name) for name in ("a", "b")]
    secrets = [Experiment.reopen(folder).job.secret for folder in made]
    assert None not in secrets
    assert secrets[0] != secrets[1]
    assert (made[0] / "secret.json").stat().st_mode & 0o777 == 0o600
    assert hubs.load_config(hub, tmp_path / "run.toml", {}).limits.norm_factor is None, "client_clip bounds updates"
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"data": data}))
    assert RunDirectory(hubs.create_run(hub, tmp_path / "run.toml", {}, tmp_path / "c")).secret() is None


@dataclass
class Arrivals:
    """Nodes that join from one poll to the next."""

    polls: list[list[NodeInfo]]
    failures: dict[int, str] = field(default_factory=dict)

    def infos(self, waiting: Callable[[list[str]], None] = lambda names: None) -> dict[int, NodeInfo]:
        waiting(["south", "north"])
        now = self.polls.pop(0) if self.polls[1:] else self.polls[0]
        return dict(enumerate(now))


def wait(polls: list[list[NodeInfo]], expected: list[str] | None, **engine: Any) -> tuple[list[str], list[str]]:
    shown: list[str] = []
    config = configs.make({"data": {"clients": 2}, "engine": engine})
    nodes: Any = Arrivals(polls)
    return hubs.wait_for_sites(nodes, expected, config, 0.05, shown.append), shown


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("fast_polls")
def test_sites_are_numbered_by_their_names() -> None:
    names, shown = wait([[], [NodeInfo("b")], [NodeInfo("b"), NodeInfo("a")]], ["b", "a"])
    assert names == ["a", "b"]
    assert shown[0] == "0 of 2 sites have joined: b, a missing"
    assert shown[-1] == "2 sites have joined: a, b"


@pytest.mark.usefixtures("fast_polls")
def test_a_known_site_may_join_later_if_enough_are_there() -> None:
    assert wait([[NodeInfo("b")]], ["a", "b"])[0] == ["a", "b"]
    with refused("hub.too-few-sites") as caught:
        wait([[NodeInfo("b")]], ["a", "b"], min_clients=2)
    assert caught.error.resumable


@pytest.mark.usefixtures("fast_polls")
def test_the_hub_says_whom_it_waits_for_before_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "NOTICE_SECONDS", 0.0)
    _, shown = wait([[NodeInfo("north")], [NodeInfo("north"), NodeInfo("south")]], ["north", "south"])
    assert shown == [
        "waiting for north, south: connected, but not ready yet",
        "1 of 2 sites have joined: south missing",
        "2 sites have joined: north, south",
    ]


@pytest.mark.usefixtures("fast_polls")
def test_unknown_sites_must_all_be_there_and_able() -> None:
    assert wait([[NodeInfo("z"), NodeInfo("y")]], None)[0] == ["y", "z"]
    with refused("hub.too-few-sites") as caught:
        wait([[NodeInfo("z"), NodeInfo("y", "no samples")]], None)
    assert "1 of 2 sites have joined (z)" in caught.error.problem


def test_a_node_with_the_name_of_another_site_is_refused() -> None:
    grid: Any = None
    owners = {1: "north"}
    nodes = ClientNodes(grid, {}, {}, owners=lambda: owners)
    assert nodes._authenticated(1, NodeInfo("north")) == NodeInfo("north")
    assert nodes._authenticated(1, NodeInfo("south")) == NodeInfo(
        "north", "it calls itself south and has the key of north"
    )
    assert nodes._authenticated(2, NodeInfo("north")).refusal
    owners = {2: "north"}  # the key is replaced during the run
    assert nodes._authenticated(2, NodeInfo("north")) == NodeInfo("north")
    assert nodes._authenticated(1, NodeInfo("north")).refusal


def test_a_key_that_is_replaced_during_the_wait_counts(hub: HubDirectory, tmp_path: Path) -> None:
    hub.flower_home.mkdir()
    hub.settings_file.write_text(tomli_w.dumps({"join_seconds": 0.05}))
    config = places.hub_config(tmp_path, clients=1, labels="client", rounds=1, method="fedavg+supervised")
    Experiment.create(config, tmp_path / "run")
    add_site(hub, "a", tmp_path)
    x, y = places.arrays(6)
    site = places.site_with_arrays(tmp_path, "a", x=x, y=y)
    grid = DirectGrid(client_app(open_workspace, introduce), [places.trial(site)])
    push = grid.push_messages

    def replace_key_and_push(messages: Iterable[Any]) -> Iterable[str]:
        hub.write_registered_nodes(dict.fromkeys(grid.contexts, ("a", "its new key")))
        return push(messages)

    grid.push_messages = replace_key_and_push  # type: ignore[method-assign]
    run(hub, tmp_path / "run", GridClient(grid))
    assert hub_admin.run_status(tmp_path / "run").finished == 1


def test_the_sites_are_stored_with_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert hubs.Sites.read(directory) is None
    hubs.Sites("id", ["a", "b"]).write(directory)
    assert hubs.Sites.read(directory) == hubs.Sites("id", ["a", "b"])
    assert directory.sites() == {"run": "id", "names": ["a", "b"]}


def run(hub: HubDirectory, folder: Path, grid: GridClient) -> None:
    """Run as Flower's ServerApp does."""
    hubs.main(grid, {"hub": str(hub.path), "run": str(folder), "config": ""})


def hub_and_sites(folder: Path, labels: dict[str, list[int]], **options: Any) -> tuple[HubDirectory, Path, GridClient]:
    """A hub with a run, and a site in this process for each list of labels."""
    made = HubDirectory.create(folder / "hub", Hub(insecure=True))
    made.settings_file.write_text(tomli_w.dumps({"insecure": True, "join_seconds": 0.05}))
    config = places.hub_config(folder, **{"clients": len(labels), "labels": "client", "rounds": 1, **options})
    Experiment.create(config, folder / "run")
    x, _ = places.arrays(9)
    sites = [places.site_with_arrays(folder, name, x=x[: len(y)], y=np.array(y)) for name, y in labels.items()]
    grid = DirectGrid(client_app(open_workspace, introduce), [places.trial(site) for site in sites])
    return made, folder / "run", GridClient(grid)


@pytest.mark.parametrize("method", ["fedavg+supervised", "fedavg+fixmatch"])
def test_a_run_without_labels_at_any_site_is_refused(method: str, tmp_path: Path) -> None:
    hub, folder, grid = hub_and_sites(tmp_path, {"a": [-1, -1], "b": [-1, -1, -1]}, method=method)
    with pytest.raises(TacitError) as caught:
        run(hub, folder, grid)
    reason = RunDirectory(folder).stop_reason()
    assert reason
    assert (reason.code, str(reason)) == (caught.value.code, str(caught.value))
    assert RunDirectory(folder).rounds() == []
    assert RunDirectory(folder).sites() is None


def test_labels_at_one_site_are_enough_and_the_data_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, folder, grid = hub_and_sites(tmp_path, {"b": [-1, -1], "a": [-1, 2, 0]}, method="fedavg+supervised")
    loaded: list[str] = []

    def load(name: str, *scale: Any) -> Source:
        loaded.append(name)
        return original(name, *scale)

    original = sources.load
    monkeypatch.setattr(sources, "load", load)
    run(hub, folder, grid)
    assert len(RunDirectory(folder).rounds()) == 1
    assert loaded == [str(tmp_path / "hub.npz")]
    sites = hubs.Sites.read(RunDirectory(folder))
    assert sites
    assert sites.numbers == {"a": 0, "b": 1}
    assert RunDirectory(folder).progress_file.read_text().startswith("2 sites have joined: a, b\nround 1/1  ")


def test_only_one_process_waits_for_the_sites_of_a_run(tmp_path: Path) -> None:
    hub, folder, grid = hub_and_sites(tmp_path, {"a": [0, 1, 2], "b": [0, 1]}, method="fedavg+supervised")
    inner: Any = grid.grid
    get_node_ids = inner.get_node_ids
    running: list[bool] = []

    def run_a_second_time() -> Iterable[int]:
        if not running:
            (folder / "error.json").write_text("of the first")
            running.append(hub_admin.run_status(folder).running)
            with refused("run.locked"):
                run(hub, folder, grid)
            assert (folder / "error.json").read_text() == "of the first"
        found: Iterable[int] = get_node_ids()
        return found

    inner.get_node_ids = run_a_second_time
    run(hub, folder, grid)
    assert running == [True]
    status = hub_admin.run_status(folder)
    assert (status.running, status.finished, status.state) == (False, 1, "finished")


def test_labels_are_not_required_while_a_site_is_missing(tmp_path: Path) -> None:
    config = places.hub_config(tmp_path, method="fedavg+supervised", labels="client")
    experiment = Experiment.create(config, tmp_path / "run")
    nodes: Any = Arrivals([[NodeInfo("a", samples=3)]])
    hubs.refuse_without_labels(experiment, ["a", "b"], nodes)
    with pytest.raises(TacitError):
        hubs.refuse_without_labels(experiment, ["a"], nodes)


def test_a_new_run_needs_a_config(hub: HubDirectory) -> None:
    grid: Any = None
    with refused("hub.no-run-given"):
        hubs.main(grid, {"hub": str(hub.path), "run": "", "config": ""})


def test_auto_decides_by_what_sites_have_declared(hub: HubDirectory, tmp_path: Path) -> None:
    for name in ("north", "south"):
        add_site(hub, name, tmp_path)
    config = tmp_path / "run.toml"
    data = {"name": str(write_images(tmp_path / "data.npz")), "labels": "server", "partition": "sites"}
    config.write_text(tomli_w.dumps({"method": {"name": "auto"}, "data": data | {"augment": "gentle"}}))
    first: list[str] = []
    assert hubs.load_config(hub, config, {}, first.append).train.epochs == 3
    assert any(line.startswith("sites    north, south: not counted") for line in first)
    run = hub.runs_folder / "before"
    run.mkdir(parents=True)
    said = {"refusal": "", "version": "0"}
    sites: dict[str, Any] = {"north": {"samples": 400, "labeled": 0}, "south": {"samples": 800, "labeled": 0}}
    RunDirectory(run).write_note("introductions.json", {name: said | each for name, each in sites.items()})
    assert hubs.declarations(hub) == {"north": (400, 0), "south": (800, 0)}
    lines: list[str] = []
    made = hubs.load_config(hub, config, {}, lines.append)
    assert made.train.epochs == auto.epochs(Seen(120, 0, 0, 1200, (400, 800)), made.train.batch)
    assert "1,200 unlabeled at sites that declare 400 to 800 samples" in lines[0]
    assert not any(line.startswith("sites") for line in lines)
    path = hubs.write_federation_file(hub, config, {})
    assert '"auto"' not in path.read_text()
