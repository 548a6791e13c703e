"""Flower's programs: their environment, their health, and what their output and logs mean."""

import json
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tacit.deploy import flower_cli
from tacit.deploy.flower_cli import SuperNodeEvent, SuperNodeFailure
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]


def test_the_known_versions_are_those_that_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"flwr[simulation]{flower_cli.VERSIONS}" in project["optional-dependencies"]["flower"]


@contextmanager
def server_that_replies(reply: bytes) -> Iterator[str]:
    """The address of a server that sends this to its first client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # no client came
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_a_hub_is_found_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with server_that_replies(OK) as address:
        assert flower_cli.is_healthy(address, None)


@pytest.mark.parametrize("reply", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"HTTP/1.1 500 Broken\r\n\r\n"])
def test_another_server_is_not_a_healthy_hub(reply: bytes) -> None:
    with server_that_replies(reply) as address:
        assert not flower_cli.is_healthy(address, None)


@pytest.mark.parametrize("damaged", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None])
def test_a_damaged_certificate_means_unhealthy(damaged: str | None, tmp_path: Path) -> None:
    if damaged is not None:
        (tmp_path / "ca.crt").write_text(damaged)
    assert not flower_cli.is_healthy("127.0.0.1:1", tmp_path / "ca.crt")


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "a.org"}, "a.org,127.0.0.1,localhost"),
        ({"NO_PROXY": "a.org", "no_proxy": "b.org"}, "b.org,127.0.0.1,localhost"),
    ],
)
def test_programs_on_this_machine_use_no_proxy(
    given: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert flower_cli.environment(tmp_path)["no_proxy"] == expected


def test_a_failed_program_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_cli, "find_program", lambda *_: sys.executable)
    with refused("flower.refused") as caught:
        flower_cli.call("flwr", ["-c", "import sys; sys.exit('it rains')"], tmp_path)
    assert str(caught.error) == "Flower refused: it rains; fix that and try again"


def reply_with(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_cli, "call", lambda *_: output)


def test_a_failure_in_json_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply_with(json.dumps({"success": False, "error-message": "Using SuperLink: hub\nit rains\n"}), monkeypatch)
    with refused("flower.refused") as caught:
        flower_cli.register_node(tmp_path / "north.pub", "north", "hub", tmp_path)
    assert caught.error.problem == "Flower refused: Using SuperLink: hub it rains"


@pytest.mark.parametrize("output", ["", "no such command", "{half"])
def test_a_reply_without_json_is_refused(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply_with(output, monkeypatch)
    with refused("flower.unknown-reply"):
        flower_cli.register_node(tmp_path / "north.pub", "north", "hub", tmp_path)


def test_a_key_in_use_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "Using SuperLink: hub\n[code: 313] Public key already in use."
    reply_with(json.dumps({"success": False, "error-message": message}), monkeypatch)
    with refused("flower.key-in-use") as caught:
        flower_cli.register_node(tmp_path / "north.pub", "north", "hub", tmp_path)
    assert isinstance(caught.error, flower_cli.KeyInUseError)
    assert caught.error.output == message


def test_only_the_owner_reads_a_secret_and_every_one_is_new(tmp_path: Path) -> None:
    first, second = (flower_cli.new_secret(tmp_path / "home" / "secret").read_text() for _ in range(2))
    assert first != second
    assert len(first) == 64
    assert (tmp_path / "home" / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line, event",
    [
        ("SuperNode ID: 7", SuperNodeEvent.JOINED),
        ("Connection successful after 3 tries", SuperNodeEvent.RECONNECTED),
        ("Receiving: train message", SuperNodeEvent.TRAINING),
        ("Receiving: query message", SuperNodeEvent.IDENTIFYING),
        ("anything else", None),
    ],
)
def test_lines_of_a_supernode_are_events(line: str, event: SuperNodeEvent | None) -> None:
    assert flower_cli.supernode_event(line) is event


FAILED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize(
    "output, failure",
    [
        ("…\n[code: 2004] Public key not recognized\n", SuperNodeFailure.UNKNOWN_KEY),
        ("…\n[code: 2001] Missing\n", SuperNodeFailure.NO_KEY),
        ("ssl: CERTIFICATE_VERIFY_FAILED\n", SuperNodeFailure.WRONG_CERTIFICATE),
        (f"{FAILED}: IP address mismatch, certificate is not valid for '192.0.2.7'\n", SuperNodeFailure.WRONG_ADDRESS),
        (f"{FAILED}: Hostname mismatch, certificate is not valid for 'hub'\n", SuperNodeFailure.WRONG_HOST),
        (f"{FAILED}: certificate has expired (_ssl.c:1000)\n", SuperNodeFailure.EXPIRED),
        ("\x1b[91mERROR\x1b[0m: it rains\n", None),
    ],
)
def test_output_of_a_supernode_says_why_it_ended(output: str, failure: SuperNodeFailure | None) -> None:
    assert flower_cli.supernode_failure(output) is failure


def test_quoted_lines_have_no_colours_and_frames() -> None:
    assert flower_cli.last_lines("one\n│ \x1b[91mERROR\x1b[0m: it rains │\n╰──╯\n\n") == "ERROR: it rains"
