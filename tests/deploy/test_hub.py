"""A hub without its processes: certificates, keys, who is waited for, and mistakes in one sentence."""

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit import config as configs
from tacit.cli import app
from tacit.data import sources
from tacit.data.sources import Source
from tacit.deploy import apps, control, hub, join, programs, setup
from tacit.deploy.folder import HubFolder
from tacit.deploy.settings import Hub, Site
from tacit.deploy.site import introduce, open_desk
from tacit.engines.flower import Place, Post, Roster, client_app
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tests.deploy import places
from tests.engines.farm import eventually, processes, write_images
from tests.engines.grid import DirectGrid

pytestmark = pytest.mark.flower


@pytest.fixture
def folder(tmp_path: Path) -> HubFolder:
    return HubFolder.create(tmp_path / "hub", Hub())


def public_key(name: str, place: Path) -> Path:
    path = place / f"{name}.pub"
    path.write_bytes(setup.key_pair(name)[1])
    return path


def shake_hands(folder: HubFolder, authority: Path, host: str) -> None:
    """A TLS handshake with the hub's certificate, as a client that trusts an authority and expects a host."""
    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder.certificate, folder.key)

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ssl.create_default_context(cafile=str(authority)).wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


def test_the_certificate_is_good_for_the_host_and_for_this_machine(tmp_path: Path) -> None:
    made = HubFolder.create(tmp_path / "hub", Hub(host="hub.example.org"))
    for host in ("hub.example.org", "127.0.0.1", "localhost"):
        shake_hands(made, made.authority_file, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, made.authority_file, "elsewhere.example.org")


def test_another_hubs_authority_does_not_vouch_for_it(folder: HubFolder, tmp_path: Path) -> None:
    other = HubFolder.create(tmp_path / "other", Hub())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, other.authority_file, "127.0.0.1")


def test_the_key_is_for_its_owner_alone_and_never_overwritten(folder: HubFolder) -> None:
    before = folder.key.read_bytes()
    assert folder.key.stat().st_mode & 0o077 == 0
    folder.file.unlink()
    with pytest.raises(TacitError, match="is there already"):
        HubFolder.create(folder.folder, Hub())
    assert folder.key.read_bytes() == before
    assert not folder.file.exists()


def test_a_hub_that_is_not_there_or_has_lost_its_key_is_refused(folder: HubFolder, tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="there is no hub in .*tacit hub init"):
        HubFolder.open(tmp_path)
    folder.key.unlink()
    with pytest.raises(TacitError, match="server.key is missing"):
        HubFolder.open(folder.folder)


@pytest.mark.parametrize("listen", ["10.0.0.5", "::1", "other.example.org"])
def test_an_address_to_listen_at_that_the_certificate_does_not_know_is_refused(listen: str, folder: HubFolder) -> None:
    folder.file.write_text(tomli_w.dumps({"host": "hub.example.org", "listen": listen}))
    with pytest.raises(TacitError, match=rf"listen = '{listen}' is not in .*: leave listen out, or use '0.0.0.0'"):
        HubFolder.open(folder.folder)
    folder.file.write_text(tomli_w.dumps({"host": "hub.example.org", "listen": listen, "insecure": True}))
    assert listen in HubFolder.open(folder.folder).address


@pytest.mark.parametrize("listen", ["hub.example.org", "0.0.0.0", "::", "127.0.0.1", "localhost"])
def test_the_hubs_programs_reach_it_by_a_name_in_its_certificate(listen: str, tmp_path: Path) -> None:
    made = HubFolder.create(tmp_path / "hub", Hub(host="hub.example.org"))
    made.file.write_text(tomli_w.dumps({"host": "hub.example.org", "listen": listen}))
    opened = HubFolder.open(made.folder)
    shake_hands(opened, opened.authority_file, opened.address.rpartition(":")[0])


