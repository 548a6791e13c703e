"""A new site's files: every setting explained, keys that Flower takes, nothing overwritten or half-written."""

import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.catalog import settings
from tacit.cli import app
from tacit.deploy import setup
from tacit.deploy.files import Tail, write_new
from tacit.deploy.settings import Hub, Site, load, settings_text
from tacit.errors import TacitError


def test_the_file_says_what_every_setting_means_and_reads_back(tmp_path: Path) -> None:
    written = setup.create(tmp_path / "s", "alpha", tmp_path, insecure=True)
    assert load(Site, written.site) == Site("alpha", data=str(tmp_path))
    text = written.site.read_text(encoding="utf-8")
    for item in settings(Site):
        assert f"# {item.comment}\n" in text
        assert f"{item.name} = " in text
    assert (written.public_key, sorted(path.name for path in (tmp_path / "s").iterdir())) == (None, ["site.toml"])


def test_what_is_not_given_is_there_as_a_comment_with_its_default(tmp_path: Path) -> None:
    text = settings_text(Site, {"name": "alpha"}, "A site.")
    assert tomllib.loads(text) == {"name": "alpha"}
    assert "\n# port = 9094\n" in text


@pytest.mark.parametrize("kind", [Site, Hub])
def test_every_setting_has_a_comment(kind: type) -> None:
    assert [item.name for item in settings(kind) if not item.comment] == []
    assert len(settings(kind)) == len(fields(kind))


def test_the_keys_are_a_pair_for_flower_and_for_nobody_else(tmp_path: Path) -> None:
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    written = setup.create(tmp_path, "alpha", None)
    private = tmp_path / "alpha.key"
    assert private.stat().st_mode & 0o777 == 0o600
    key = forms.load_ssh_private_key(private.read_bytes(), password=None)
    assert key.curve.name == "secp384r1"
    assert written.public_key is not None
    public = forms.load_ssh_public_key(written.public_key.read_bytes())
    assert key.public_key().public_numbers() == public.public_numbers()
    site = load(Site, written.site)
    assert (site.key, site.certificate) == ("alpha.key", "ca.crt")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("mine", encoding="utf-8")
    with pytest.raises(TacitError, match="site.toml is there already: choose another folder"):
        setup.create(tmp_path, "alpha", None, insecure=True)
    assert (tmp_path / "site.toml").read_text(encoding="utf-8") == "mine"


def test_without_the_library_for_keys_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit\[flower\]'"):
        setup.create(tmp_path / "s", "alpha", None)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "name, data, message",
    [("../x", None, "name = '../x' is not possible"), ("alpha", "gone", "there is no file or folder .*gone: check")],
)
def test_a_mistake_leaves_nothing(name: str, data: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=message):
        setup.create(tmp_path / "s", name, None if data is None else tmp_path / data)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_takes_back_what_was_written(tmp_path: Path) -> None:
    too_long = "x" * 300
    with pytest.raises(TacitError, match="can not write to .*: File name too long"):
        write_new(tmp_path / "s", {"first": (b"1", 0o600), too_long: (b"2", 0o600)})
    assert not (tmp_path / "s" / "first").exists()


def test_a_log_is_read_line_by_line_and_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of before\n", encoding="utf-8")
    tail, later = Tail(log), Tail(tmp_path / "later")
    assert (tail.lines(), later.lines()) == ([], [])
    told = []
    for added in ("one\ntw", "o\n", "", "\n", "drei: ä"[:-1], "ä\nfour\n"):
        with log.open("a", encoding="utf-8") as file:
            file.write(added)
        told.append(tail.lines())
    assert told == [["one"], ["two"], [], [""], [], ["drei: ä", "four"]]
    log.write_bytes(b"x" * log.stat().st_size)  # what was told is not looked at again
    assert tail.lines() == []
    (tmp_path / "later").write_text("new\n", encoding="utf-8")
    assert later.lines() == ["new"]


def test_it_tells_the_next_three_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["site", "init", "s", "--name", "alpha"])
    assert said.exit_code == 0
    for command in (
        "tacit hub add alpha alpha.key.pub",
        "tacit site check s/site.toml",
        "tacit site join HOST:PORT --site s",
    ):
        assert f"     {command}\n" in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    "kind, text, message",
    [
        (Site, 'data = "x"', "has no name: set it there"),
        (Site, 'nme = "x"', "site.toml: unknown setting .*'name'"),
        (Site, 'name = "x"\nport = 0', "site.toml: port = 0 is not possible"),
        (Hub, 'host = "a b"', "host = 'a b' is not possible"),
        (Hub, 'host = "-a"', "host = '-a' is not possible"),
        (Hub, 'listen = "http://x"', "listen = 'http://x' is not possible"),
    ],
)
def test_a_settings_file_with_a_mistake_is_named_with_it(kind: Any, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind.__name__.lower()}.toml"
    path.write_text(text)
    with pytest.raises(TacitError, match=message) as raised:
        load(kind, path)
    assert path.name in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "hub.example.org", "hub", "0.0.0.0"])
def test_hosts_may_be_names_and_addresses_of_both_kinds(host: str, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(f'host = "{host}"')
    assert load(Hub, tmp_path / "hub.toml").host == host
