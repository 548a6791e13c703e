"""What an operator does with a hub, without its processes: keys of sites, ports, and the status of runs."""

import fcntl
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.cli.app import app
from tacit.deploy import flower_cli, flower_database, hub_admin, hub_service, hub_sites, site_init
from tacit.deploy.flower_database import Node
from tacit.deploy.hub_admin import RunStatus
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub
from tacit.engines.events import RoundProgress
from tacit.errors import TacitError
from tacit.runs.directory import RunDirectory
from tests.refusals import refused

pytestmark = pytest.mark.flower

CONFIG = 'seed = 0\nrounds = 3\n[method]\nname = "fedavg"\n'


@pytest.fixture
def hub(tmp_path: Path) -> HubDirectory:
    return HubDirectory.create(tmp_path / "hub", Hub())


def public_key(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pub"
    path.write_bytes(site_init.create_key_pair(name)[1])
    return path


def test_each_site_has_its_own_key(hub: HubDirectory, tmp_path: Path) -> None:
    key = public_key("north", tmp_path)
    assert hub_sites.add_site(hub, "north", key) is False  # the hub does not run
    assert hub_sites.add_site(hub, "north", key) is False  # a second time does no harm
    assert hub.expected_sites == ["north"]
    with refused("hub.key-taken"):
        hub_sites.add_site(hub, "south", key)
    with refused("hub.site-exists"):
        hub_sites.add_site(hub, "north", public_key("again", tmp_path))
    with refused("hub.not-a-key"):
        hub_sites.add_site(hub, "south", hub.authority_file)
    with refused("hub.unreadable-key"):
        hub_sites.add_site(hub, "south", tmp_path / "gone.pub")
    with pytest.raises(TacitError):
        hub_sites.add_site(hub, "../south", public_key("south", tmp_path))
    assert hub.expected_sites == ["north"]


def test_an_insecure_hub_takes_no_keys(tmp_path: Path) -> None:
    made = HubDirectory.create(tmp_path / "hub", Hub(insecure=True))
    with refused("hub.insecure"):
        hub_sites.add_site(made, "north", public_key("north", tmp_path))


def test_an_empty_key_file_is_refused(hub: HubDirectory, tmp_path: Path) -> None:
    """A hub that was killed while it wrote may leave one."""
    hub_sites.add_site(hub, "north", public_key("north", tmp_path))
    hub.site_keys["north"].write_text("")
    hub_sites.add_site(hub, "south", public_key("south", tmp_path))
    with refused("hub.site-exists"):
        hub_sites.add_site(hub, "north", public_key("north", tmp_path))
    with refused("hub.not-a-key") as caught:
        hub_sites.sync_keys(hub)
    assert "north.pub" in caught.error.problem


def test_a_removed_site_can_be_added_with_a_new_key(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(hub_sites, "sync_keys", lambda hub: synced.append(sorted(hub.site_keys)))
    for name in ("north", "south"):
        hub_sites.add_site(hub, name, public_key(name, tmp_path))
    monkeypatch.setattr(HubDirectory, "is_running", lambda self: True)
    assert hub_sites.remove_site(hub, "north")
    assert synced == [["south"]]  # at once, since the hub runs
    with refused("hub.unknown-site") as caught:
        hub_sites.remove_site(hub, "north")
    assert caught.error.remedy == "choose one of south"
    hub_sites.add_site(hub, "north", public_key("newer", tmp_path))
    assert sorted(hub.site_keys) == ["north", "south"]


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        made = HubDirectory.create(tmp_path / "hub", Hub(port=other.getsockname()[1], insecure=True))
        with refused("hub.port-in-use"):
            hub_service.serving(made).__enter__()


def accept(monkeypatch: pytest.MonkeyPatch, *nodes: int) -> None:
    """Let Flower's database hold these nodes."""
    held = [Node(node, removed=False, connected=False, key=b"") for node in nodes]
    monkeypatch.setattr(flower_database, "nodes", lambda database: held)


def test_replaced_and_removed_keys_are_unregistered(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(name: str, arguments: list[str], home: Path) -> str:
        calls.append(f"{arguments[1]} {Path(arguments[2]).stem}")
        return f'registered {{"node-id": {len(calls)}}}'

    monkeypatch.setattr(flower_cli, "call", call)
    hub.flower_home.mkdir()
    for name in ("north", "south"):
        hub_sites.add_site(hub, name, public_key(name, tmp_path))
    hub_sites.sync_keys(hub)
    assert sorted(calls) == ["register north", "register south"]
    assert sorted(hub.node_names().values()) == ["north", "south"]
    old = {name: str(node) for node, name in hub.node_names().items()}
    accept(monkeypatch, 1, 2)
    for name in ("north", "south"):
        hub.site_keys[name].unlink()
    hub_sites.add_site(hub, "north", public_key("new", tmp_path))
    calls.clear()
    hub_sites.sync_keys(hub)
    assert sorted(calls) == sorted([f"unregister {old['north']}", f"unregister {old['south']}", "register north"])
    assert list(hub.node_names().values()) == ["north"]


def test_one_process_at_a_time_registers_keys(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("north", "south"):
        hub_sites.add_site(hub, name, public_key(name, tmp_path))
    keys = {name: path.read_text() for name, path in hub.site_keys.items()}
    calls: list[str] = []

    def call(name: str, arguments: list[str], home: Path) -> str:
        with (hub.flower_home / "nodes.lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append(Path(arguments[2]).stem)
        return '{"node-id": 2}'

    def lock(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:  # the first process has just finished
            hub.write_registered_nodes({1: ("north", keys["north"])})
        flock(file, how)

    flock = fcntl.flock
    accept(monkeypatch, 1)
    monkeypatch.setattr(flower_cli, "call", call)
    monkeypatch.setattr(fcntl, "flock", lock)
    hub_sites.sync_keys(hub)
    assert calls == ["south"]
    assert hub.node_names() == {1: "north", 2: "south"}


def test_a_node_that_was_removed_without_our_knowing_is_registered_again(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_sites.add_site(hub, "north", public_key("north", tmp_path))
    hub.flower_home.mkdir()
    hub.write_registered_nodes({1: ("north", hub.site_keys["north"].read_text()), 2: ("gone", "key")})
    accept(monkeypatch)  # neither is known to Flower any more
    calls: list[str] = []

    def call(name: str, arguments: list[str], home: Path) -> str:
        calls.append(arguments[1])
        return '{"node-id": 3}'

    monkeypatch.setattr(flower_cli, "call", call)
    hub_sites.sync_keys(hub)
    assert calls == ["register"]
    assert hub.node_names() == {3: "north"}


def report_key_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Flower's program report that it knows every key."""
    reply = {"success": False, "error-message": "Using SuperLink: hub\n[code: 313] Public key already in use."}
    monkeypatch.setattr(flower_cli, "call", lambda *_: json.dumps(reply))


def test_a_registration_that_was_not_stored_is_found_again(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub was killed after Flower had registered the key, before it could store that."""
    report_key_in_use(monkeypatch)
    monkeypatch.setattr(flower_database, "find_node", lambda database, key: {"north": 7}[key.stem])
    hub_sites.add_site(hub, "north", public_key("north", tmp_path))
    hub_sites.sync_keys(hub)
    assert hub.node_names() == {7: "north"}


def test_a_key_that_was_removed_before_is_refused(
    hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_key_in_use(monkeypatch)
    monkeypatch.setattr(flower_database, "find_node", lambda *_: None)
    hub_sites.add_site(hub, "north", public_key("north", tmp_path))
    with refused("hub.key-used-before"):
        hub_sites.sync_keys(hub)


def test_an_unknown_run_is_refused(hub: HubDirectory) -> None:
    with refused("hub.unknown-run"):
        hub_admin.find_run(hub, "nothing")


def test_a_run_that_can_be_resumed_names_the_command(
    hub: HubDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder named `resume` does not make an error resumable; only the error itself does."""
    monkeypatch.chdir(hub.path)
    directory = RunDirectory(hub.runs_folder / "resume")
    directory.path.mkdir(parents=True)
    for resumable in (False, True):
        directory.write_stop_reason(TacitError("it rains", "wait", code="weather.rain", resumable=resumable))
        with refused("weather.rain") as caught:
            hub_admin._raise_if_unfinished(hub, directory, None)  # type: ignore[arg-type]  # not reached
        expected = "wait, then continue with `tacit hub resume resume`" if resumable else "wait"
        assert caught.error.remedy == expected


@pytest.mark.parametrize(
    "file, text",
    [
        ("sites.json", ""),
        ("sites.json", '{"run": 1}'),
        ("config.toml", CONFIG.replace("3", "'x'")),
        ("config.toml", "rounds = "),
        ("checkpoint/latest.json", ""),
    ],
)
def test_a_broken_run_does_not_hide_the_others(
    file: str, text: str, hub: HubDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "bad"):
        (hub.runs_folder / name / "checkpoint").mkdir(parents=True)
        (hub.runs_folder / name / "config.toml").write_text(CONFIG)
    (hub.runs_folder / "bad" / file).write_text(text)
    statuses = {each.name: each for each in hub_admin.list_runs(hub)}
    assert statuses["good"] == RunStatus("good", 0, 3, running=False, sites=[])
    assert statuses["bad"].state == "broken"
    monkeypatch.setattr(HubDirectory, "is_running", lambda _: False)
    shown = CliRunner().invoke(app, ["hub", "status", "--hub", str(hub.path)])
    assert shown.exit_code == 0
    assert re.search(r"good +0/3 +stopped", shown.stdout)
    assert re.search(r"bad +broken", shown.stdout)
    assert statuses["bad"].problem in shown.stdout


def test_status_shows_the_current_round_of_a_run(hub: HubDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(hub.runs_folder / "trial")
    directory.path.mkdir(parents=True)
    directory.config_file.write_text(CONFIG)
    directory.write_sites({"run": "1", "names": ["bergen", "oslo", "turku"]})
    directory.write_current_round(RoundProgress(1, (0, 1, 2), {1}, {0}, {2: "is not connected"}))
    monkeypatch.setattr(HubDirectory, "is_running", lambda _: False)
    status = ["hub", "status", "--hub", str(hub.path)]
    assert "answered" not in CliRunner().invoke(app, status).stdout  # nobody runs it
    with directory.lock():
        shown = CliRunner().invoke(app, status).stdout
        assert "trial: round 2 of 3: 1 of 3 sites answered, waiting for oslo; without turku (is not connected)" in shown
        directory.write_current_round(RoundProgress(2, (0, 1, 2), set(), {0, 1, 2}, {}))
        assert CliRunner().invoke(app, status).stdout.endswith("trial: round 3 of 3: 3 of 3 sites answered\n")


def test_status_imports_neither_torch_nor_flower(hub: HubDirectory) -> None:
    """Both take seconds."""
    script = f"""
import sys
from typer.testing import CliRunner
from tacit.cli.app import app
shown = CliRunner().invoke(app, ["hub", "status", "--hub", {str(hub.path)!r}])
assert shown.exit_code == 0, shown.output
print(sorted({{"torch", "flwr"}} & set(sys.modules)))
"""
    words = [sys.executable, "-c", script]
    assert subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout == "[]\n"


def test_ctrl_c_names_the_command_that_continues(hub: HubDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    (hub.runs_folder / "trial").mkdir(parents=True)
    (hub.runs_folder / "trial" / "config.toml").write_text(CONFIG)
    monkeypatch.chdir(hub.path)
    monkeypatch.setattr(hub_admin, "run_to_end", interrupt)
    shown = CliRunner().invoke(app, ["hub", "resume", "trial"])
    assert shown.exit_code == 130
    assert shown.stderr.startswith("stopped after round 0 of 3; continue with: tacit hub resume trial")


def test_a_finished_run_is_not_resumed(hub: HubDirectory) -> None:
    checkpoint = hub.runs_folder / "trial" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "config.toml").write_text(CONFIG)
    (checkpoint / "latest.json").write_text('{"round": 3}')
    shown = CliRunner().invoke(app, ["hub", "resume", "trial", "--hub", str(hub.path)])
    assert isinstance(shown.exception, TacitError)
    assert shown.exception.code == "run.finished"


def test_the_end_of_a_runs_process_is_noticed_by_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_admin, "END_SECONDS", -1.0)
    directory = RunDirectory(tmp_path)
    held: list[bool] = []
    monkeypatch.setattr(RunDirectory, "is_running", lambda self: held.pop(0))
    ended = hub_admin._EndOfRun(directory)
    held += [False, False, True, True, False]
    assert [ended() for _ in range(5)] == [False, False, False, False, True]  # it has to begin before it can end


@pytest.mark.parametrize("running, code", [(True, "hub.run-ended"), (False, "hub.ended")])
def test_a_run_that_ended_early_says_whether_the_hub_or_its_process_is_gone(
    running: bool, code: str, hub: HubDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubDirectory, "is_running", lambda self: running)
    monkeypatch.setattr(hub_admin, "run_status", lambda folder: RunStatus("r", 2, 5, running=False, sites=[]))
    program: Any = SimpleNamespace(log=tmp_path / "flower.log")
    with refused(code) as caught:
        hub_admin._raise_if_unfinished(hub, RunDirectory(tmp_path), program)
    assert "after round 2 of 5" in caught.error.problem
    assert caught.error.resumable
