"""Client memories, compared with a plain dict: no memory is lost or too new, and no file is left over."""

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tacit.engines.memory import VERSION_BYTES, Index, Memories, MemoryStore
from tacit.storage import write_durably
from tests.refusals import refused

CLIENTS = range(5)
MEMORY_DISK = Path("/dev/shm")  # where syncing costs nothing
LARGE = 1 << 30
changes = st.dictionaries(st.sampled_from(CLIENTS), st.binary(min_size=1, max_size=12), max_size=4)


class AgainstADict(RuleBasedStateMachine):
    """Rounds, checkpoints and kills in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
        self.folder = Path(self.temporary.name) / "memories"
        self.round = 0  # the next one
        self.now: dict[int, bytes] = {}
        self.saved: dict[int, bytes] = {}  # as of the last checkpoint
        self.saved_round = -1
        self.index: Index = {}  # of the last checkpoint …
        self.before: tuple[Index, dict[int, bytes], int] | None = None  # … and all of the one before, if it is kept

    @initialize(limit=st.sampled_from([0, 1, 10, 25, LARGE]))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.memories = Memories(self.folder, limit)
        self.memories.restore({})

    @rule(new=changes)
    def run_a_round(self, new: dict[int, bytes]) -> None:
        self.memories.commit(self.round, new)
        self.now |= new
        self.round += 1

    @rule(client=st.sampled_from(CLIENTS))
    def read(self, client: int) -> None:
        assert self.memories.get(client) == self.now.get(client)

    @precondition(lambda self: self.round > 0)
    @rule()
    def checkpoint(self) -> None:
        self.switch()
        self.memories.prune(self.kept())
        assert self.on_disk() == self.now
        assert self.files_match()

    @precondition(lambda self: self.round > 0)
    @rule()
    def die_after_the_switch(self) -> None:
        """The new checkpoint is in place; the older files are not deleted yet."""
        self.switch()
        self.die()

    def switch(self) -> None:
        self.before = self.index, self.saved, self.saved_round
        self.index = self.memories.save()
        self.saved, self.saved_round = dict(self.now), self.round - 1

    def kept(self) -> list[Index]:
        return [self.index, *([self.before[0]] if self.before else [])]

    @rule(garbage=st.booleans())
    def die_before_the_switch(self, garbage: bool) -> None:
        """There are newer files, complete or partial, that the checkpoint does not know."""
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
        self.memories.restore(self.index, self.kept()[1:])
        self.now, self.round = dict(self.saved), self.saved_round + 1
        assert self.on_disk() == self.now
        assert self.files_match()

    @precondition(lambda self: self.before is not None)
    @rule()
    def return_to_the_checkpoint_before(self) -> None:
        """Its memories are all there, whatever was committed since."""
        assert self.before is not None
        self.index, self.saved, self.saved_round = self.before
        self.before = None
        self.die()

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

    def files_match(self) -> bool:
        """Every file belongs to a checkpoint that is kept, and none is missing."""
        wanted = {f"{client}.{round}" for index in self.kept() for client, (round, _) in index.items()}
        return {path.name for path in self.files()} == wanted

    def on_disk(self) -> dict[int, bytes]:
        """The newest file of each client."""
        newest: dict[int, tuple[int, bytes]] = {}
        for path in self.files():
            client, round = map(int, path.name.split("."))
            newest[client] = max(newest.get(client, (-1, b"")), (round, path.read_bytes()))
        return {client: data for client, (_, data) in newest.items()}

    def teardown(self) -> None:
        self.temporary.cleanup()


AgainstADict.TestCase.settings = settings(
    deadline=None, max_examples=100, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
test_against_a_dict = AgainstADict.TestCase


def test_below_the_limit_a_round_writes_nothing(tmp_path: Path) -> None:
    memories = Memories(tmp_path / "memories", LARGE)
    memories.commit(0, {1: b"one"})
    assert not (tmp_path / "memories").exists()


def test_only_memories_beyond_the_limit_are_written(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 8)
    memories.commit(0, {1: b"1111", 2: b"2222"})
    assert list(tmp_path.iterdir()) == []
    memories.get(1)  # used last, so 2 is evicted first
    memories.commit(1, {3: b"3"})
    assert [path.name for path in tmp_path.iterdir()] == ["2.0"]
    memories.commit(2, {4: b"4" * 100})  # larger than everything: nothing stays in RAM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.0", "2.0", "3.1", "4.2"]
    assert [memories.get(k) for k in (1, 2, 3, 4, 5)] == [b"1111", b"2222", b"3", b"4" * 100, None]


def test_a_replaced_memory_does_not_count_twice(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 8)
    for round in range(10):
        memories.commit(round, {1: b"1111", 2: b"2222"})
    assert list(tmp_path.iterdir()) == []


def test_newer_memories_on_disk_do_not_replace_the_checkpointed_one(tmp_path: Path) -> None:
    memories = Memories(tmp_path, 0)
    memories.commit(0, {1: b"old"})
    index = memories.save()
    for round in (1, 2, 3):
        memories.commit(round, {1: b"new"})
    later = Memories(tmp_path, 0)
    later.restore(index)
    assert later.get(1) == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["1.0"]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.rename"])
def test_a_failed_write_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(failing, fail)
    with refused("storage.disk-full"):
        write_durably(path, b"after and longer")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]  # the partial file is gone too, since the disk is full
    monkeypatch.undo()
    write_durably(path, b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave an empty file under the final name."""
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


