"""What a hub cannot get out of a real site: samples that its config asks for, and names in errors. Real processes."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import journal
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.journal import Entry
from tacit.runs import config as configs
from tests.deploy import places
from tests.deploy.machines import Command, Machines, free_port, machines

pytestmark = [pytest.mark.flower, pytest.mark.slow]

SECRET = "maria-muster"  # in the path of the site's data
CPU_SECONDS = 2.0  # of `tacit hub status`; wall time depends on what else the machine does


@dataclass
class Federation:
    """A running hub, and a site with its own data that has agreed to FedAvg."""

    machines: Machines
    hub: HubDirectory
    site: Command
    data: Path

    def run(self, code: int = 2, **options: Any) -> str:
        """What the hub prints about a run of its config with other options."""
        path = self.machines.folder / "trial.toml"
        path.write_text(configs.dumps(planned(self.machines.folder, **options)))
        return self.machines.call("hub", "run", str(path), "--hub", "hub", code=code)

    def journal(self) -> tuple[Entry, ...]:
        return journal.read(self.machines.folder / "north").entries


def planned(folder: Path, **options: Any) -> configs.Config:
    given = {"clients": 1, "labels": "client", "rounds": 1, "method": "fedavg+supervised"}
    return places.hub_config(folder, **given | options)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("leaks")
    config = planned(folder)
    x, y = places.arrays(12)
    with machines(folder) as made:
        made.call("hub", "init", "hub", "--port", str(free_port()))
        made.call("site", "init", "north", "--name", "north", "--port", str(free_port()))
        shutil.copy(folder / "hub" / "ca.crt", folder / "north")
        path = folder / "north" / "site.toml"
        own = places.site_with_arrays(folder / "spare", SECRET, x=x, y=y).parent / "own.npz"
        with path.open("a") as settings:
            settings.write(tomli_w.dumps({"data": str(own)}))
        places.agree(path, config)
        made.call("hub", "add", "north", "north/north.key.pub", "--hub", "hub")
        hub = HubDirectory.open(folder / "hub")
        with hub.settings_file.open("a") as settings:
            settings.write(tomli_w.dumps({"join_seconds": 5.0}))
        running = made.start("hub", "start", "--hub", "hub")
        running.wait_for("The hub listens at")
        site = made.start("site", "join", hub.address, "--site", "north")
        site.wait_for("joined as north")
        yield Federation(made, HubDirectory.open(folder / "hub"), site, own)


def test_a_hub_that_asks_for_means_of_samples_gets_nothing(federation: Federation) -> None:
    """H1: the site has agreed to FedAvg, and its hub runs FedMix."""
    said = federation.run(method="fedmix")
    assert "north" in said
    federation.site.wait_for("not taking part: ")
    entries = federation.journal()
    assert entries
    assert {entry.kind for entry in entries} == {journal.REFUSAL}
    assert {entry.fields for entry in entries} == {("name",)}


def test_a_site_that_cannot_read_its_data_tells_the_hub_no_path(federation: Federation) -> None:
    """H4: the path, which may be the name of a patient, and the traceback stay at the site."""
    federation.data.write_bytes(b"no archive")
    federation.run()
    assert SECRET in federation.site.wait_for(str(federation.data))  # the site's own operator sees it
    logs = [path for path in federation.machines.folder.glob("*.log") if path != federation.site.log]
    stored = [path for path in (federation.machines.folder / "hub").rglob("*") if path.is_file()]
    assert any(b"the site has a problem with its data" in path.read_bytes() for path in stored)
    assert [path for path in [*logs, *stored] if SECRET.encode() in path.read_bytes()] == []
    assert all(SECRET not in entry.reason and "Traceback" not in entry.reason for entry in federation.journal())
    assert {entry.kind for entry in federation.journal()} == {journal.REFUSAL}


def test_status_of_a_running_hub_is_cheap(federation: Federation) -> None:
    command = federation.machines.start("hub", "status", "--hub", "hub")
    _, ended, used = os.wait4(command.process.pid, 0)
    command.process.returncode = os.waitstatus_to_exitcode(ended)
    assert command.process.returncode == 0, command.output()
    assert "north" in command.output()
    assert used.ru_utime + used.ru_stime < CPU_SECONDS
