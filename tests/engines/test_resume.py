"""Killed at any moment, a run continues from its last checkpoint and ends with the bits of an uninterrupted one."""

import errno
import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest

import tacit
from tacit.engines import checkpoint
from tacit.engines.wire import Codec
from tacit.runs import config as configs
from tacit.runs.experiment import Experiment
from tacit.storage import DiskError
from tests.engines import farm
from tests.refusals import refused

REAL = {
    "method": "scaffold+fixmatch",
    "data": "fashion-small",
    "labels": "client",
    "per_class": 1,
    "clients": 12,
    "cohort": 5,
    "net": "linear",
    "rounds": 16,
    "workers": 2,
    "train.steps": 4,
    "train.batch": 16,
    "engine.memory_mb": 0.1,  # three memories of 31 kB; the others go to disk
}
KILLS = 11  # of each real run
TOOLS = Path(__file__).parent.parent.parent


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    """Three rounds that cost next to nothing and write every memory to disk."""
    data = folder / "images.npz"
    if not data.exists():
        farm.write_images(data)
    values = {"method": "tests.engines.farm:Tally", "data": str(data), "clients": 4, "cohort": 2, "rounds": 3}
    labels = {"labels": "client", "per_class": 1, "net": "linear", "workers": 0, "engine.memory_mb": 1e-6}
    return values | labels | changes


def start_or_resume(folder: Path, settings: dict[str, Any]) -> None:
    """Start a run, or resume it if it exists."""
    if (folder / "config.toml").exists():
        tacit.resume(folder)
    else:
        tacit.run(out=folder, **settings)


@dataclass(frozen=True)
class Remains:
    """What a finished run leaves on disk, without the time it took."""

    records: list[dict[str, Any]]
    checkpoints: dict[str, Any]
    files: dict[str, bytes]


def remains(folder: Path) -> Remains:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    records = [json.loads(line) for line in files.pop("rounds.jsonl").splitlines()]
    for record in records:
        del record["seconds"]
    manifests = {name: json.loads(files.pop(name)) for name in sorted(files) if is_manifest(name)}
    for manifest in manifests.values():
        del manifest["log_bytes"], manifest["digest"]  # the digits of the seconds
    return Remains(records, manifests, files)


def is_manifest(name: str) -> bool:
    return name.startswith("checkpoint/") and name.endswith(".json")


def wait_for(pid: int, seconds: float) -> int | None:
    """The exit code of a child, or None if it still runs after that time."""
    until = time.monotonic() + seconds
    while (code := farm.ended(pid)) is None and time.monotonic() < until:
        time.sleep(0.002)
    return code


@pytest.mark.parametrize("every", [1, 3])
def test_resume_after_real_kills_gives_the_same_bits(tmp_path: Path, every: int) -> None:
    settings = REAL | {"log.checkpoint_every": every}
    began = time.monotonic()
    with farm.forked(partial(start_or_resume, tmp_path / "alone", settings)) as main:
        assert wait_for(main, farm.PATIENCE) == 0
    usual = time.monotonic() - began
    alone = remains(tmp_path / "alone")
    assert len(alone.records) == REAL["rounds"]
    assert sum(name.startswith("checkpoint/memories/") for name in alone.files) > 5
    moments = random.Random(every)
    kills, runs = 0, 0
    while kills < KILLS:
        folder, finished = tmp_path / f"killed-{runs}", False
        runs += 1
        with ExitStack() as stack:
            while not finished:
                main = stack.enter_context(farm.forked(partial(start_or_resume, folder, settings)))
                code = wait_for(main, moments.uniform(0.05, 0.7) * usual if kills < KILLS else farm.PATIENCE)
                if code is None:
                    os.kill(main, signal.SIGKILL)
                    code = os.waitpid(main, 0)[1]
                    assert farm.eventually(partial(is_empty, main)), "orphaned workers did not end"
                assert code in (0, signal.SIGKILL)  # 0: it ended just before the kill
                finished = code == 0
                kills += not finished
        assert remains(folder) == alone
        assert not list(folder.rglob("*.partial*"))


