"""Folders of runs: a new one is nobody else's, and who plays a run is known."""

import errno
import fcntl
from pathlib import Path

import pytest

from tacit import folders
from tacit.errors import TacitError


def test_two_who_ask_at_once_get_two_folders(tmp_path: Path) -> None:
    with folders.fresh("fedavg+fixmatch", tmp_path) as one, folders.fresh("fedavg+fixmatch", tmp_path) as other:
        assert [path.name for path in (one, other)] == ["fedavg+fixmatch", "fedavg+fixmatch-2"]
        (other / "config.toml").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg+fixmatch-2"], "an empty one goes away"


def test_the_folder_of_all_runs_goes_only_if_it_came_with_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        with folders.fresh("a", tmp_path / "runs"):
            pass
        assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    with folders.fresh("a", tmp_path / "runs"):
        pass
    assert (tmp_path / "runs").exists()


def test_a_name_is_one_folder(tmp_path: Path) -> None:
    with folders.fresh("../my lab:Mine", tmp_path) as place:
        assert place == tmp_path / "..-my-lab-Mine"


def test_a_place_that_can_hold_no_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with (
        pytest.raises(TacitError, match="can not write to .*/runs/a: Not a directory; choose another --out"),
        folders.fresh("a", tmp_path / "runs"),
    ):
        pass


def test_a_run_that_is_played_is_not_played_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PAUSES", ())
    (tmp_path / "config.toml").touch()
    assert not folders.being_played(tmp_path)
    with folders.locked(tmp_path):
        assert folders.being_played(tmp_path)
        with pytest.raises(TacitError, match="another process is running"), folders.locked(tmp_path):
            pass


def test_a_file_system_without_locks_is_not_taken_for_another_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "config.toml").touch()
    with (
        pytest.raises(TacitError, match=r"has no locks \(No locks available\): move the run"),
        folders.locked(tmp_path),
    ):
        pass
    with pytest.raises(TacitError, match="has no locks"):
        folders.being_played(tmp_path)
