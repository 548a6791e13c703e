"""The SuperLink stores the parts of messages in files, not in its database.

Flower's own store writes them into SQLite, as rows of up to 5 MB. Models of 60 million parameters then hold the
database for so long that heartbeats fail with "database is locked", and the file never shrinks. Here the database has
only what is small, and what is large is deleted with the message it belongs to. Nothing is lost with it: a run does not
survive the end of a SuperLink anyway, it is resumed.

The module imports nothing of Tacit, since the SuperLink is started without it.
"""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

SMALL = 1 << 16  # bytes; smaller parts stay in RAM
LOCK_WAIT = "60000"  # milliseconds to wait for the database; Flower's 5000 are short for a busy disk
SPARE = 1 << 26  # bytes of free pages in the database that are worth a copy of all others
TABLES = ("run_objects", "object_children", "objects")  # of Flower's own store


class FileObjectStore(InMemoryObjectStore):
    """Flower's store in RAM, except that large contents are in files of a folder, which is emptied at the start."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for this store alone."""
        super().__init__()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._folder = folder
        self._in_files: set[str] = set()

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store a content that was announced; Flower's store checks it."""
        super().put(object_id, object_content)
        if len(object_content) < SMALL:
            return
        partial = self._folder / f"{object_id}.{os.urandom(4).hex()}"
        partial.write_bytes(object_content)
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None or object_id in self._in_files:  # deleted meanwhile, or stored twice
                partial.unlink()
                return
            partial.rename(self._folder / object_id)
            self._in_files.add(object_id)
            entry.content = b""

    def get(self, object_id: str) -> bytes | None:
        """A content; empty if it has not arrived, None if it was not announced."""
        with self.lock_store:
            if object_id not in self._in_files:
                return super().get(object_id)
            file = (self._folder / object_id).open("rb")  # stays readable if it is deleted now
        with file:
            return file.read()

    def delete(self, object_id: str) -> None:
        """Delete an object and its parts, unless others need them; Flower's store calls this for every part."""
        with self.lock_store:
            super().delete(object_id)
            if object_id not in self.store and object_id in self._in_files:
                self._in_files.discard(object_id)
                (self._folder / object_id).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete everything."""
        with self.lock_store:
            super().clear()
            for object_id in self._in_files:
                (self._folder / object_id).unlink(missing_ok=True)
            self._in_files.clear()


def drop_stored_objects(database: Path) -> None:
    """Delete what Flower's own store left in a database, and give its space back."""
    if not database.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, timeout=60)) as connected:
        for table in TABLES:
            connected.execute(f"DELETE FROM {table}")
        connected.commit()
        pages, size = (connected.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
        if pages * size > SPARE:
            connected.execute("VACUUM")


def store_objects_in_files(folder: Path, database: Path) -> None:
    """Make the SuperLink that this process will run store the parts of messages in a folder."""
    drop_stored_objects(database)
    stores: Any = import_module("flwr.supercore.object_store.object_store_factory")
    mixin: Any = import_module("flwr.supercore.sql_mixin")

    class Store(FileObjectStore):
        """The store as Flower's factory makes it."""

        def __init__(self, database_path: str) -> None:
            super().__init__(folder)

        def initialize(self) -> None:
            """Nothing to prepare."""

    if not issubclass(stores.SqlObjectStore, stores.ObjectStore):
        raise TypeError("Flower's SqlObjectStore is not an ObjectStore")
    stores.SqlObjectStore = Store
    kept = [(name, value) for name, value in mixin.SQLITE_PRAGMAS if name != "busy_timeout"]
    mixin.SQLITE_PRAGMAS = (("busy_timeout", LOCK_WAIT), *kept)
