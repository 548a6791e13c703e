"""A federation of real processes on loopback, with TLS and keys: the steps of docs/deployment.md, and failures.

All tests of this file share one hub and three sites, in their order; the last ones kill parts of it.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.torch import load_file

from tacit.deploy.check import check
from tacit.deploy.consent import record_check
from tacit.deploy.federation_spec import FederationSpec
from tacit.deploy.hub_directory import HubDirectory
from tacit.engines import failures
from tacit.engines.job import ClientNews, ClientTask
from tacit.engines.memory import VERSION_BYTES
from tacit.params import equal
from tacit.runs import config as configs
from tacit.runs.experiment import Experiment
from tests.deploy import places
from tests.deploy.machines import ROOT, TIMEOUT, Command, Machines, descendants, free_port, machines
from tests.engines.farm import write_images

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import hub as hubs
from tacit.deploy.site import introduce, open_workspace
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, client_app
from tests.engines.attacks import ATTACKS, IN_TURN
from tests.engines.grid import DirectGrid

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
    """The running hub and sites."""

    machines: Machines
    port: int
    hub: Command
    joined: dict[str, Command]

    @property
    def folder(self) -> Path:
        return self.machines.folder

    def words(self, key: str, name: str = "north") -> list[str]:
        """A command of the page, adapted to this machine and one of the sites."""
        return words(key, self.port, name)

    def plan(self, tree: dict[str, Any]) -> None:
        """Write the next run's config, and let every site agree to it."""
        plan(self.machines, self.port, tree)

    def join_again(self, name: str, source: Path = ROOT / "src") -> None:
        """Stop a site and start it again, with the package in `source`."""
        self.joined[name].signal()
        self.joined[name].wait_for_exit(code=130)
        self.joined[name] = self.machines.start(*self.words("site join", name), source=source)
        self.joined[name].wait_for(f"joined as {name}")


def words(key: str, port: int, name: str = "north") -> list[str]:
    here = {"192.0.2.7": "127.0.0.1", "192.0.2.7:8443": f"127.0.0.1:{port}"}
    adapted = [here.get(word, word).replace("north", name) for word in commands()[key]]
    return [*adapted, "--port", str(port)] if key == "hub init" else adapted


def new_site(made: Machines, port: int, name: str) -> None:
    made.call(*words("site init", port, name))
    settings = made.folder / name / "site.toml"
    given = {"port": free_port(), "allow_data": [str(made.folder / "data.npz")]}
    text = settings.read_text()
    for key, value in given.items():
        text = re.sub(rf"(?m)^# {key} = .*", tomli_w.dumps({key: value}).strip(), text)
    settings.write_text(text)
    shutil.copy(made.folder / "hub" / "ca.crt", made.folder / name)


def plan(made: Machines, port: int, tree: dict[str, Any]) -> None:
    (made.folder / "trial.toml").write_text(tomli_w.dumps(tree))
    made.call(*words("hub describe", port))
    for name in NAMES:
        shutil.copy(made.folder / "hub" / "federation.toml", made.folder / name)
        report = check(made.folder / name / "site.toml")  # as `tacit site check`, without a process for each
        record_check(made.folder / name / "site.toml", report.agreement)


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
        plan(made, port, settings(folder, {"name": "fedavg"}, **METHODS["fedavg"]))
        assert "The check has passed" in made.call(*words("site check", port))
        hub.wait_for("The hub listens at")
        joined = {name: made.start(*words("site join", port, name)) for name in NAMES}
        for name, command in joined.items():
            command.wait_for(f"joined as {name}")
        running = Federation(made, port, hub, joined)
        yield running
        for command in (*running.joined.values(), running.hub):  # a test may have restarted it
            command.signal(signal.SIGTERM)
        assert made.wait_until_gone(), made.processes()


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
    """Seconds of the slowest round of an earlier test, since this machine may be busy."""
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
def test_a_run_over_sites_has_the_bits_of_the_local_engine(federation: Federation, method: str) -> None:
    folder = federation.folder
    tree = settings(folder, {"name": method}, **METHODS[method])
    federation.plan(tree)
    output = federation.machines.call(*federation.words("hub run"))
    assert "3 sites have joined: east, north, south" in output
    assert "round 2/2" in output
    assert_same_bits(folder / "hub" / "runs" / f"{method}-trial", tree, folder / f"local-{method}")


def test_status_shows_connected_sites_and_finished_runs(federation: Federation) -> None:
    output = federation.machines.call(*federation.words("hub status"))
    for name in NAMES:
        assert re.search(rf"{name} +connected", output)
    assert re.search(r"fedavg-trial +2/2 +finished +east, north, south", output)


def test_sites_that_the_hub_refuses_print_why(federation: Federation) -> None:
    made = federation.machines
    for name in ("stranger", "keyless", "misled"):
        new_site(made, federation.port, name)
    keyless = made.folder / "keyless" / "site.toml"
    keyless.write_text(re.sub(r"^key = .*", "", keyless.read_text(), flags=re.MULTILINE))
    made.call("hub", "init", "other", "--port", "1234")
    shutil.copy(made.folder / "other" / "ca.crt", made.folder / "misled")
    reasons = {
        "stranger": "the hub does not know this site's key",
        "keyless": "the hub requires a key",
        "misled": "ca.crt does not belong to the hub",
    }
    started = {name: made.start(*federation.words("site join", name), "--any-run") for name in reasons}
    for name, reason in reasons.items():
        assert reason in started[name].wait_for_exit(code=2)