def test_each_site_has_a_key_of_its_own(folder: HubFolder, tmp_path: Path) -> None:
    key = public_key("north", tmp_path)
    assert control.add(folder, "north", key) is False  # the hub does not run
    assert control.add(folder, "north", key) is False  # a second time is no harm
    assert folder.sites == ["north"]
    with pytest.raises(TacitError, match="this is the key of north"):
        control.add(folder, "south", key)
    with pytest.raises(TacitError, match="north has another key already"):
        control.add(folder, "north", public_key("again", tmp_path))
    with pytest.raises(TacitError, match="is no public key of a site"):
        control.add(folder, "south", folder.authority_file)
    with pytest.raises(TacitError, match="site.name"):
        control.add(folder, "../south", public_key("south", tmp_path))


def test_a_port_that_is_taken_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        made = HubFolder.create(tmp_path / "hub", Hub(port=taken.getsockname()[1], insecure=True))
        with pytest.raises(TacitError, match="can not be used: stop what uses it, or set another"):
            control.serving(made).__enter__()


@contextmanager
def answering(said: bytes) -> Iterator[str]:
    """The address of a server that says this to the first who asks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # nobody asks
                visitor, _ = listening.accept()
                with visitor:
                    visitor.recv(4096)
                    visitor.sendall(said)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_a_hub_that_answers_is_found_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(OK) as address:
        assert programs.healthy(address, None)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"HTTP/1.1 500 Broken\r\n\r\n"])
def test_what_answers_and_is_no_hub_is_none(said: bytes) -> None:
    with answering(said) as address:
        assert not programs.healthy(address, None)


@pytest.mark.parametrize("damaged", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None])
def test_with_a_damaged_certificate_no_hub_answers(damaged: str | None, tmp_path: Path) -> None:
    if damaged is not None:
        (tmp_path / "ca.crt").write_text(damaged)
    assert not programs.healthy("127.0.0.1:1", tmp_path / "ca.crt")


@pytest.mark.parametrize(
    "given, known",
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "a.org"}, "a.org,127.0.0.1,localhost"),
        ({"NO_PROXY": "a.org", "no_proxy": "b.org"}, "b.org,127.0.0.1,localhost"),
    ],
)
def test_flowers_programs_meet_on_this_machine_without_a_proxy(
    given: dict[str, str], known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert programs.environment(tmp_path)["no_proxy"] == known


def test_a_run_that_is_not_there_is_refused(folder: HubFolder) -> None:
    with pytest.raises(TacitError, match="there is no run nothing in .*: start one first"):
        control.find_run(folder, "nothing")


def test_a_run_needs_a_client_per_site(folder: HubFolder, tmp_path: Path) -> None:
    for name in ("north", "south"):
        control.add(folder, name, public_key(name, tmp_path))
    config = tmp_path / "run.toml"
    data: dict[str, Any] = {"name": str(write_images(tmp_path / "data.npz")), "labels": "client", "per_class": 2}
    config.write_text(tomli_w.dumps({"data": data}))
    assert hub.load(folder, config, {}).data.clients == 2
    config.write_text(tomli_w.dumps({"data": data | {"clients": 5}}))
    with pytest.raises(TacitError, match=re.escape("has 5 clients and the hub 2 sites (north, south)")):
        hub.load(folder, config, {})


@dataclass
class Visitors:
    """A roster to which places come one look after the other."""

    looks: list[list[Place]]
    failures: dict[int, str] = field(default_factory=dict)

    def places(self) -> dict[int, Place]:
        now = self.looks.pop(0) if self.looks[1:] else self.looks[0]
        return dict(enumerate(now))


def gathered(looks: list[list[Place]], expected: list[str] | None, **engine: Any) -> tuple[list[str], list[str]]:
    said: list[str] = []
    config = configs.make({"data": {"clients": 2}, "engine": engine})
    roster: Any = Visitors(looks)
    return hub.gather(roster, expected, config, 0.05, said.append), said


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LOOK", 0.01)


@pytest.mark.usefixtures("quick")
def test_sites_are_numbered_by_their_names() -> None:
    names, said = gathered([[], [Place("b")], [Place("b"), Place("a")]], ["b", "a"])
    assert names == ["a", "b"]
    assert said[0] == "0 of 2 sites have joined: b, a missing"
    assert said[-1] == "2 sites have joined: a, b"


@pytest.mark.usefixtures("quick")
def test_a_known_site_may_come_later_but_not_all_of_them() -> None:
    assert gathered([[Place("b")]], ["a", "b"])[0] == ["a", "b"]
    with pytest.raises(TacitError, match="1 of 2 sites have joined: a missing after .* then resume"):
        gathered([[Place("b")]], ["a", "b"], min_clients=2)


@pytest.mark.usefixtures("quick")
def test_when_any_may_come_all_must_be_there_and_able() -> None:
    assert gathered([[Place("z"), Place("y")]], None)[0] == ["y", "z"]
    with pytest.raises(TacitError, match=re.escape("1 of 2 sites have joined (z)")):
        gathered([[Place("z"), Place("y", "no samples")]], None)


def test_a_node_that_calls_itself_by_anothers_name_is_refused() -> None:
    post: Any = None
    owners = {1: "north"}
    roster = Roster(post, {}, {}, owners=lambda: owners)
    assert roster._vouched(1, Place("north")) == Place("north")
    assert roster._vouched(1, Place("south")) == Place("north", "it calls itself south and has the key of north")
    assert "a key that nobody was given" in roster._vouched(2, Place("north")).refusal
    owners = {2: "north"}  # its key is replaced while the run goes on
    assert roster._vouched(2, Place("north")) == Place("north")
    assert "a key that nobody was given" in roster._vouched(1, Place("north")).refusal


def test_a_hub_looks_up_whose_key_a_node_has_when_it_asks(folder: HubFolder, tmp_path: Path) -> None:
    """A site's key is replaced while the run waits for it."""
    folder.home.mkdir()
    folder.file.write_text(tomli_w.dumps({"join_seconds": 0.05}))
    config = places.hub(tmp_path, clients=1, labels="client", rounds=1, method="fedavg+supervised")
    Experiment.create(config, tmp_path / "run")
    control.add(folder, "a", public_key("a", tmp_path))
    x, y = places.arrays(6)
    grid = DirectGrid(client_app(open_desk, introduce), [{"site": str(places.site_with(tmp_path, "a", x=x, y=y))}])
    push = grid.push_messages

    def replaced(messages: Iterable[Any]) -> Iterable[str]:
        folder.accept(dict.fromkeys(grid.contexts, ("a", "its new key")))
        return push(messages)

    grid.push_messages = replaced  # type: ignore[method-assign]
    play(folder, tmp_path / "run", Post(grid))
    assert control.stand(tmp_path / "run").done == 1


