"""A module of a package is known by what it states; two modules cannot state the same name."""

import sys
from pathlib import Path

import pytest

from tacit.discovery import offered


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "birds.py").write_text("THINGS = {'wren': 1, 'owl': 2}")
    (folder / "parts.py").write_text("wing = 3")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "zoo"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_what_modules_state_is_found_by_alphabet(package: Path) -> None:
    (package / "mammals.py").write_text("THINGS = {'seal': 4}")
    assert list(offered("zoo", [str(package)], "THINGS").items()) == [("owl", 2), ("seal", 4), ("wren", 1)]


def test_a_name_that_two_modules_state_is_refused(package: Path) -> None:
    (package / "more_birds.py").write_text("THINGS = {'owl': 5}")
    with pytest.raises(ValueError, match="two modules of zoo offer owl"):
        offered("zoo", [str(package)], "THINGS")
