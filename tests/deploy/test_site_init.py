"""A new site's files: every setting explained, keys that Flower reads, nothing overwritten or half-written."""

import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy import site_init
from tacit.deploy.settings import Hub, Site, load_settings, settings_toml
from tacit.errors import TacitError
from tacit.runs.settings import settings
from tacit.storage import Tail, write_new
from tests.refusals import refused


def test_the_settings_file_explains_every_setting_and_can_be_read(tmp_path: Path) -> None:
    files = site_init.create(tmp_path / "s", "alpha", tmp_path, insecure=True)
    assert load_settings(Site, files.settings) == Site("alpha", data=str(tmp_path))
    text = files.settings.read_text(encoding="utf-8")
    for item in settings(Site):
        assert f"# {item.comment}\n" in text
        assert f"{item.name} = " in text
    assert (files.public_key, sorted(path.name for path in (tmp_path / "s").iterdir())) == (None, ["site.toml"])


def test_other_settings_are_comments_with_their_defaults(tmp_path: Path) -> None:
    text = settings_toml(Site, {"name": "alpha"}, "A site.")
    assert tomllib.loads(text) == {"name": "alpha"}
    assert "\n# port = 9094\n" in text


@pytest.mark.parametrize("kind", [Site, Hub])
def test_every_setting_has_a_comment(kind: type) -> None:
    assert [item.name for item in settings(kind) if not item.comment] == []
    assert len(settings(kind)) == len(fields(kind))


def test_the_keys_are_a_pair_and_only_the_owner_reads_the_private_one(tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    files = site_init.create(tmp_path, "alpha", None)
    private = tmp_path / "alpha.key"
    assert private.stat().st_mode & 0o777 == 0o600
    key = serialization.load_ssh_private_key(private.read_bytes(), password=None)
    assert key.curve.name == "secp384r1"
    assert files.public_key is not None
    public = serialization.load_ssh_public_key(files.public_key.read_bytes())
    assert key.public_key().public_numbers() == public.public_numbers()
    site = load_settings(Site, files.settings)
    assert (site.key, site.certificate) == ("alpha.key", "ca.crt")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("mine", encoding="utf-8")
    with refused("storage.exists"):
        site_init.create(tmp_path, "alpha", None, insecure=True)
    assert (tmp_path / "site.toml").read_text(encoding="utf-8") == "mine"


def test_without_cryptography_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with refused("site.no-cryptography"):
        site_init.create(tmp_path / "s", "alpha", None)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name, data", [("../x", None), ("alpha", "gone")])
def test_wrong_options_leave_no_files(name: str, data: str | None, tmp_path: Path) -> None:
    with pytest.raises(TacitError) as caught:
        site_init.create(tmp_path / "s", name, None if data is None else tmp_path / data)
    assert (caught.value.code == "site.no-such-data") == (data == "gone")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_removes_what_was_written(tmp_path: Path) -> None:
    too_long = "x" * 300
    with refused("storage.cannot-write"):
        write_new(tmp_path / "s", {"first": (b"1", 0o600), too_long: (b"2", 0o600)})
    assert not (tmp_path / "s" / "first").exists()


def test_a_tail_gives_each_complete_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of before\n", encoding="utf-8")
    tail, later = Tail(log), Tail(tmp_path / "later")
    assert (tail.lines(), later.lines()) == ([], [])
    read = []
    for added in ("one\ntw", "o\n", "", "\n", "drei: ä"[:-1], "ä\nfour\n"):
        with log.open("a", encoding="utf-8") as file:
            file.write(added)
        read.append(tail.lines())
    assert read == [["one"], ["two"], [], [""], [], ["drei: ä", "four"]]
    log.write_bytes(b"x" * log.stat().st_size)  # earlier bytes are not read again
    assert tail.lines() == []
    (tmp_path / "later").write_text("new\n", encoding="utf-8")
    assert later.lines() == ["new"]


def test_the_command_prints_the_next_three_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["site", "init", "s", "--name", "alpha"])
    assert shown.exit_code == 0
    for command in (
        "tacit hub add alpha alpha.key.pub",
        "tacit site check s/site.toml",
        "tacit site join HOST:PORT --site s",
    ):
        assert f"     {command}\n" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    "kind, text, setting",
    [
        (Site, 'nme = "x"', "nme"),
        (Site, 'name = "x"\nport = 0', "port"),
        (Hub, 'host = "a b"', "host"),
        (Hub, 'host = "-a"', "host"),
        (Hub, 'listen = "http://x"', "listen"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(kind: Any, text: str, setting: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind.__name__.lower()}.toml"
    path.write_text(text)
    with pytest.raises(TacitError) as caught:
        load_settings(kind, path)
    assert caught.value.problem.startswith(f"{path}: ")
    assert setting in caught.value.problem


def test_missing_settings_are_refused(tmp_path: Path) -> None:
    with refused("deploy.no-settings"):
        load_settings(Site, tmp_path / "site.toml")
    (tmp_path / "site.toml").write_text('data = "x"')
    with refused("deploy.incomplete-settings"):
        load_settings(Site, tmp_path / "site.toml")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "hub.example.org", "hub", "0.0.0.0"])
def test_a_host_may_be_a_name_or_an_ip_address(host: str, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(f'host = "{host}"')
    assert load_settings(Hub, tmp_path / "hub.toml").host == host