def test_sites_are_fixed_with_the_run(tmp_path: Path) -> None:
    assert hub.Sites.read(tmp_path) is None
    hub.Sites("id", ["a", "b"]).write(tmp_path)
    assert hub.Sites.read(tmp_path) == hub.Sites("id", ["a", "b"])
    assert json.loads((tmp_path / "sites.json").read_text())["names"] == ["a", "b"]


def play(made: HubFolder, run: Path, post: Post) -> None:
    """As Flower's ServerApp does it."""
    hub.main(post, {"hub": str(made.folder), "run": str(run), "config": ""})


def hub_and_sites(folder: Path, labels: dict[str, list[int]], **options: Any) -> tuple[HubFolder, Path, Post]:
    """A hub with a run, and a site in this process for each list of labels."""
    made = HubFolder.create(folder / "hub", Hub(insecure=True))
    made.file.write_text(tomli_w.dumps({"insecure": True, "join_seconds": 0.05}))
    config = places.hub(folder, **{"clients": len(labels), "labels": "client", "rounds": 1, **options})
    Experiment.create(config, folder / "run")
    x, _ = places.arrays(9)
    sites = [places.site_with(folder, name, x=x[: len(y)], y=np.array(y)) for name, y in labels.items()]
    grid = DirectGrid(client_app(open_desk, introduce), [{"site": str(site)} for site in sites])
    return made, folder / "run", Post(grid)


