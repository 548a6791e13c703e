"""A federation of real processes on loopback, with TLS and keys: the walk-through of the page, and what goes wrong.

One hub and three sites serve all tests of this file, in their order; the last ones kill parts of it.
"""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.torch import load_file

from tacit import config as configs
from tacit.experiment import Experiment
from tests.deploy.machines import Command, Machines, free_port, machines
from tests.engines.farm import write_images

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
NAMES = ["north", "south", "east"]
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"labels": "client"},
    "fedmatch": {"labels": "client"},
    "fedseal": {"labels": "server", "validation": 12},
}


def commands() -> dict[str, list[str]]:
    """The commands of the page by their first two words."""
    blocks = re.findall(r"^```sh\n# at [^\n]*\n(tacit [^\n]*)\n```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {" ".join(line.split()[1:3]): line.split()[1:] for line in blocks}


@dataclass
class Federation:
    """What the walk-through leaves running."""

    machines: Machines
    port: int
    hub: Command
    joined: dict[str, Command]

    @property
    def folder(self) -> Path:
        return self.machines.folder

    def words(self, key: str, name: str = "north") -> list[str]:
        """A command of the page, for this machine and for one of the sites."""
        return words(key, self.port, name)


def words(key: str, port: int, name: str = "north") -> list[str]:
    here = {"192.0.2.7": "127.0.0.1", "192.0.2.7:8443": f"127.0.0.1:{port}"}
    said = [here.get(word, word).replace("north", name) for word in commands()[key]]
    return [*said, "--port", str(port)] if key == "hub init" else said


def new_site(made: Machines, port: int, name: str) -> None:
    made.call(*words("site init", port, name))
    settings = made.folder / name / "site.toml"
    settings.write_text(re.sub(r"# port = .*", f"port = {free_port()}", settings.read_text()))
    shutil.copy(made.folder / "hub" / "ca.crt", made.folder / name)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    write_images(folder / "data.npz")
    port = free_port()
    with machines(folder) as made:
        made.call(*words("hub init", port))
        for name in NAMES:
            new_site(made, port, name)
            shutil.copy(folder / name / f"{name}.key.pub", folder)
            made.call(*words("hub add", port, name))
        hub = made.start(*words("hub start", port))
        hub.says("The hub listens at")
        joined = {name: made.start(*words("site join", port, name)) for name in NAMES}
        for name, command in joined.items():
            command.says(f"joined as {name}")
        running = Federation(made, port, hub, joined)
        yield running
        for command in (*running.joined.values(), running.hub):  # a test may have started it anew
            command.signal(signal.SIGTERM)
        assert made.gone(), made.processes()


def settings(folder: Path, method: dict[str, Any], labels: str, validation: int = 0, **more: Any) -> dict[str, Any]:
    data = {"name": str(folder / "data.npz"), "labels": labels, "per_class": 4, "clients": 3, "validation": validation}
    return {
        "rounds": 2,
        "method": method,
        "data": data,
        "train": {"steps": 2, "batch": 6},
        "server": {"epochs": 1},
        **more,
    }


def slowest_round(folder: Path) -> float:
    """Seconds that a round of an earlier test took: this machine may be busy."""
    records = (folder / "hub" / "runs" / "fedavg-trial" / "rounds.jsonl").read_text().splitlines()
    return max(float(json.loads(record)["seconds"]) for record in records)


def locally(tree: dict[str, Any], folder: Path) -> Any:
    """The final model of the local engine."""
    experiment = Experiment.create(configs.make({**tree, "engine": {"workers": 0}}), folder)
    list(experiment.rounds())
    return load_file(folder / "model.safetensors")


def assert_same_bits(run: Path, tree: dict[str, Any], folder: Path) -> None:
    here, there = locally(tree, folder), load_file(run / "model.safetensors")
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert value.numpy().tobytes() == there[name].numpy().tobytes(), name


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_the_sites_has_the_bits_of_the_local_engine(federation: Federation, method: str) -> None:
    folder = federation.folder
    tree = settings(folder, {"name": method}, **METHODS[method])
    (folder / "trial.toml").write_text(tomli_w.dumps(tree))
    said = federation.machines.call(*federation.words("hub run"))
    assert "3 sites have joined: east, north, south" in said
    assert "round 2/2" in said
    assert_same_bits(folder / "hub" / "runs" / f"{method}-trial", tree, folder / f"local-{method}")


def test_status_says_who_is_there_and_how_far_runs_are(federation: Federation) -> None:
    said = federation.machines.call(*federation.words("hub status"))
    for name in NAMES:
        assert re.search(rf"{name} +connected", said)
    assert re.search(r"fedavg-trial +2/2 +finished +east, north, south", said)


def test_sites_that_are_not_let_in_say_why(federation: Federation) -> None:
    made = federation.machines
    for name in ("stranger", "keyless", "misled"):
        new_site(made, federation.port, name)
    keyless = made.folder / "keyless" / "site.toml"
    keyless.write_text(re.sub(r"^key = .*", "", keyless.read_text(), flags=re.MULTILINE))
    made.call("hub", "init", "other", "--port", "1234")
    shutil.copy(made.folder / "other" / "ca.crt", made.folder / "misled")
    reasons = {
        "stranger": "the hub does not know this site's key",
        "keyless": "the hub asks for a key",
        "misled": "is not the one that ca.crt is of",
    }
    started = {name: made.start(*federation.words("site join", name)) for name in reasons}
    for name, reason in reasons.items():
        assert reason in started[name].ends(code=2)


def test_a_hub_that_is_killed_goes_on_with_the_same_bits(federation: Federation) -> None:
    made, folder = federation.machines, federation.folder
    tree = settings(folder, {"name": "scaffold"}, "client", rounds=3)
    (folder / "trial.toml").write_text(tomli_w.dumps(tree))
    run = made.start(*federation.words("hub run"))
    run.says("round 1/3")
    federation.hub.signal(signal.SIGKILL)
    assert made.gone("flower-superlink")
    assert "go on with `tacit hub resume scaffold-trial --hub hub`" in run.ends(code=2)
    federation.hub = made.start(*federation.words("hub start"))
    federation.hub.says("The hub listens at")
    assert "round 3/3" in made.call("hub", "resume", "scaffold-trial", "--hub", "hub")
    assert_same_bits(folder / "hub" / "runs" / "scaffold-trial", tree, folder / "local-scaffold")


def test_sites_that_come_late_are_killed_or_hang_are_named_and_the_run_goes_on(federation: Federation) -> None:
    made, folder, joined = federation.machines, federation.folder, federation.joined
    joined["east"].signal()
    joined["east"].ends(code=130)
    impatient = folder / "hub" / "hub.toml"
    before = impatient.read_text()
    impatient.write_text(re.sub(r"# join_seconds = .*", "join_seconds = 5.0", before))
    tree = settings(folder, {"name": "fedavg"}, "client", rounds=500, engine={"deadline": 3 * slowest_round(folder)})
    (folder / "trial.toml").write_text(tomli_w.dumps(tree))
    run = made.start(*federation.words("hub run"))
    run.says("2 of 3 sites have joined: east missing")
    run.says("without east (")

    joined["east"] = made.start(*federation.words("site join", "east"))
    said = len(run.says("3 replied"))
    joined["south"].signal_all(signal.SIGKILL)
    joined["north"].signal_all(signal.SIGSTOP)
    joined["south"] = made.start(*federation.words("site join", "south"))  # it is refused at first, and tries again
    run.says("without south (", after=said)
    run.says("without north (", after=said)  # past the deadline, or past its heartbeat
    joined["north"].signal_all(signal.SIGCONT)
    run.says("3 replied", after=len(run.said()))
    joined["south"].says("joined as south")
    run.signal(signal.SIGINT)
    assert "go on with: tacit hub resume fedavg-trial-2 --hub hub" in run.ends(code=130)
    impatient.write_text(before)
