"""Certificates and keys are renewed while sites keep what they have."""

import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.cli.app import app
from tacit.deploy import certificates, renewal, site_init
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub
from tests.deploy.test_hub_directory import shake_hands
from tests.refusals import refused

pytestmark = pytest.mark.flower


@pytest.fixture
def hub(tmp_path: Path) -> HubDirectory:
    return HubDirectory.create(tmp_path / "hub", Hub())


@pytest.fixture
def ca(hub: HubDirectory, tmp_path: Path) -> Path:
    """A site's copy of the authority's certificate."""
    path = tmp_path / "ca.crt"
    path.write_bytes(hub.authority_file.read_bytes())
    return path


def modes(hub: HubDirectory) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (hub.key_file, hub.authority_key_file)}


def test_sites_accept_a_renewed_certificate(hub: HubDirectory, ca: Path) -> None:
    before = hub.key_file.read_bytes(), hub.certificate_file.read_bytes()
    until = renewal.renew_certificate(hub)
    assert until > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=800)
    assert before[0] != hub.key_file.read_bytes()
    assert before[1] != hub.certificate_file.read_bytes()
    assert hub.authority_file.read_bytes() == ca.read_bytes()
    assert modes(hub) == {0o600}
    shake_hands(hub, ca, "127.0.0.1")


def test_another_authority_takes_over_in_two_steps(hub: HubDirectory, ca: Path) -> None:
    renewal.renew_authority(hub)
    assert modes(hub) == {0o600}
    for file in (ca, hub.authority_file):  # sites that have the new file, and sites that do not have it yet
        shake_hands(hub, file, "127.0.0.1")
    renewal.renew_certificate(hub)
    shake_hands(hub, hub.authority_file, "127.0.0.1")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(hub, ca, "127.0.0.1")
    renewal.renew_authority(hub)
    assert hub.authority_file.read_bytes().count(b"BEGIN CERTIFICATE") == 2  # not more each time
    shake_hands(hub, hub.authority_file, "127.0.0.1")


def test_a_hub_without_the_authoritys_key_gets_another_authority(hub: HubDirectory) -> None:
    hub.authority_key_file.unlink()  # as after 0.1, which did not store it
    with refused("hub.no-authority-key"):
        renewal.renew_certificate(hub)
    renewal.renew_authority(hub)
    renewal.renew_certificate(hub)
    shake_hands(hub, hub.authority_file, "127.0.0.1")


def test_a_key_of_another_authority_is_refused(hub: HubDirectory) -> None:
    hub.authority_key_file.write_bytes(certificates.create_authority("elsewhere").key)
    before = hub.certificate_file.read_bytes()
    with refused("hub.authority-mismatch"):
        renewal.renew_certificate(hub)
    assert hub.certificate_file.read_bytes() == before


def test_an_insecure_hub_has_nothing_to_renew(tmp_path: Path) -> None:
    made = HubDirectory.create(tmp_path / "hub", Hub(insecure=True))
    with refused("hub.insecure"):
        renewal.renew_certificate(made)
    with refused("hub.insecure"):
        renewal.renew_authority(made)
    assert renewal.certificate_ends(made) is None


def test_status_tells_when_the_certificate_ends_soon(hub: HubDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    status = ["hub", "status", "--hub", str(hub.path)]
    assert "certificate" not in CliRunner().invoke(app, status).stdout
    monkeypatch.setattr(certificates, "VALID_DAYS", 30)
    until = renewal.renew_certificate(hub)
    assert f"ends on {until:%Y-%m-%d}; renew it with `tacit hub renew" in CliRunner().invoke(app, status).stdout


def test_a_certificate_does_not_outlive_its_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 10)
    authority = certificates.create_authority("hub.example.org")
    made = certificates.issue("hub.example.org", authority)
    assert certificates.valid_until(made.certificate) == certificates.valid_until(authority.certificate)


def test_a_site_gets_a_new_key_and_keeps_the_old_one_aside(tmp_path: Path) -> None:
    files = site_init.create(tmp_path, "north", None)
    assert files.public_key is not None
    old = {name: (tmp_path / name).read_bytes() for name in ("north.key", "north.key.pub")}
    assert renewal.renew_site_key(files.settings) == files.public_key.absolute()
    for name, content in old.items():
        assert (tmp_path / f"{name}.old").read_bytes() == content
        assert (tmp_path / name).read_bytes() != content
    assert (tmp_path / "north.key").stat().st_mode & 0o777 == 0o600
    keyless = site_init.create(tmp_path / "other", "south", None, insecure=True)
    with refused("site.no-key"):
        renewal.renew_site_key(keyless.settings)
