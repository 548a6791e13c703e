"""`tacit site join` without a SuperNode: what it checks first, and what it shows of the SuperNode's log."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy import supernode
from tacit.deploy.settings import Site
from tests.deploy import places
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytestmark = pytest.mark.flower

FAILED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize(
    "output, code",
    [
        ("[code: 2004] Public key not recognized\n", "site.unknown-key"),
        ("[code: 2001] Missing\n", "site.no-key"),
        ("ssl: CERTIFICATE_VERIFY_FAILED\n", "site.wrong-certificate"),
        (f"{FAILED}: IP address mismatch\n", "site.wrong-host"),
        (f"{FAILED}: Hostname mismatch\n", "site.wrong-host"),
        (f"{FAILED}: certificate has expired (_ssl.c:1000)\n", "site.expired-certificate"),
        ("\x1b[91mERROR\x1b[0m: it rains\n", "flower.supernode"),
    ],
)
def test_every_refusal_of_the_hub_has_a_code(output: str, code: str) -> None:
    site = Site("north", certificate="ca.crt", key="north.key")
    assert supernode.refusal(output, site, "192.0.2.7:8443", Path("join.log")).code == code


def test_events_are_shown_in_plain_words() -> None:
    shown: list[str] = []
    lines = ["SuperNode ID: 7", "Receiving: query message", "of no interest", "Receiving: train message"]
    supernode._report(lines, Site("north"), shown.append)
    assert shown == [
        "joined as north; waiting for work (Ctrl-C to leave)",
        "identifying this site to the hub",
        "training for a round",
    ]


@pytest.mark.parametrize("address", ["hub", "hub:", ":8443", "hub:99999", "hub:x"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with refused("site.bad-address"):
        supernode._parse_address(address)


@pytest.mark.parametrize(
    "setting, value, code",
    [
        ("data", "nowhere", "site.missing-file"),
        ("key", "lost.key", "site.missing-file"),
        ("certificate", "lost.crt", "site.missing-file"),
        ("certificate", "site.toml", "site.broken-certificate"),
        ("federation", "fed.tml", "site.no-consent"),
    ],
)
def test_missing_files_are_refused_before_joining(setting: str, value: str, code: str, tmp_path: Path) -> None:
    path = places.site(tmp_path, "a", **{setting: value})
    with refused(code) as caught:
        supernode.join(path, "127.0.0.1:1", lambda text: None, any_run=setting != "federation")
    assert value in caught.error.problem


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port in use, at which `join` stops once it has accepted the agreement."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_site_joins_only_with_a_checked_agreement(tmp_path: Path, busy_port: int) -> None:
    path = places.site(tmp_path, "a", port=busy_port)
    config = places.hub_config(tmp_path, partition="iid", labels="all")
    with refused("site.no-consent"):
        supernode.join(path, "127.0.0.1:1", lambda text: None)
    places.write_federation_file(path, config)
    with refused("site.unchecked"):
        supernode.join(path, "127.0.0.1:1", lambda text: None)
    assert CliRunner().invoke(app, ["site", "check", str(path)]).exit_code == 0
    with refused("site.port-in-use"):
        supernode.join(path, "127.0.0.1:1", lambda text: None)


def test_any_run_is_for_a_hub_on_the_same_machine(tmp_path: Path, busy_port: int) -> None:
    path, shown = places.site(tmp_path, "a", port=busy_port), list[str]()
    for host in ("127.0.0.1", "127.8.0.1", "localhost", "[::1]"):
        with refused("site.port-in-use"):
            supernode.join(path, f"{host}:1", shown.append, any_run=True)
    assert all("WARNING" in line for line in shown)
    assert len(shown) == 4
    for host in ("192.0.2.7", "hub.example", "0.0.0.0", "localhost.example"):
        with refused("site.any-run-elsewhere"):
            supernode.join(path, f"{host}:1", shown.append, any_run=True)
