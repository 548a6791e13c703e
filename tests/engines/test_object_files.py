"""The SuperLink's store of message parts: large ones are in files, with the behaviour of Flower's own stores."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.app import Array, ArrayRecord
from flwr.supercore import sql_mixin
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import NoObjectInStoreError, object_store_factory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from tacit.engines.flower import object_files
from tacit.engines.flower.object_files import FileObjectStore

pytestmark = pytest.mark.flower


def record(seed: int, shared: int = 0) -> ArrayRecord:
    """A large array and one that records with the same `shared` have in common."""
    draw = np.random.default_rng(seed).random(300_000, dtype=np.float32)
    common = np.random.default_rng(1000 + shared).random(30_000, dtype=np.float32)
    return ArrayRecord({"own": Array(draw), "common": Array(common)})


def stored(store: Any, run: int, item: ArrayRecord) -> dict[str, bytes]:
    """Announce a record and store its parts; the contents of all of them."""
    contents = {id: part.deflate() for id, part in get_all_nested_objects(item).items()}
    for id in store.preregister(run, get_object_tree(item)):
        assert store.get(id) == b""
        store.put(id, contents[id])
    return contents


def files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_store_behaves_like_flowers(tmp_path: Path) -> None:
    both: list[Any] = [FileObjectStore(tmp_path / "objects"), InMemoryObjectStore()]
    for store in both:
        first, second = record(1), record(2)
        contents = stored(store, 1, first) | stored(store, 2, second)
        assert {id: store.get(id) for id in contents} == contents
        store.delete(first.object_id)
        kept = {id for id in contents if id in store}
        assert kept == set(get_all_nested_objects(second))
        assert {id: store.get(id) for id in kept} == {id: contents[id] for id in kept}
        store.delete_objects_in_run(2)
        assert len(store) == 0
        with pytest.raises(NoObjectInStoreError):
            store.put(first.object_id, contents[first.object_id])
        store.preregister(3, get_object_tree(first))
        with pytest.raises(ValueError, match="does not match"):
            store.put(first.object_id, b"forged")


def test_large_parts_are_in_files_only_and_go_with_their_message(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path / "objects")
    item = record(1)
    contents = stored(store, 1, item)
    assert files(tmp_path / "objects") > 0.99 * sum(map(len, contents.values()))
    assert sum(len(entry.content) for entry in store.store.values()) < object_files.SMALL
    assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700
    store.put(item.object_id, contents[item.object_id])
    store.delete(item.object_id)
    assert list((tmp_path / "objects").iterdir()) == []
    stored(store, 1, item)
    store.clear()
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_store_begins_empty(tmp_path: Path) -> None:
    stored(FileObjectStore(tmp_path / "objects"), 1, record(1))
    assert files(tmp_path / "objects") > 0
    FileObjectStore(tmp_path / "objects")
    assert files(tmp_path / "objects") == 0


@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
def test_a_database_with_stored_parts_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore

    monkeypatch.setattr(object_files, "SPARE", 1 << 20)
    database = tmp_path / "state.db"
    store = SqlObjectStore(str(database))
    store.initialize()
    for seed in range(4):
        stored(store, seed, record(seed))
    assert store._engine is not None
    store._engine.dispose()
    before = database.stat().st_size
    assert before > 4_000_000
    object_files.drop_stored_objects(database)
    assert database.stat().st_size < before / 4
    with closing(sqlite3.connect(database)) as connected:
        assert connected.execute("SELECT count(*) FROM objects").fetchone() == (0,)
    object_files.drop_stored_objects(tmp_path / "none.db")


def test_the_superlink_gets_this_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixin: Any = sql_mixin
    for module, name in ((object_store_factory, "SqlObjectStore"), (mixin, "SQLITE_PRAGMAS")):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that it is restored
    object_files.store_objects_in_files(tmp_path / "objects", tmp_path / "state.db")
    store = object_store_factory.ObjectStoreFactory(str(tmp_path / "state.db")).store()
    assert isinstance(store, FileObjectStore)
    assert dict(mixin.SQLITE_PRAGMAS)["busy_timeout"] == object_files.LOCK_WAIT