@pytest.mark.parametrize(
    "method, reason",
    [
        (
            "fedavg+supervised",
            "needs labels at the clients .* none: label some samples at a site and resume$",
        ),
        ("fedavg+fixmatch", "nobody has a label: label some samples at a site and resume, or start a run with "),
    ],
)
def test_a_run_without_a_label_at_any_site_is_refused(method: str, reason: str, tmp_path: Path) -> None:
    made, run, post = hub_and_sites(tmp_path, {"a": [-1, -1], "b": [-1, -1, -1]}, method=method)
    with pytest.raises(TacitError, match=reason):
        play(made, run, post)
    assert re.search(reason, (run / "error.txt").read_text())
    assert not (run / "rounds.jsonl").exists()
    assert hub.Sites.read(run) is None


def test_labels_at_one_site_are_enough_and_the_data_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run, post = hub_and_sites(tmp_path, {"b": [-1, -1], "a": [-1, 2, 0]}, method="fedavg+supervised")
    loaded: list[str] = []

    def load(name: str, *scale: int | None) -> Source:
        loaded.append(name)
        return real(name, *scale)

    real = sources.load
    monkeypatch.setattr(sources, "load", load)
    play(made, run, post)
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 1
    assert loaded == [str(tmp_path / "hub.npz")]
    sites = hub.Sites.read(run)
    assert sites
    assert sites.numbers == {"a": 0, "b": 1}


def test_a_run_that_waits_for_its_sites_has_one_player(tmp_path: Path) -> None:
    made, run, post = hub_and_sites(tmp_path, {"a": [0, 1, 2], "b": [0, 1]}, method="fedavg+supervised")
    grid: Any = post.grid
    nodes = grid.get_node_ids
    looks: list[bool] = []

    def look() -> Iterable[int]:
        if not looks:
            (run / "error.txt").write_text("of the first")
            looks.append(control.stand(run).playing)
            with pytest.raises(TacitError, match="another process is running"):
                play(made, run, post)
            assert (run / "error.txt").read_text() == "of the first"
        found: Iterable[int] = nodes()
        return found

    grid.get_node_ids = look
    play(made, run, post)
    assert looks == [True]
    assert not control.stand(run).playing
    assert control.stand(run).done == 1


def test_labels_are_not_judged_while_a_site_may_still_bring_some(tmp_path: Path) -> None:
    experiment = Experiment.create(places.hub(tmp_path, method="fedavg+supervised", labels="client"), tmp_path / "run")
    here: Any = Visitors([[Place("a", samples=3)]])
    hub.refuse_without_labels(experiment, ["a", "b"], here)
    with pytest.raises(TacitError, match="needs labels at the clients"):
        hub.refuse_without_labels(experiment, ["a"], here)


def test_what_flower_refuses_is_quoted(folder: HubFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"success": False, "error-message": "Using SuperLink: hub\nit rains\n"})
    monkeypatch.setattr(programs, "call", lambda *_: said)
    with pytest.raises(TacitError, match="Flower refuses: Using SuperLink: hub it rains; mend that and try again"):
        control.connected(folder)


@pytest.mark.parametrize("said", ["", "no such command", "{half"])
def test_an_answer_of_flower_that_is_not_understood_is_one_sentence(
    said: str, folder: HubFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "call", lambda *_: said)
    with pytest.raises(TacitError, match=re.escape(f"({said or 'nothing'}): install the version that tacit[flower]")):
        control.connected(folder)


