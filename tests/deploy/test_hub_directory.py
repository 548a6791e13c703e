"""A hub's folder: certificates, keys, addresses, and the commands it suggests."""

import shlex
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub
from tests.refusals import refused

pytestmark = pytest.mark.flower


@pytest.fixture
def hub(tmp_path: Path) -> HubDirectory:
    return HubDirectory.create(tmp_path / "hub", Hub())


def shake_hands(hub: HubDirectory, authority: Path, host: str) -> None:
    """A TLS handshake with the hub, by a client that trusts an authority and expects a host."""
    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(hub.certificate_file, hub.key_file)

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


def test_the_certificate_is_valid_for_the_host_and_for_this_machine(tmp_path: Path) -> None:
    made = HubDirectory.create(tmp_path / "hub", Hub(host="hub.example.org"))
    for host in ("hub.example.org", "127.0.0.1", "localhost"):
        shake_hands(made, made.authority_file, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, made.authority_file, "elsewhere.example.org")


def test_the_authority_of_another_hub_is_not_trusted(hub: HubDirectory, tmp_path: Path) -> None:
    other = HubDirectory.create(tmp_path / "other", Hub())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(hub, other.authority_file, "127.0.0.1")


def test_only_the_owner_reads_the_key_and_it_is_never_overwritten(hub: HubDirectory) -> None:
    before = hub.key_file.read_bytes()
    assert hub.key_file.stat().st_mode & 0o077 == 0
    hub.settings_file.unlink()
    with refused("storage.exists"):
        HubDirectory.create(hub.path, Hub())
    assert hub.key_file.read_bytes() == before
    assert not hub.settings_file.exists()


def test_a_missing_hub_and_a_lost_key_are_refused(hub: HubDirectory, tmp_path: Path) -> None:
    with refused("hub.none"):
        HubDirectory.open(tmp_path)
    hub.key_file.unlink()
    with refused("hub.no-certificate"):
        HubDirectory.open(hub.path)


@pytest.mark.parametrize("listen", ["10.0.0.5", "0.0.0.0", "hub.example.org"])
@pytest.mark.parametrize("insecure", [False, True])
def test_the_superlink_listens_on_loopback_whatever_the_settings_say(
    listen: str, insecure: bool, hub: HubDirectory
) -> None:
    given = {"host": "hub.example.org", "port": 8443, "listen": listen, "insecure": insecure}
    hub.settings_file.write_text(tomli_w.dumps(given))
    opened = HubDirectory.open(hub.path)
    opened.flower_home.mkdir()
    opened.write_connection(4567)
    words = opened.superlink_options(hub.path / "secret")
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "4567"
    assert words[words.index("--isolation") + 1] == "process"  # otherwise the secret is ignored
    settings = opened.gateway_settings()
    assert (settings.host, settings.port, settings.superlink) == (listen, 8443, 4567)
    assert (settings.key is None, "--insecure" in words) == (insecure, insecure)
    shake_hands(hub, hub.authority_file, opened.superlink_address.partition(":")[0])


def test_a_hub_that_was_never_started_has_no_superlink(hub: HubDirectory) -> None:
    assert not hub.is_running()
    with refused("hub.no-superlink-port"):
        _ = hub.superlink_address


@pytest.mark.parametrize("place", ["afile", "afile/below"])
def test_a_folder_that_cannot_be_written_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    with refused("storage.cannot-write"):
        HubDirectory.create(tmp_path / place, Hub())


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"1": 2}', '{"x": ["north", "key"]}'])
def test_a_broken_list_of_nodes_is_refused(hub: HubDirectory, text: str) -> None:
    hub.flower_home.mkdir()
    (hub.flower_home / "nodes.json").write_text(text)
    with refused("hub.broken-nodes"):
        hub.node_names()


def test_suggested_commands_name_the_hub_unless_it_is_here(hub: HubDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hub.path.parent)
    with refused("hub.not-running") as caught:
        hub.require_running()
    assert f"`tacit hub start --hub {hub.path.name}`" in caught.error.remedy
    monkeypatch.chdir(hub.path)
    assert hub.command("status") == "tacit hub status"
    monkeypatch.chdir("/")
    assert hub.command("status").endswith(f" --hub {str(hub.path).removeprefix('/')}")


def test_suggested_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = HubDirectory.create(tmp_path / "my hub", Hub())
    monkeypatch.chdir(tmp_path)
    assert shlex.split(made.command("status")) == ["tacit", "hub", "status", "--hub", "my hub"]


@pytest.mark.parametrize("words", ["status", "add a b", "run c.toml", "resume r", "start", "stop r", "app"])
def test_every_command_needs_flower(words: str, hub: HubDirectory) -> None:
    script = f"""
import sys
sys.modules["flwr"] = None
from importlib import util
util.find_spec = lambda name: None
from tacit.cli import app
sys.argv = ["tacit", "hub", *{words.split()!r}, "--hub", {str(hub.path)!r}]
app.main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (2, "tacit: a hub needs Flower; pip install 'tacit[flower]'\n")