def test_a_site_is_removed_from_a_finished_run(federation: Federation) -> None:
    folder = federation.folder
    federation.plan(settings(folder, {"name": "fedavg"}, **METHODS["fedavg"]))
    federation.machines.call("hub", "resume", "fedavg-trial", "--from", "0", "--without", "east", "--hub", "hub")
    run = folder / "hub" / "runs" / "fedavg-trial"
    assert json.loads((run / "run.json").read_text())["left_out"] == [{"client": 0, "name": "east", "from": 0}]
    tree = settings(folder, {"name": "fedavg"}, **METHODS["fedavg"])
    alone = Experiment.create(configs.make({**tree, "engine": {"workers": 0}}), folder / "local-without-east")
    alone.directory.leave_out({0: "east"}, 0)
    list(alone.rounds())
    assert equal(load_file(run / "model.safetensors"), load_file(alone.folder / "model.safetensors"))


EVIL = """

_honest_work = _work


def _work(content, context, open_workspace, guards):
    from tests.engines.attacks import IN_TURN

    reply, round = _honest_work(content, context, open_workspace, guards), content["task"]["round"]
    if round < len(IN_TURN):
        IN_TURN[round](reply)
    return reply
"""
REASONS = {  # how the reason of each failure begins
    "client.too-far": failures.too_far("").reason,
    "client.bad-upload": failures.bad_upload("").reason,
    "client.not-finite": failures.not_finite().reason,
    "client.unreadable": "sent a message that cannot be read",
    "client.too-much-memory": "sent 200,000 bytes of memory",
    "client.failed": "[2J",  # the site's own words, without its escape codes
}


@contextmanager
def own_data(folder: Path) -> Iterator[None]:
    """Every site has its own samples while the block runs."""
    files = {name: (folder / name / "site.toml").read_text() for name in NAMES}
    for number, (name, before) in enumerate(files.items()):
        write_images(folder / name / "own.npz", train=12 + 6 * number, test=3)
        (folder / name / "site.toml").write_text(re.sub(r"(?m)^# data = .*", 'data = "own.npz"', before))
    yield
    for name, before in files.items():
        (folder / name / "site.toml").write_text(before)


class WithoutEast(FlowerTransport):
    """The replies of client 0 are lost, but for those of the round in which an attack leaves the upload as it is."""

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for item in super().run(round, tasks):
            lost = isinstance(item, tuple) and item[0] == 0 and round != len(ATTACKS)
            yield (0, failures.upload_lost()) if lost else item


def in_process_without_east(federation: Federation) -> Path:
    """The same run with honest sites in this process; its folder."""
    folder = federation.folder
    config = hubs.load_config(HubDirectory.open(folder / "hub"), folder / "trial.toml", {})
    experiment = Experiment.create(config, folder / "in-process")
    spec = FederationSpec.of(experiment.job.federation)
    about = hubs.run_info(config, spec, "in-process", experiment.split)
    grid = DirectGrid(
        client_app(open_workspace, introduce), [places.trial(folder / name / "site.toml") for name in NAMES]
    )
    nodes = ClientNodes(GridClient(grid), about, {name: number for number, name in enumerate(sorted(NAMES))})
    list(experiment.rounds(WithoutEast(experiment.job, nodes, VERSION_BYTES)))
    return experiment.folder