FAILED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize(
    "said, reason",
    [
        ("…\n[code: 2004] Public key not recognized\n", "does not know this site's key"),
        ("…\n[code: 2001] Missing\n", "asks for a key"),
        ("ssl: CERTIFICATE_VERIFY_FAILED\n", "is not the one that ca.crt is of"),
        (
            f"{FAILED}: IP address mismatch, certificate is not valid for '192.0.2.7'\n",
            "not for 192.0.2.7:8443: use the",
        ),
        (f"{FAILED}: Hostname mismatch, certificate is not valid for 'hub'\n", "address that `tacit hub init --host`"),
        (f"{FAILED}: certificate has expired (_ssl.c:1000)\n", "has expired: have the hub set up anew"),
        ("\x1b[91mERROR\x1b[0m: it rains\n", "SuperNode ended: ERROR: it rains"),
    ],
)
def test_refusals_are_said_in_plain_words(said: str, reason: str) -> None:
    site = Site("north", certificate="ca.crt", key="north.key")
    assert reason in join.refusal(said, site, "192.0.2.7:8443", Path("join.log"))


def test_what_a_supernode_says_is_passed_on_in_plain_words() -> None:
    said: list[str] = []
    lines = ["SuperNode ID: 7", "Receiving: query message", "of no interest", "Receiving: train message"]
    join._pass_on(lines, Site("north"), said.append)
    assert said == [
        "joined as north; waiting for work (Ctrl-C to leave)",
        "telling the hub who this is",
        "training for a round",
    ]