def is_empty(group: int) -> bool:
    return not farm.members(group)


def kill_at(number: int, folder: Path) -> None:
    """From now on, kill this process just before it changes files in a folder for the n-th time."""
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event in ("os.rename", "os.remove", "os.mkdir") or (event == "open" and args[1] not in ("r", "rb"))
        if writes and str(folder) in str(args[0]):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)  # for good: only ever in a child


@pytest.fixture
def fast() -> Iterator[Path]:
    """A folder where syncing costs nothing, for hundreds of small runs."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("every", [1, 2])
def test_resume_after_a_kill_before_any_file_change_gives_the_same_bits(fast: Path, every: int) -> None:
    """Before each rename, deletion and opening for writing, of the folder, the checkpoints and the model."""
    settings = tiny(fast, **{"log.checkpoint_every": every})
    start_or_resume(fast / "alone", settings)
    alone = remains(fast / "alone")

    def work(number: int, folder: Path) -> None:
        kill_at(number, folder)
        start_or_resume(folder, settings)

    for number in range(1, 1000):
        folder = fast / f"killed-{number}"
        with farm.forked(partial(work, number, folder)) as main:
            code = wait_for(main, farm.PATIENCE)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        start_or_resume(folder, settings)
        assert remains(folder) == alone, f"killed before change {number}"
    assert number > 30


WATCHED = ("experiment.py", "directory.py", "checkpoint.py", "memory.py", "rounds.py", "job.py")


def interrupt_at(number: int) -> None:
    """From now on, press Ctrl-C before the n-th line of the modules that write a run's files."""
    count = 0

    def line(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        if count == number and event == "line":
            sys.settrace(None)
            raise KeyboardInterrupt
        return line

    def call(frame: FrameType, _: str, __: object) -> Any:
        return line if Path(frame.f_code.co_filename).name in WATCHED else None

    sys.settrace(call)


def test_resume_after_ctrl_c_at_any_line_gives_the_same_bits(fast: Path) -> None:
    """At a sample of the lines of a run; the checkpoint and the log must agree after each."""
    settings = tiny(fast)
    start_or_resume(fast / "alone", settings)
    alone = remains(fast / "alone")

    def work(number: int, folder: Path) -> None:
        interrupt_at(number)
        start_or_resume(folder, settings)

    draw, codes = random.Random(0), set()
    for number in sorted(draw.sample(range(1, 900), 30)):
        folder = fast / f"killed-{number}"
        with farm.forked(partial(work, number, folder)) as main:
            codes.add(wait_for(main, farm.PATIENCE))
        start_or_resume(folder, settings)
        assert remains(folder) == alone, f"interrupted at line {number}"
    assert codes == {1}, "some were not interrupted at all"


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("full", ["rounds.jsonl", "state.2", "latest.json", "model.safetensors"])
def test_a_full_disk_costs_the_rounds_since_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, every: int
) -> None:
    """A file that cannot be written is not tried a second time, and the earlier files stay complete."""
    settings = tiny(tmp_path, **{"log.checkpoint_every": every})
    start_or_resume(tmp_path / "alone", settings)
    tried: list[str] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink().name.removesuffix(".partial")
        if name == full:
            tried.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    rounds = Experiment.create(configs.from_options(settings), tmp_path / "full").rounds()
    next(rounds)
    monkeypatch.setattr(os, "fsync", fsync)
    with refused("storage.disk-full") as caught:
        list(rounds)
    assert f"/{full}: No space left on device" in caught.error.problem
    assert caught.error.resumable
    assert "`tacit resume " in caught.error.remedy
    assert tried == [full]
    assert not list((tmp_path / "full").rglob("*.partial"))
    monkeypatch.undo()
    start_or_resume(tmp_path / "full", settings)
    assert remains(tmp_path / "full") == remains(tmp_path / "alone")