def test_two_processes_that_save_the_same_round_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process saves its memory of the same round just before this one renames its file."""
    store, rename = MemoryStore(tmp_path / "store"), Path.rename

    def meanwhile(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", lambda: 12345)
            store.save(3, b"theirs")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", meanwhile)
    version = store.save(3, b"ours")
    assert store.load(version) == b"ours"
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["3"]


def test_loading_deletes_partial_files_of_older_rounds(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    version = store.save(5, b"memory")
    for name in ("4.77.partial", "3.partial", "5.78.partial", "6.79.partial", "notes.txt"):
        (tmp_path / name).write_bytes(b"ha")
    assert store.load(version) == b"memory"
    # Another process may still be writing what is not older.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "5.78.partial", "6.79.partial", "notes.txt"]


def test_two_processes_may_delete_the_same_old_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(tmp_path, keep=1)
    store.save(1, b"old")
    version = store.save(2, b"new")
    listing = list(tmp_path.iterdir())
    (tmp_path / "1").unlink()  # by the other process, after this one has listed the folder
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listing))
    assert store.load(version) == b"new"


def test_a_store_has_every_version_the_server_may_still_ask_for(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    store = MemoryStore(folder, keep=2)
    versions = [store.save(round, bytes([round])) for round in (3, 5, 6, 9)]
    assert store.load(versions[1]) == bytes([5])  # the replies of rounds 6 and 9 were lost
    assert store.load(versions[3]) == bytes([9])
    assert store.load(versions[2]) == bytes([6])  # the server returned to an earlier checkpoint
    assert sorted(path.name for path in folder.iterdir()) == ["6", "9"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "9").stat().st_mode & 0o777 == 0o600
    assert all(len(version) <= VERSION_BYTES for version in versions)
    with refused("engine.memory-missing") as caught:
        store.load(versions[0])
    assert "the memory of round 4" in caught.error.problem


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "another course"])
def test_a_store_refuses_a_memory_that_was_changed(tmp_path: Path, change: str) -> None:
    store = MemoryStore(tmp_path)
    version, path = store.save(4, b"a memory"), tmp_path / "4"
    data = path.read_bytes()
    if change == "another course":  # the run was played again from an earlier round, and this reply was lost
        store.save(4, b"other bits")
    else:
        path.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-3], "empty": b""}[change])
    with refused("engine.memory-changed"):
        store.load(version)


@pytest.mark.parametrize("version", [b"", b"4", b"../../etc/passwd", b"4:" + b"g" * 32, b"-1:" + b"0" * 32])
def test_a_store_refuses_what_is_no_version(tmp_path: Path, version: bytes) -> None:
    with refused("engine.bad-memory-version"):
        MemoryStore(tmp_path).load(version)


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "delete"])
def test_a_memory_that_was_changed_is_refused_before_anything_is_deleted(tmp_path: Path, change: str) -> None:
    memories = Memories(tmp_path, LARGE)
    memories.commit(0, {1: b"one", 2: b"two"})
    index = memories.save()
    (tmp_path / "7.9").write_bytes(b"newer than the checkpoint")
    path = tmp_path / "2.0"
    if change == "delete":
        path.unlink()
    else:
        path.write_bytes({"flip": b"twp", "cut": b"tw", "empty": b""}[change])
    with refused("run.broken-checkpoint") as caught:
        Memories(tmp_path, LARGE).restore(index)
    assert str(path) in caught.error.problem
    assert (tmp_path / "7.9").exists()


def test_files_that_are_not_memories_stay(tmp_path: Path) -> None:
    names = ["x.3", "notes.txt", "1.x", "-1.2", "1.2.3", "a.partial"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "4.4").mkdir()
    (tmp_path / "5.5").write_bytes(b"of no checkpoint")
    Memories(tmp_path, LARGE).restore({})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "4.4"])