@pytest.mark.parametrize("address", ["hub", "hub:", ":8443", "hub:99999", "hub:x"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(TacitError, match="is not the address of a hub"):
        join._address(address)


def test_the_app_names_its_hub(tmp_path: Path, folder: HubFolder) -> None:
    place = apps.write(tmp_path / "app", folder.folder)
    assert configs.read(place / "pyproject.toml")["tool"]["flwr"]["app"]["config"]["hub"] == str(folder.folder)


SLEEPERS = "import subprocess, time; subprocess.Popen(['sleep', '77.5'], start_new_session=True); time.sleep(60)"


def sleeping(among: Iterable[int]) -> set[int]:
    return set(among) & {process.pid for process in processes()}


def below(pid: int) -> set[int]:
    found, table = {pid}, list(processes())
    while more := {each.pid for each in table if each.parent in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("end", ["stop", "the starter is killed", "the program is killed"])
def test_nothing_stays_behind_however_it_ends(end: str, tmp_path: Path) -> None:
    """A program starts another in a session of its own, as Flower's do."""
    starter = f"""
import sys, time
from pathlib import Path
from tacit.deploy.programs import Program
program = Program([sys.executable, "-c", {SLEEPERS!r}], Path({str(tmp_path)!r}), Path({str(tmp_path / "log")!r}))
print(program.group, flush=True)
sys.stdin.read()
program.stop()
"""
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        group = int(process.stdout.readline())
        assert eventually(lambda: len(below(group)) == 3)
        all_of_it = below(group)
        if end == "stop":
            process.stdin.close()
        elif end == "the starter is killed":
            process.kill()
        else:
            os.kill(min(all_of_it - {group}), signal.SIGKILL)
        assert eventually(lambda: not sleeping(all_of_it))
        process.kill()


def test_a_program_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda name: sys.executable)
    with pytest.raises(TacitError, match="Flower refuses: it rains; mend that"):
        programs.call("flwr", ["-c", "import sys; sys.exit('it rains')"], tmp_path)


def test_a_key_that_was_replaced_or_removed_is_no_longer_let_in(
    folder: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(name: str, arguments: list[str], home: Path) -> str:
        calls.append(f"{arguments[1]} {Path(arguments[2]).stem}")
        return f'registered {{"node-id": {len(calls)}}}'

    monkeypatch.setattr(programs, "call", call)
    folder.home.mkdir()
    for name in ("north", "south"):
        control.add(folder, name, public_key(name, tmp_path))
    control.reconcile(folder)
    assert sorted(calls) == ["register north", "register south"]
    assert sorted(folder.nodes().values()) == ["north", "south"]
    old = {name: str(node) for node, name in folder.nodes().items()}
    for name in ("north", "south"):
        folder.keys[name].unlink()
    control.add(folder, "north", public_key("new", tmp_path))
    calls.clear()
    control.reconcile(folder)
    assert sorted(calls) == sorted([f"unregister {old['north']}", f"unregister {old['south']}", "register north"])
    assert list(folder.nodes().values()) == ["north"]


def refuse_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Flower's program say that it knows every key already."""

    said = {"success": False, "error-message": "Using SuperLink: hub\n[code: 313] Public key already in use."}
    monkeypatch.setattr(programs, "call", lambda *_: json.dumps(said))


def test_keys_are_registered_by_one_process_at_a_time(
    folder: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("north", "south"):
        control.add(folder, name, public_key(name, tmp_path))
    keys = {name: path.read_text() for name, path in folder.keys.items()}
    calls: list[str] = []

    def call(name: str, arguments: list[str], home: Path) -> str:
        with (folder.home / "nodes.lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append(Path(arguments[2]).stem)
        return '{"node-id": 2}'

    def lock(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:  # another who came first is ready now
            folder.accept({1: ("north", keys["north"])})
        flock(file, how)

    flock = fcntl.flock
    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(fcntl, "flock", lock)
    control.reconcile(folder)
    assert calls == ["south"]
    assert folder.nodes() == {1: "north", 2: "south"}


def test_a_registration_that_was_not_noted_is_found_again(
    folder: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub was killed after Flower had let the site in and before it could write that down."""
    refuse_twice(monkeypatch)
    monkeypatch.setattr(control, "registered", lambda folder, key: {"north": 7}[key.stem])
    control.add(folder, "north", public_key("north", tmp_path))
    control.reconcile(folder)
    assert folder.nodes() == {7: "north"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries below Flower
def test_a_node_is_found_by_its_key_and_only_while_it_is_let_in(folder: HubFolder, tmp_path: Path) -> None:
    """In a database as Flower itself writes it."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    keys = {name: public_key(name, tmp_path) for name in ("north", "south", "west")}
    assert control.registered(folder, keys["north"]) is None
    folder.home.mkdir()
    place = str(folder.database)
    state = LinkStateFactory(place, NoOpFederationManager(), ObjectStoreFactory(place)).state()
    nodes = {name: state.create_node("me", "me", try_load_public_key(keys[name]), 30) for name in ("north", "south")}
    state.delete_node("me", nodes["north"])
    found = {name: control.registered(folder, key) for name, key in keys.items()}
    assert found == {"north": None, "south": nodes["south"], "west": None}


def test_a_key_that_flower_has_known_before_is_named_with_the_remedy(
    folder: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_twice(monkeypatch)
    monkeypatch.setattr(control, "registered", lambda *_: None)
    control.add(folder, "north", public_key("north", tmp_path))
    with pytest.raises(TacitError, match=re.escape(f"give north a new key, or end the hub, move {folder.home} away")):
        control.reconcile(folder)


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"1": 2}', '{"x": ["north", "key"]}'])
def test_a_broken_memory_of_nodes_is_refused_with_the_remedy(folder: HubFolder, text: str) -> None:
    folder.home.mkdir()
    (folder.home / "nodes.json").write_text(text)
    with pytest.raises(TacitError, match="nodes.json is broken: end the hub, move"):
        folder.nodes()


@pytest.mark.parametrize(
    "file, text, reason",
    [
        ("sites.json", "", "sites.json can not be read .*: put it back, or start a new run"),
        ("sites.json", '{"run": 1}', "sites.json can not be read"),
        ("config.toml", 'rounds = "x"', "rounds = 'x': write a number there"),
        ("config.toml", "rounds = ", "is not valid TOML"),
        ("checkpoint/latest.json", "", "checkpoint .* can not be read"),
    ],
)
def test_a_run_that_is_broken_does_not_hide_the_others(
    file: str, text: str, reason: str, folder: HubFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "bad"):
        (folder.runs / name / "checkpoint").mkdir(parents=True)
        (folder.runs / name / "config.toml").write_text("rounds = 3")
    (folder.runs / "bad" / file).write_text(text)
    standings = {each.name: each for each in control.runs(folder)}
    assert standings["good"] == control.Standing("good", 0, 3, playing=False, sites=[])
    assert re.search(reason, standings["bad"].trouble)
    monkeypatch.setattr(HubFolder, "running", lambda _: False)
    said = CliRunner().invoke(app, ["hub", "status", "--hub", str(folder.folder)])
    assert said.exit_code == 0
    assert re.search(r"good +0/3 +stopped", said.stdout)
    assert re.search(r"bad +broken", said.stdout)
    assert re.search(reason, said.stdout.replace("\n", " "))


def test_a_key_file_that_is_empty_is_named(folder: HubFolder, tmp_path: Path) -> None:
    """As a hub may leave it that was killed while it wrote."""
    control.add(folder, "north", public_key("north", tmp_path))
    folder.keys["north"].write_text("")
    control.add(folder, "south", public_key("south", tmp_path))
    with pytest.raises(TacitError, match="north has another key already: .*`tacit hub remove north"):
        control.add(folder, "north", public_key("north", tmp_path))
    with pytest.raises(TacitError, match="north.pub is no public key of a site"):
        control.reconcile(folder)


@pytest.mark.parametrize("place", ["afile", "afile/below"])
def test_a_place_that_can_not_be_written_to_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    with pytest.raises(TacitError, match="can not write to .*; choose another folder"):
        HubFolder.create(tmp_path / place, Hub())


def test_remedies_name_the_hub_unless_it_is_here(folder: HubFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.folder.parent)
    with pytest.raises(TacitError, match=f"start it with `tacit hub start --hub {folder.folder.name}`"):
        folder.need_running()
    monkeypatch.chdir(folder.folder)
    assert folder.command("status") == "tacit hub status"
    monkeypatch.chdir("/")
    assert folder.command("status").endswith(f" --hub {str(folder.folder).removeprefix('/')}")


def test_remedies_can_be_typed_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = HubFolder.create(tmp_path / "my hub", Hub())
    monkeypatch.chdir(tmp_path)
    assert shlex.split(made.command("status")) == ["tacit", "hub", "status", "--hub", "my hub"]


@pytest.mark.parametrize("words", ["status", "add a b", "run c.toml", "resume r", "start", "app"])
def test_without_flower_every_command_says_so(words: str, folder: HubFolder) -> None:
    script = f"""
import sys
sys.modules["flwr"] = None
from importlib import util
util.find_spec = lambda name: None
from tacit import cli
sys.argv = ["tacit", "hub", *{words.split()!r}, "--hub", {str(folder.folder)!r}]
cli.main()
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (said.returncode, said.stderr) == (2, "tacit: a hub needs Flower: pip install 'tacit[flower]'\n")


def test_a_site_is_removed_by_its_name(folder: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(control, "reconcile", lambda hub: told.append(sorted(hub.keys)))
    for name in ("north", "south"):
        control.add(folder, name, public_key(name, tmp_path))
    with pytest.raises(TacitError, match="north has another key already: if .*, give `tacit hub remove north"):
        control.add(folder, "north", public_key("newer", tmp_path))
    monkeypatch.setattr(HubFolder, "running", lambda self: True)
    assert control.remove(folder, "north")
    assert told == [["south"]]  # at once, since the hub runs
    with pytest.raises(TacitError, match=r"no site north was added: name one of those that were \(south\)"):
        control.remove(folder, "north")
    control.add(folder, "north", tmp_path / "newer.pub")
    assert sorted(folder.keys) == ["north", "south"]


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with programs.ending_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), programs.ending_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
