"""Attacks on a real hub and a real site on loopback, by a stranger who has nothing but the public certificate.

All tests share one deployment with TLS and keys. The attacks that end it come last.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import flower_cli, flower_database
from tacit.deploy.hub_directory import HubDirectory
from tests.deploy.machines import Command, Machines, free_port, machines
from tests.deploy.test_gateway import flower_routes, request, status
from tests.engines.farm import write_images

pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries below Flower
]
NOBODY = 65534
SERVER = """\
from pathlib import Path
Path({mark!r}).joinpath("server-ran").touch()
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    for reply in grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()]):
        Path({mark!r}).joinpath("reply").write_text(reply.error.reason if reply.has_error() else "no error")
"""
CLIENT = """\
from pathlib import Path
Path({mark!r}).joinpath("client-ran").touch()
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)
"""


@dataclass
class Target:
    """A hub with one site, both running, and the folder in which a stranger's code leaves its marks."""

    machines: Machines
    hub: HubDirectory
    running: Command
    site: Command
    site_port: int
    marks: Path

    @property
    def folder(self) -> Path:
        return self.machines.folder

    def flwr(self, *words: str, connection: str) -> str:
        """Run Flower's own program as a stranger, who has the public certificate."""
        home = self.folder / "stranger"
        addresses = {"gateway": self.hub.address, "superlink": self.hub.superlink_address}
        entry = {"address": addresses[connection], "root-certificates": str(self.hub.authority_file)}
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "it", "it": entry}}))
        env = {**flower_cli.environment(home), "COLUMNS": "200"}
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False, cwd=home)
        assert "Successfully" not in ended.stdout
        return ended.stdout + ended.stderr

    def stranger_app(self) -> Path:
        folder = self.folder / "strange"
        project = {
            "project": {"name": "strange", "version": "1.0.0", "description": "Strange", "license": "Apache-2.0"},
            "tool": {
                "flwr": {
                    "app": {
                        "publisher": "stranger",
                        "components": {"serverapp": "strange.server:app", "clientapp": "strange.client:app"},
                        "config": {},
                    }
                }
            },
        }
        (folder / "strange").mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
        (folder / "strange" / "__init__.py").touch()
        for name, text in {"server": SERVER, "client": CLIENT}.items():
            (folder / "strange" / f"{name}.py").write_text(text.format(mark=str(self.marks)))
        return folder

    def config(self, **changes: Any) -> Path:
        """A run of two rounds, with some settings changed."""
        data = {"name": str(self.folder / "data.npz"), "labels": "client", "per_class": 4, "clients": 1}
        tree: dict[str, Any] = {"rounds": 2, "method": {"name": "fedavg"}, "data": data}
        path = self.folder / "trial.toml"
        path.write_text(tomli_w.dumps(tree | {"train": {"steps": 1, "batch": 6}} | changes))
        return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacked")
    write_images(folder / "data.npz")
    (folder / "marks").mkdir()
    site_port = free_port()
    with machines(folder) as made:
        made.call("hub", "init", "hub", "--port", str(free_port()))
        made.call("site", "init", "north", "--name", "north", "--port", str(site_port))
        shutil.copy(folder / "hub" / "ca.crt", folder / "north")
        with (folder / "north" / "site.toml").open("a") as settings:
            settings.write(tomli_w.dumps({"allow_data": [str(folder / "data.npz")]}))
        made.call("hub", "add", "north", "north/north.key.pub", "--hub", "hub")
        running = made.start("hub", "start", "--hub", "hub")
        running.wait_for("The hub listens at")
        hub = HubDirectory.open(folder / "hub")
        site = made.start("site", "join", hub.address, "--site", "north", "--any-run")
        site.wait_for("joined as north")
        yield Target(made, hub, running, site, site_port, folder / "marks")


def test_from_outside_every_route_but_the_fleets_is_refused(target: Target) -> None:
    context = ssl.create_default_context(cafile=str(target.hub.authority_file))
    for method, path in flower_routes():
        raw = socket.create_connection(("127.0.0.1", target.hub.settings.port), timeout=30)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as connection:
            connection.sendall(request(path, b"", method, "connection: close"))
            assert status(connection.recv(4096)) == (200 if path == "/health" else 403), (method, path)


def test_the_superlink_and_the_site_listen_on_loopback_only(target: Target) -> None:
    processes = target.machines.processes()
    listening = {address for pid in processes for address in listening_addresses(pid)}
    assert listening == {"0100007F"}  # 127.0.0.1, as the hub of this test has it in its settings too


def listening_addresses(pid: int) -> Iterator[str]:
    """The addresses on which a process listens, in the system's hexadecimal form."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"^socket:\[(\d+)\]$", str(handle.readlink())))
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].partition(":")[0]


ORDERS = {  # from outside, and as another user of the hub's machine
    "gateway": ["run {app} it", "ls it", "log 1 it --show", "stop 1 it"],
    "superlink": ["run {app} it", "supernode register {key} it", "supernode unregister {node} it"],
}


@pytest.mark.parametrize("connection", ORDERS)
def test_requests_without_a_sites_key_are_refused(target: Target, connection: str) -> None:
    (node,) = target.hub.node_names()
    app, key = target.stranger_app(), target.folder / "north" / "north.key.pub"
    for order in ORDERS[connection]:
        words = [word.format(app=app, key=key, node=node) for word in order.split()]
        assert "403" in target.flwr(*words, connection=connection), order
    assert list(target.marks.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_task(target: Target) -> None:
    """From the loopback port of the site, and from that of the hub, over all their runtime routes."""
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

    script = f"""
