"""The units are valid for systemd, and leave a service little to do harm with."""

import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import site_init, systemd
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub

pytestmark = pytest.mark.flower

analyze = shutil.which("systemd-analyze")
EXPOSURE = "40"  # of 100: systemd's own measure, "OK" up to 50


def units(folder: Path) -> list[Path]:
    hub = HubDirectory.create(folder / "hub", Hub())
    site = site_init.create(folder / "a 100% site", "north", None)
    return [systemd.write_hub_unit(hub), systemd.write_site_unit(site.settings, "192.0.2.7:8443")]


def service(unit: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as the documentation of configparser says
    parser.read(unit, encoding="utf-8")
    return parser


@pytest.mark.skipif(analyze is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert analyze is not None
    for unit in units(tmp_path):
        shown = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
        assert (shown.returncode, shown.stdout + shown.stderr) == (0, "")


@pytest.mark.skipif(analyze is None, reason="systemd-analyze is not installed")
def test_the_sandbox_is_tight(tmp_path: Path) -> None:
    assert analyze is not None
    for unit in units(tmp_path):
        words = [analyze, "security", "--offline=yes", f"--threshold={EXPOSURE}", "--no-pager", str(unit)]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert shown.returncode == 0, shown.stdout + shown.stderr


def test_a_service_writes_to_its_own_folder_only(tmp_path: Path) -> None:
    hub, site = (service(unit)["Service"] for unit in units(tmp_path))
    assert hub["ReadWritePaths"] == f"{tmp_path / 'hub'} {tmp_path / 'hub' / 'runs'}"
    place = str(tmp_path / "a 100%% site")
    assert site["ReadWritePaths"] == f'"{place}" "{place}/memory"'
    assert site["ExecStart"] == f'{sys.executable} -m tacit site join 192.0.2.7:8443 --site "{place}/site.toml"'
    assert site["WorkingDirectory"] == place


@pytest.mark.parametrize(
    "address, allowed",
    [
        ("192.0.2.7:8443", "localhost 192.0.2.7"),
        ("[2001:db8::1]:8443", "localhost 2001:db8::1"),
        ("hub.org:1", None),
    ],
)
def test_a_site_reaches_its_hub_only_if_the_address_is_numeric(
    address: str, allowed: str | None, tmp_path: Path
) -> None:
    site = site_init.create(tmp_path, "north", None, insecure=True)
    found = service(systemd.write_site_unit(site.settings, address))["Service"]
    assert found.get("IPAddressAllow") == allowed


def test_a_site_with_a_gpu_reaches_it(tmp_path: Path) -> None:
    site = site_init.create(tmp_path, "north", None, insecure=True)
    assert "PrivateDevices" in service(systemd.write_site_unit(site.settings, "hub.org:1"))["Service"]
    with site.settings.open("a") as file:
        file.write('\ndevice = "cuda"\n')
    assert "PrivateDevices" not in service(systemd.write_site_unit(site.settings, "hub.org:1"))["Service"]