def test_a_log_that_cannot_grow_is_a_full_disk_too(tmp_path: Path) -> None:
    """For real: the system does not let files grow, also when the log is closed."""
    settings = tiny(tmp_path)
    start_or_resume(tmp_path / "alone", settings)

    def work() -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        rounds = Experiment.create(configs.from_options(settings), tmp_path / "full").rounds()
        next(rounds)
        size = (tmp_path / "full/rounds.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        with refused("storage.disk-full"):
            next(rounds)

    with farm.forked(work) as main:
        assert wait_for(main, farm.PATIENCE) == 0
    start_or_resume(tmp_path / "full", settings)
    assert remains(tmp_path / "full") == remains(tmp_path / "alone")


def press_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_between_a_round_and_its_log_line_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path)
    start_or_resume(tmp_path / "alone", settings)
    monkeypatch.setattr("tacit.runs.directory.RoundLog.append", press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        start_or_resume(tmp_path / "stopped", settings)
    monkeypatch.undo()
    start_or_resume(tmp_path / "stopped", settings)
    assert remains(tmp_path / "stopped") == remains(tmp_path / "alone")


def waiting(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run that waits at its clients until the file `wait` in a folder is gone."""
    (folder / "wait").touch()
    method = {"method": "tests.engines.farm:Waiting", "method.folder": str(folder), "workers": 2}
    return tiny(folder, **method, **changes)


def test_a_killed_run_can_be_resumed_while_its_workers_are_busy(tmp_path: Path) -> None:
    """Workers are forks of the main process; they must not hold its lock."""
    settings, folder = waiting(tmp_path), tmp_path / "run"
    with farm.forked(partial(start_or_resume, folder, settings)) as main:
        assert farm.eventually((tmp_path / "waits").exists)
        os.kill(main, signal.SIGKILL)
        assert os.waitpid(main, 0)[1] == signal.SIGKILL
        config = folder / "config.toml"
        config.write_text(config.read_text().replace(f'folder = "{tmp_path}"', 'folder = "/nowhere"'))
        about = json.loads((folder / "run.json").read_text())
        changed = configs.make(tomllib.loads(config.read_text()))
        about["outcome"] = changed.fingerprints().outcome  # otherwise the change would be noticed
        (folder / "run.json").write_text(json.dumps(about))
        assert len(tacit.resume(folder).history) == 3
        assert farm.members(main), "the orphans were not busy at all"
        (tmp_path / "wait").unlink()
        assert farm.eventually(partial(is_empty, main))


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    settings, folder = waiting(tmp_path), tmp_path / "run"
    with farm.forked(partial(start_or_resume, folder, settings)) as main:
        assert farm.eventually((tmp_path / "waits").exists)
        before = sorted(folder.rglob("*"))
        with refused("run.locked"):
            tacit.resume(folder)
        assert sorted(folder.rglob("*")) == before
        (tmp_path / "wait").unlink()
        assert wait_for(main, farm.PATIENCE) == 0
    assert tacit.resume(folder).history[-1]["round"] == 2


def test_a_second_experiment_in_the_same_process_is_refused(tmp_path: Path) -> None:
    experiment = Experiment.create(configs.from_options(tiny(tmp_path)), tmp_path / "run")
    rounds = experiment.rounds()
    next(rounds)
    with refused("run.locked"):
        next(Experiment.reopen(tmp_path / "run").rounds())
    assert len(list(rounds)) == 2


def test_testing_the_lock_does_not_block_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Experiment.create(configs.from_options(tiny(tmp_path)), tmp_path / "run")
    with (run.folder / "config.toml").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not run.directory.is_running()  # a second reader is not taken for a running process
        monkeypatch.setattr(time, "sleep", lambda seconds: reader.close())
        rounds = run.rounds()
        next(rounds)
    assert run.directory.is_running()
    rounds.close()
    assert not run.directory.is_running()


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    done = tacit.run(out=tmp_path / "run", **tiny(tmp_path))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = tacit.resume(tmp_path / "run")
    assert again.history == done.history
    assert again.accuracy == done.accuracy
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_lost_model_is_written_again(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **tiny(tmp_path))
    model = tmp_path / "run" / "model.safetensors"
    data = model.read_bytes()
    model.unlink()
    tacit.resume(tmp_path / "run")
    assert model.read_bytes() == data


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_checkpoints_are_saved_as_often_as_configured_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    saved: list[int] = []
    save = checkpoint.save

    def spy(folder: Path, run_state: Any, codec: Codec, log_bytes: int, keep: int) -> None:
        saved.append(run_state.round)
        save(folder, run_state, codec, log_bytes, keep)
        state = codec.decode((folder / f"state.{run_state.round}").read_bytes())
        assert sum(state.visits.values()) == 2 * run_state.round
        lines = (folder.parent / "rounds.jsonl").read_bytes()[:log_bytes].splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(run_state.round))

    monkeypatch.setattr(checkpoint, "save", spy)
    tacit.run(**tiny(tmp_path, rounds=4, **{"log.checkpoint_every": every}))
    assert saved == sorted({round for round in range(1, 5) if round % every == 0} | {4})


def test_everything_a_checkpoint_points_to_is_synced_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses what was not synced, so latest.json must come last."""
    synced: set[str] = set()
    switched: list[int] = []
    sync, rename = os.fsync, Path.rename

    def seen_sync(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()).removesuffix(".partial"))
        sync(handle)

    def seen_rename(path: Path, target: Path) -> Path:
        if target.name == "latest.json":
            latest = json.loads(path.read_bytes())
            needed = {target, target.parent / latest["state"], target.parent.parent / "rounds.jsonl"}
            needed |= set((target.parent / "memories").iterdir()) | {target.parent / "memories"}
            assert {str(file) for file in needed} <= synced
            switched.append(latest["round"])
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    tacit.run(out=tmp_path / "run", **tiny(tmp_path))
    assert switched == [1, 2, 3]


def test_a_failed_checkpoint_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the first, second, third … write of a checkpoint."""
    sync, finished = os.fsync, []
    for number in range(1, 100):
        folder = unfinished(tmp_path / str(number))
        left = number

        def full(handle: int) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                raise OSError(28, "No space left on device")
            sync(handle)

        with monkeypatch.context() as patch, suppress(DiskError):
            patch.setattr(os, "fsync", full)
            next(Experiment.reopen(folder).rounds())
            break
        finished.append(Experiment.reopen(folder).finished_rounds())
        assert len(tacit.resume(folder).history) == 3
    assert number > 4
    assert set(finished[:-1]) == {2}
    assert finished[-1] == 3  # the last sync is the folder's, when the new checkpoint is already complete


def test_closing_early_saves_the_finished_rounds(tmp_path: Path) -> None:
    config = configs.from_options(tiny(tmp_path, **{"log.checkpoint_every": 3}))
    experiment = Experiment.create(config, tmp_path / "run")
    rounds = experiment.rounds()
    next(rounds)
    next(rounds)
    assert experiment.finished_rounds() == 0
    rounds.close()
    assert experiment.finished_rounds() == 2
    assert [record.round for record in Experiment.reopen(tmp_path / "run").rounds()] == [2]


def unfinished(folder: Path) -> Path:
    """A run of three rounds that stopped after two."""
    folder.mkdir(exist_ok=True)
    rounds = Experiment.create(configs.from_options(tiny(folder)), folder / "run").rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    return folder / "run"


FLIPPED = b"one bit is flipped"
BROKEN = {
    "checkpoint/latest.json": "run.broken-checkpoint",
    "checkpoint/state.2": "run.broken-checkpoint",
    "rounds.jsonl": "run.broken-log",
    "run.json": "run.broken",
    "split.json": "run.broken-split",
    "config.toml": "run.broken-config",
}


@pytest.mark.parametrize(
    "name, damage",
    [
        ("checkpoint/latest.json", b""),
        ("checkpoint/latest.json", b"{"),
        ("checkpoint/latest.json", b"[]"),
        ("checkpoint/latest.json", b"\xff\xfe"),
        ("checkpoint/latest.json", b'{"round": 2}'),
        ("checkpoint/latest.json", b'{"round": "x", "state": "state.2", "log_bytes": 0, "local_accuracy": {}}'),
        ("checkpoint/latest.json", b'{"round": 2, "state": "state.7", "log_bytes": 0, "local_accuracy": {}}'),
        ("checkpoint/state.2", b""),
        ("checkpoint/state.2", b"\x02\x00\x00\x00[]"),
        ("checkpoint/state.2", None),
        ("checkpoint/state.2", FLIPPED),
        ("rounds.jsonl", b""),
        ("rounds.jsonl", None),
        ("run.json", b"{"),
        ("split.json", b"{}"),
        ("split.json", None),
        ("config.toml", b"rounds ="),
        ("config.toml", None),
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, name: str, damage: bytes | None) -> None:
    folder = unfinished(tmp_path)
    if damage is None:
        (folder / name).unlink()
    elif damage == FLIPPED:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1  # in the values of a tensor, where nothing else would notice
        (folder / name).write_bytes(data)
    else:
        (folder / name).write_bytes(damage)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with refused("run.none" if (name, damage) == ("config.toml", None) else BROKEN[name]) as caught:
        tacit.resume(folder)
    assert "\n" not in str(caught.error)
    assert str(folder) in str(caught.error)
    if name != "rounds.jsonl":
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_the_finished_rounds_of_a_damaged_checkpoint_are_not_guessed(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    experiment = Experiment.reopen(folder)
    assert experiment.finished_rounds() == 2
    (folder / "checkpoint/latest.json").write_bytes(b"{")
    with refused("run.broken-checkpoint"):
        experiment.finished_rounds()


def test_resume_with_another_number_of_workers_gives_the_same_bits(tmp_path: Path) -> None:
    settings = tiny(tmp_path, method="scaffold", **{"train.steps": 2})
    tacit.run(out=tmp_path / "alone", **settings)
    rounds = Experiment.create(configs.from_options(settings), tmp_path / "run").rounds()
    next(rounds)
    rounds.close()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("workers = 0", "workers = 2"))
    tacit.resume(tmp_path / "run")
    here, there = remains(tmp_path / "run"), remains(tmp_path / "alone")
    assert here.records == there.records
    assert {k: v for k, v in here.files.items() if k != "config.toml"} == {
        k: v for k, v in there.files.items() if k != "config.toml"
    }


def test_ctrl_c_on_the_command_line_names_the_resume_command(tmp_path: Path) -> None:
    """As in a terminal, the signal goes to the main process and to its workers."""
    settings = waiting(tmp_path, **{"method.after": 1})
    options = [f"--set={name}={value}" for name, value in settings.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "run", "--json", "--out", str(tmp_path / "run"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=TOOLS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS / "src"), str(TOOLS)])},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["round"] == 0
        assert farm.eventually((tmp_path / "waits").exists)
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "wait").unlink()
        _, stderr = process.communicate(timeout=farm.PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130
    (line,) = stderr.decode().splitlines()
    assert line.startswith("stopped after round 1 of 3")
    assert f"tacit resume {tmp_path / 'run'}" in line
    assert farm.eventually(partial(is_empty, process.pid))
    assert Experiment.reopen(tmp_path / "run").finished_rounds() == 1
    tacit.resume(tmp_path / "run")
    tacit.run(out=tmp_path / "alone", **settings)
    assert remains(tmp_path / "run") == remains(tmp_path / "alone")