import json, os, ssl, sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen
"loaded before the user changes".encode("idna")
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
seen = []
for base in {[f"http://127.0.0.1:{target.site_port}", f"https://{target.hub.superlink_address}"]!r}:
    for path in json.loads(sys.argv[1]):
        headers = {{"content-type": {PROTOBUF_MEDIA_TYPE!r}}}
        try:
            seen.append(urlopen(Request(base + path, b"", headers), context=context).status)
        except HTTPError as error:
            seen.append(error.code)
for secret in {[str(target.hub.operator_secret), str(target.folder / "north" / "flower" / "executor.secret")]!r}:
    try:
        open(secret)
    except OSError:
        seen.append("no secret")
print(json.dumps(seen))
"""
    paths = sorted(path for method, path in flower_routes() if path.startswith("/v1/runtime/") and method == "POST")
    assert "/v1/runtime/acquire-task" in paths
    words = [sys.executable, "-c", script, json.dumps(paths)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env={})
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen[-2:] == ["no secret"] * 2
    assert set(seen[:-2]) <= {401, 404}, seen  # the site has not all routes of the hub
    assert seen[paths.index("/v1/runtime/acquire-task")] == 401


def test_a_site_does_not_run_a_program_that_its_own_hub_sends(target: Target) -> None:
    """The operator's own `flwr` starts the run, so the hub does run its part."""
    flwr = flower_cli.find_program("flwr", target.hub.flower_home)
    assert Path(flwr).is_relative_to(target.hub.flower_home)
    words = [flwr, "run", str(target.stranger_app()), "hub", "--stream"]
    env = flower_cli.environment(target.hub.flower_home)
    subprocess.run(words, env=env, capture_output=True, timeout=300, check=True)
    assert {path.name for path in target.marks.iterdir()} == {"server-ran", "reply"}
    assert "site.foreign-app" in (target.marks / "reply").read_text()
    target.site.wait_for("not taking part: the hub sent a program")
    for path in target.marks.iterdir():
        path.unlink()


EVIL = """\
import math
from pathlib import Path

from torch import nn

program = Path("/proc/self/cmdline").read_text()  # a forked process has that of the process above it
Path({mark!r}, "site" if "fork_server" in program or "client_program" in program else "hub").touch()


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""


def test_a_site_imports_no_code_that_a_config_names(target: Target) -> None:
    """The module is in the path of hub and site: only the site's settings keep it out."""
    (target.folder / "evilmod.py").write_text(EVIL.format(mark=str(target.marks)))
    config = target.config(net={"name": "evilmod:net"})
    run = target.machines.start("hub", "run", str(config), "--hub", "hub")
    assert "user.not-allowed" in run.wait_for_exit(code=2)
    target.site.wait_for("not taking part: the network 'evilmod:net' is code outside Tacit")
    assert [path.name for path in target.marks.iterdir()] == ["hub"]
    for path in target.marks.iterdir():
        path.unlink()


def test_the_operator_stops_a_run(target: Target) -> None:
    run = target.machines.start("hub", "run", str(target.config(rounds=500)), "--hub", "hub")
    run.wait_for(" 1/500")
    lines = target.machines.processes().values()
    assert any("--token-file" in line for line in lines)
    assert not any("--token " in line for line in lines)  # every user of this machine can read it there
    tokens = target.hub.flower_home / "tokens"
    assert {path.stat().st_mode & 0o777 for path in (tokens, *tokens.iterdir())} == {0o700, 0o600}
    name = sorted((target.hub.runs_folder).iterdir(), key=lambda path: path.stat().st_mtime)[-1].name
    assert f"tacit hub resume {name}" in target.machines.call("hub", "stop", name, "--hub", "hub")
    assert "was stopped with `tacit hub stop`" in run.wait_for_exit(code=2)
    assert "is not running" in target.machines.call("hub", "stop", name, "--hub", "hub", code=2)


def test_a_site_that_was_unregistered_behind_our_back_can_be_added_and_removed(target: Target) -> None:
    made, hub = target.machines, target.hub
    (node,) = hub.node_names()
    flower_cli.unregister_node(node, "hub", hub.flower_home)
    made.call("hub", "add", "north", "north/north.key.pub", "--hub", "hub")
    (again,) = hub.node_names()
    assert again != node
    target.site.signal()
    target.site.process.wait(60)
    target.site = made.start("site", "join", hub.address, "--site", "north", "--any-run")
    target.site.wait_for("joined as north")
    made.call("hub", "run", str(target.config(rounds=1)), "--hub", "hub")
    flower_cli.unregister_node(again, "hub", hub.flower_home)
    made.call("hub", "remove", "north", "--hub", "hub")
    assert hub.node_names() == {}
    made.call("hub", "add", "north", "north/north.key.pub", "--hub", "hub")
    assert [node.removed for node in flower_database.nodes(hub.database)].count(False) == 1


def test_a_hub_runs_once_and_ends_as_a_whole(target: Target) -> None:
    assert "running already" in target.machines.call("hub", "start", "--hub", "hub", code=2)
    found = target.machines.processes("tacit.deploy.gateway")
    (gateway,) = (pid for pid, line in found.items() if "supervisor" not in line)
    os.kill(gateway, signal.SIGKILL)
    assert "the hub's gateway ended" in target.running.wait_for_exit(code=2)
    for name in ("flower-superlink", str(target.hub.flower_home / "tokens")):
        assert target.machines.wait_until_gone(name), name
