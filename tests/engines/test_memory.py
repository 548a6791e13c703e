"""Client memories, against a plain dict: nothing is lost, nothing is too new, nothing is left lying about."""

import errno
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tacit.engines.memory import Memories, Shelf, write_durably
from tacit.errors import TacitError

CLIENTS = range(5)
MEMORY_DISK = Path("/dev/shm")  # where syncing costs nothing
LARGE = 1 << 30
changes = st.dictionaries(st.sampled_from(CLIENTS), st.binary(min_size=1, max_size=12), max_size=4)


class AgainstADict(RuleBasedStateMachine):
    """Rounds, checkpoints and kills in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
        self.folder = Path(self.place.name) / "memories"
        self.round = 0  # the next one
        self.now: dict[int, bytes] = {}
        self.saved: dict[int, bytes] = {}  # as of the last checkpoint
        self.saved_round = -1

    @initialize(limit=st.sampled_from([0, 1, 10, 25, LARGE]))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.memories = Memories(self.folder, limit)
        self.memories.restore(-1)

    @rule(new=changes)
    def play_a_round(self, new: dict[int, bytes]) -> None:
        self.memories.commit(self.round, new)
        self.now |= new
        self.round += 1

    @rule(client=st.sampled_from(CLIENTS))
    def look(self, client: int) -> None:
        assert self.memories.get(client) == self.now.get(client)

    @precondition(lambda self: self.round > 0)
    @rule()
    def checkpoint(self) -> None:
        self.memories.save()
        self.saved, self.saved_round = dict(self.now), self.round - 1
        self.memories.forget_older()
        assert self.on_disk() == self.now
        assert len(self.files()) == len(self.now)

    @precondition(lambda self: self.round > 0)
    @rule()
    def die_after_the_switch(self) -> None:
        """The new checkpoint is in place; the older files were never deleted."""
        self.memories.save()
        self.saved, self.saved_round = dict(self.now), self.round - 1
        self.die()

    @rule(garbage=st.booleans())
    def die_before_the_switch(self, garbage: bool) -> None:
        """Newer files are there, whole or in part; the checkpoint does not know them."""
        self.memories.save()
        if garbage:
            self.folder.mkdir(exist_ok=True)
            (self.folder / f"3.{self.round}.partial").write_bytes(b"half of a mem")
            (self.folder / "3.0.partial").write_bytes(b"")
        self.die()

    @rule()
    def die(self) -> None:
        """A new object on the same folder, at the last checkpoint."""
        self.memories = Memories(self.folder, self.limit)
        self.memories.restore(self.saved_round)
        self.now, self.round = dict(self.saved), self.saved_round + 1
        assert self.on_disk() == self.now
        assert len(self.files()) == len(self.now)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "memories"):
            assert {client: self.memories.get(client) for client in CLIENTS} == {k: self.now.get(k) for k in CLIENTS}

    @invariant()
    def ram_is_limited(self) -> None:
        """What is not on disk can only be in RAM."""
        disk = self.on_disk()
        only_in_ram = [data for client, data in self.now.items() if disk.get(client) != data]
        assert sum(map(len, only_in_ram)) <= getattr(self, "limit", LARGE)

    @invariant()
    def nothing_is_half_written(self) -> None:
        assert not list(self.folder.glob("*.partial"))

    def files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.exists() else []

    def on_disk(self) -> dict[int, bytes]:
        """The newest file of each client."""
        newest: dict[int, tuple[int, bytes]] = {}
        for path in self.files():
            client, round = map(int, path.name.split("."))
            newest[client] = max(newest.get(client, (-1, b"")), (round, path.read_bytes()))
        return {client: data for client, (_, data) in newest.items()}

    def teardown(self) -> None:
        self.place.cleanup()


AgainstADict.TestCase.settings = settings(
    deadline=None, max_examples=100, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
test_against_a_dict = AgainstADict.TestCase


def test_without_a_limit_a_round_touches_no_disk(tmp_path: Path) -> None:
    memories = Memories(tmp_path / "memories", LARGE)
    memories.commit(0, {1: b"one"})
    assert not (tmp_path / "memories").exists()


def test_only_what_does_not_fit_is_written(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 8)
    memories.commit(0, {1: b"1111", 2: b"2222"})
    assert list(tmp_path.iterdir()) == []
    memories.get(1)  # used last, so 2 goes first
    memories.commit(1, {3: b"3"})
    assert [path.name for path in tmp_path.iterdir()] == ["2.0"]
    memories.commit(2, {4: b"4" * 100})  # larger than everything: nothing stays in RAM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.0", "2.0", "3.1", "4.2"]
    assert [memories.get(k) for k in (1, 2, 3, 4, 5)] == [b"1111", b"2222", b"3", b"4" * 100, None]


def test_a_memory_that_is_replaced_makes_room(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 8)
    for round in range(10):
        memories.commit(round, {1: b"1111", 2: b"2222"})
    assert list(tmp_path.iterdir()) == []


def test_the_checkpointed_memory_outlives_newer_ones_that_are_spilled(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 0)
    memories.commit(0, {1: b"old"})
    memories.save()
    memories.forget_older()
    for round in (1, 2, 3):
        memories.commit(round, {1: b"new"})
    later = Memories(tmp_path, 0)
    later.restore(0)
    assert later.get(1) == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["1.0"]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.rename"])
def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(failing, fail)
    sentence = re.escape(f"{path} can not be written (No space left on device): make room, then resume")
    with pytest.raises(TacitError, match=sentence):
        write_durably(path, b"after and longer")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]  # nor does it take up the room that is missing
    monkeypatch.undo()
    write_durably(path, b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renamed before it is synced, a power cut would leave an empty file under the final name."""
    seen: list[str] = []
    sync, rename = os.fsync, Path.rename

    def seen_sync(handle: int) -> None:
        seen.append("sync")
        sync(handle)

    def seen_rename(path: Path, target: Path) -> Path:
        seen.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    write_durably(tmp_path / "file", b"data")
    assert seen == ["sync", "rename"]


def test_two_visits_of_one_round_do_not_write_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process puts its memory of the same round while this one is about to give its own the final name."""
    shelf, rename = Shelf(tmp_path / "shelf"), Path.rename

    def meanwhile(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", lambda: 12345)
            shelf.put(3, b"theirs")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", meanwhile)
    version = shelf.put(3, b"ours")
    assert shelf.take(version) == b"ours"
    assert [path.name for path in (tmp_path / "shelf").iterdir()] == ["3"]


def test_a_shelf_forgets_what_killed_visits_left_half_written(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    version = shelf.put(5, b"memory")
    for name in ("4.77.partial", "3.partial", "5.78.partial", "6.79.partial", "notes.txt"):
        (tmp_path / name).write_bytes(b"ha")
    assert shelf.take(version) == b"memory"
    # Whoever writes what is not older may still be at it.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "5.78.partial", "6.79.partial", "notes.txt"]


def test_two_visits_that_forget_the_same_versions_do_not_trip_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path)
    shelf.put(1, b"old")
    version = shelf.put(2, b"new")
    listing = list(tmp_path.iterdir())
    (tmp_path / "1").unlink()  # by the other, after this one has looked
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listing))
    assert shelf.take(version) == b"new"