def test_every_attack_of_a_site_with_a_changed_package_harms_only_itself(federation: Federation) -> None:
    """East attacks in every round in another way; each one is named with its reason, and costs the others nothing."""
    made, folder = federation.machines, federation.folder
    shutil.copytree(ROOT / "src", folder / "evil", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "evil/tacit/engines/flower/client_app.py").open("a") as file:
        file.write(EVIL)
    rounds = len(IN_TURN) + 1
    with own_data(folder):
        tree = settings(folder, {"name": "fedavg"}, "client", rounds=rounds)
        tree["data"] = {"name": str(folder / "data.npz"), "labels": "client", "partition": "sites", "clients": 3}
        federation.plan(tree)
        federation.join_again("east", source=folder / "evil")
        output = made.call(*federation.words("hub run"))
        expected = in_process_without_east(federation)
    federation.plan(settings(folder, {"name": "fedavg"}, **METHODS["fedavg"]))  # of the data that is back in place
    federation.join_again("east")

    run = folder / "hub" / "runs" / "fedavg-trial-2"
    lines = (run / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == rounds
    for record, (name, (_, code)) in zip(records, ATTACKS.items(), strict=False):
        assert list(record["skipped"]) == ["0"], name
        assert record["skipped"]["0"].startswith(REASONS[code]), name
        assert record["clients"] == 2, name
    assert [list(record["skipped"]) for record in records[len(ATTACKS) :]] == [[], ["0"]]  # a false memory
    assert equal(load_file(run / "model.safetensors"), load_file(expected / "model.safetensors"))

    assert "\x1b" not in output
    assert output.count("without east (") == rounds - 1
    assert sum(line.startswith(f"round {rounds}/{rounds}") for line in output.splitlines()) == 1
    for path in (run / "progress.log", run / "errors.log"):
        assert "\x1b" not in path.read_text()
    assert all(len(line) < 10_000 for line in lines)
    made.call("report", str(run), "--out", str(folder / "report.html"))


def test_a_killed_hub_resumes_with_the_same_bits(federation: Federation) -> None:
    made, folder = federation.machines, federation.folder
    tree = settings(folder, {"name": "scaffold"}, "client", rounds=3)
    federation.plan(tree)
    run = made.start(*federation.words("hub run"))
    run.wait_for("round 1/3")
    federation.hub.signal(signal.SIGKILL)
    assert made.wait_until_gone("flower-superlink")
    assert "continue with `tacit hub resume scaffold-trial --hub hub`" in run.wait_for_exit(code=2)
    federation.hub = made.start(*federation.words("hub start"))
    federation.hub.wait_for("The hub listens at")
    assert "round 3/3" in made.call("hub", "resume", "scaffold-trial", "--hub", "hub")
    assert_same_bits(folder / "hub" / "runs" / "scaffold-trial", tree, folder / "local-scaffold")


def client_process(joined: Command, known: set[int]) -> int:
    """The process of a site that works on a message, as soon as there is one."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        if len(new := sorted(set(forked(joined)) - known)) > 1:  # its guard and the process itself
            return new[-1]
        time.sleep(0.01)
    raise AssertionError(joined.output())


def forked(joined: Command) -> list[int]:
    """The fork server of a site, and what it has forked."""
    found = []
    for pid in descendants(joined.process.pid):
        with suppress(OSError):
            if b"tacit.deploy.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.parametrize("fault", ["client killed", "run's process killed", "run stopped"])
def test_the_next_round_has_all_sites_and_no_process_is_left(federation: Federation, fault: str) -> None:
    """Faults while the sites fetch their orders or work on them; before, the site was silent for minutes."""
    made, folder, joined = federation.machines, federation.folder, federation.joined
    federation.plan(settings(folder, {"name": "fedprox"}, "client", rounds=40))
    known = {name: set(forked(command)) for name, command in joined.items()}
    run = made.start(*federation.words("hub run"))
    seen = len(run.wait_for("3 replied"))
    client = client_process(joined["north"], known["north"])
    if fault == "client killed":
        os.kill(client, signal.SIGKILL)
        run.wait_for("without north (", after=seen)
        run.wait_for("3 replied", after=seen)
        run.signal(signal.SIGINT)
        run.wait_for_exit(code=130)
    else:
        for pid in made.processes("flwr-serverapp") if fault == "run's process killed" else ():
            os.kill(pid, signal.SIGKILL)
        if fault == "run stopped":
            run.signal(signal.SIGTERM)
        output = run.wait_for_exit(code=130 if fault == "run stopped" else 2)
        (name,) = re.findall(r"resume (fedprox-trial\S*) --hub", output)
        resumed = made.start("hub", "resume", name, "--hub", "hub")
        resumed.wait_for("3 replied")
        assert "without" not in resumed.output()
        resumed.signal(signal.SIGINT)
        resumed.wait_for_exit(code=130)
    until = time.monotonic() + TIMEOUT
    while any(set(forked(command)) - known[name] for name, command in joined.items()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for name, command in joined.items() for pid in set(forked(command)) - known[name]]


def test_the_run_continues_without_late_killed_and_hanging_sites(federation: Federation) -> None:
    made, folder, joined = federation.machines, federation.folder, federation.joined
    joined["east"].signal()
    joined["east"].wait_for_exit(code=130)
    hub_settings = folder / "hub" / "hub.toml"
    before = hub_settings.read_text()
    hub_settings.write_text(re.sub(r"# join_seconds = .*", "join_seconds = 5.0", before))
    tree = settings(folder, {"name": "fedavg"}, "client", rounds=500, engine={"deadline": 3 * slowest_round(folder)})
    federation.plan(tree)
    run = made.start(*federation.words("hub run"))
    run.wait_for("2 of 3 sites have joined: east missing")
    run.wait_for("without east (")

    joined["east"] = made.start(*federation.words("site join", "east"))
    seen = len(run.wait_for("3 replied"))
    joined["south"].signal_all(signal.SIGKILL)
    joined["north"].signal_all(signal.SIGSTOP)
    run.wait_for("without south (", after=seen)
    joined["south"] = made.start(*federation.words("site join", "south"))
    run.wait_for("without north (", after=seen)  # after the deadline, or after a missed heartbeat
    joined["north"].signal_all(signal.SIGCONT)
    run.wait_for("3 replied", after=len(run.output()))
    joined["south"].wait_for("joined as south")
    run.signal(signal.SIGINT)
    assert "continue with: tacit hub resume fedavg-trial-3 --hub hub" in run.wait_for_exit(code=130)
    hub_settings.write_text(before)
