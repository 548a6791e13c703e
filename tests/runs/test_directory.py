"""The folder of a run: its files and their schema, runs of older and newer versions, new folders, and the lock."""

import errno
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import tacit
from tacit import storage
from tacit.report import history
from tacit.runs import config as configs
from tacit.runs.directory import SCHEMA, RunDirectory, fingerprint, folders, layout
from tacit.runs.experiment import Experiment
from tests.engines import farm
from tests.refusals import refused


def options(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two rounds over three clients, in this process."""
    small = {"data": str(folder / "images.npz"), "labels": "client", "per_class": 2, "clients": 3, "rounds": 2}
    return small | {"net": "linear", "workers": 0, "method": "fedavg+supervised"} | changes


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    farm.write_images(tmp_path / "images.npz", 60, 15)
    tacit.run(out=tmp_path / "run", **options(tmp_path))
    return tmp_path / "run"


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The folder of a run that stopped after its first round."""
    farm.write_images(tmp_path / "images.npz", 60, 15)
    rounds = Experiment.create(configs.from_options(options(tmp_path)), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    return tmp_path / "run"


@pytest.mark.parametrize("exists", [False, True])
def test_only_the_owner_enters_a_run_from_its_first_file_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    farm.write_images(tmp_path / "images.npz", 60, 15)
    folder, modes = tmp_path / "runs" / "a", list[int]()
    if exists:
        folder.mkdir(parents=True)
    write_text = Path.write_text

    def note_mode(path: Path, *given: Any, **more: Any) -> int:
        modes.append(path.parent.stat().st_mode & 0o777)
        return write_text(path, *given, **more)

    monkeypatch.setattr(Path, "write_text", note_mode)
    Experiment.create(configs.from_options(options(tmp_path)), folder)
    assert set(modes) == {0o700}
    assert folder.stat().st_mode & 0o777 == 0o700


def change_run_json(folder: Path, **changes: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def as_version_0_1(folder: Path) -> Path:
    """Turn a run into one of Tacit 0.1, which wrote no run.json and put the config's hash into split.json."""
    (folder / "run.json").unlink()
    config = RunDirectory(folder).config()
    split = json.loads((folder / "split.json").read_text())
    split["config"] = fingerprint(config, ("engine", "track"))
    (folder / "split.json").write_text(json.dumps(split))
    (folder / "checkpoint" / "state.2").unlink(missing_ok=True)  # in a format that this version does not read
    return folder


# --- schema and fingerprints ------------------------------------------------------------------------------------------


def test_a_new_run_has_the_schema_the_version_and_the_fingerprints(finished: Path) -> None:
    about = json.loads((finished / "run.json").read_text())
    expected = configs.make(RunDirectory(finished).config()).fingerprints()
    assert about == {"schema": SCHEMA, "tacit": tacit.__version__} | vars(expected)
    assert RunDirectory(finished).schema() == SCHEMA
    assert RunDirectory(finished).fingerprints() == expected


def test_runs_that_differ_in_the_seed_have_equal_settings_fingerprints(tmp_path: Path) -> None:
    farm.write_images(tmp_path / "images.npz", 60, 15)
    places = [tmp_path / f"seed-{seed}" for seed in (0, 1)]
    for seed, place in enumerate(places):
        Experiment.create(configs.from_options(options(tmp_path, seed=seed)), place)
    first, second = (RunDirectory(place).fingerprints() for place in places)
    assert first.settings == second.settings
    assert first.outcome != second.outcome


def test_a_finished_run_of_version_0_1_can_be_read(finished: Path) -> None:
    before = tacit.resume(finished)
    old = as_version_0_1(finished)
    assert RunDirectory(old).schema() == 1
    assert history.load(old).steps == sum(record["steps"] for record in before.history)
    assert Experiment.reopen(old).result().history == before.history
    assert tacit.resume(old).accuracy == before.accuracy


def test_resume_writes_the_outputs_that_a_run_of_version_0_1_lacks(finished: Path) -> None:
    before = RunDirectory(finished).predictions()
    assert before is not None
    old = RunDirectory(as_version_0_1(finished))
    old.predictions_file.unlink()
    tacit.resume(old.path)
    after = old.predictions()
    assert after is not None
    assert (after.logits == before.logits).all()


def test_an_unfinished_run_of_version_0_1_is_not_resumed(started: Path) -> None:
    old = as_version_0_1(started)
    with refused("run.older-version"):
        tacit.resume(old)
    assert len(history.load(old).rounds) == 1, "a report can still read it"


def test_a_changed_config_of_version_0_1_is_noticed(finished: Path) -> None:
    config = as_version_0_1(finished) / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.02", 1))
    with refused("run.config-changed"):
        tacit.resume(finished)


def test_a_run_from_before_a_section_and_a_setting_existed_goes_on(finished: Path) -> None:
    """As an older version wrote it: both files lack them, and the fingerprint is that of what was there."""
    config = configs.make(configs.read(finished / "config.toml"))
    older = config.tree(*configs.OUTCOME)
    del older["protect"], older["train"]["nesterov"]
    change_run_json(finished, outcome=fingerprint(older))
    written = configs.read(finished / "config.toml")
    del written["protect"], written["train"]["nesterov"]
    (finished / "config.toml").write_text(tomli_w.dumps(written))
    assert tacit.resume(finished).config == config
    written["train"]["lr"] = 0.5
    (finished / "config.toml").write_text(tomli_w.dumps(written))
    with refused("run.config-changed"):
        tacit.resume(finished)


def test_two_seeds_of_version_0_1_have_equal_settings_fingerprints(finished: Path) -> None:
    old = as_version_0_1(finished)
    first = RunDirectory(old).fingerprints()
    (old / "config.toml").write_text((old / "config.toml").read_text().replace("seed = 0", "seed = 1", 1))
    assert RunDirectory(old).fingerprints().settings == first.settings


def test_a_run_of_a_newer_version_is_refused(finished: Path) -> None:
    change_run_json(finished, schema=SCHEMA + 1, tacit="9.9")
    with refused("run.newer-version") as caught:
        tacit.resume(finished)
    assert "9.9" in caught.error.problem


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": "two"}', "\x00"])
def test_a_broken_run_json_is_refused(finished: Path, text: str) -> None:
    (finished / "run.json").write_text(text)
    with refused("run.broken"):
        tacit.resume(finished)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_line_that_is_still_being_written_is_not_read(finished: Path) -> None:
    run = RunDirectory(finished)
    with run.rounds_file.open("a") as file:
        file.write('{"round": 2, "sec')
    assert [record.round for record in run.rounds()] == [0, 1]


def test_a_log_that_lost_rounds_is_refused(started: Path) -> None:
    RunDirectory(started).rounds_file.write_bytes(b"")
    with refused("run.broken-log"):
        tacit.resume(started)


def test_a_note_is_read_back_and_a_broken_one_ignored(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_note("cell.json") is None
    run.write_note("cell.json", {"row": "fedavg", "seed": 3})
    assert run.read_note("cell.json") == {"row": "fedavg", "seed": 3}
    for text in ("{", "[]", "\x00"):
        (tmp_path / "cell.json").write_text(text)
        assert run.read_note("cell.json") is None


def test_the_resume_command_quotes_the_folder() -> None:
    assert RunDirectory(Path("my run")).resume_command == "tacit resume 'my run'"


def test_runs_are_found_in_comparisons_and_benchmarks_but_not_those_moved_aside(tmp_path: Path) -> None:
    for name in ("a/seed-0", "a/b/c", "a/b/c.old-1", ".partial"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
    assert folders.find_runs(tmp_path) == [tmp_path / "a/b/c", tmp_path / "a/seed-0"]
    assert folders.find_runs(tmp_path / "a/b/c") == [tmp_path / "a/b/c"]


# --- new folders ------------------------------------------------------------------------------------------------------


def test_two_new_folders_with_the_same_name_get_different_paths(tmp_path: Path) -> None:
    with folders.fresh("fedavg+fixmatch", tmp_path) as one, folders.fresh("fedavg+fixmatch", tmp_path) as other:
        assert [path.name for path in (one, other)] == ["fedavg+fixmatch", "fedavg+fixmatch-2"]
        (other / "config.toml").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg+fixmatch-2"], "an empty one is removed"


def test_the_parent_of_an_unused_folder_is_removed_only_if_it_was_new(tmp_path: Path) -> None:
    for _ in range(2):
        with folders.fresh("a", tmp_path / "runs"):
            pass
        assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    with folders.fresh("a", tmp_path / "runs"):
        pass
    assert (tmp_path / "runs").exists()


def test_a_name_with_special_characters_becomes_one_folder(tmp_path: Path) -> None:
    with folders.fresh("../my lab:Mine", tmp_path) as place:
        assert place == tmp_path / "..-my-lab-Mine"


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with refused("storage.cannot-write"), folders.fresh("a", tmp_path / "runs"):
        pass


# --- lock -------------------------------------------------------------------------------------------------------------


def test_a_run_is_not_run_twice_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PAUSES", ())
    (tmp_path / "config.toml").touch()
    assert not RunDirectory(tmp_path).is_running()
    with RunDirectory(tmp_path).lock():
        assert RunDirectory(tmp_path).is_running()
        with refused("run.locked"), RunDirectory(tmp_path).lock():
            pass


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "config.toml").touch()
    with refused("storage.no-locks"), RunDirectory(tmp_path).lock():
        pass
    with refused("storage.no-locks"):
        RunDirectory(tmp_path).is_running()


@pytest.mark.parametrize(
    "names, expected",
    [
        ({"config.toml", "run.json"}, True),
        ({"config.toml", "rounds.jsonl"}, True),  # of 0.1
        ({"config.toml"}, False),  # anyone's
        ({"run.json", "split.json"}, False),
        (set(), False),
    ],
)
def test_a_config_and_what_a_run_writes_make_a_run(names: set[str], expected: bool) -> None:
    assert layout.is_run(names) is expected


def test_a_folder_tells_what_the_run_is_a_part_of(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.purpose() is None
    run.write_note(layout.TRIAL, {})
    assert run.purpose() == "search"
    run.write_note(layout.CELL, {})
    assert run.purpose() == "benchmark"


def test_changes_of_a_run_are_visible_from_outside(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = run.changes()
    assert (run.log_changed(), run.last_sign(), run.early_end()) == (0, None, None)
    run.write_end(3, "no gain")
    assert run.changes() != before
    assert run.changes() == run.changes()
    assert run.early_end() == 3
    run.rounds_file.touch()
    assert run.last_sign() == run.log_changed() / 1e9
