"""Where files of data sets are kept, how they are fetched, and how a wrong one is noticed.

The folder is `TACIT_DATA`, or the user's cache. A download grows in `NAME.part`, goes on from there after it broke
off, and gets its name only once its checksum is right; a file that has its name is never fetched again. Whoever
fetches it holds `NAME.lock`, so that two processes do not write to one part.
"""

import fcntl
import hashlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import TacitError

if TYPE_CHECKING:
    from requests import Response
    from rich.progress import Progress

_WAIT = (10, 60)  # seconds to wait for a connection, and for the next bytes
_CHUNK = 1 << 16  # bytes; what is less when a connection breaks off is asked for again
_MD5 = 32  # hexadecimal digits; SHA-256 has 64


@dataclass(frozen=True)
class Remote:
    """A file on the net: its place below the data folder, where to get it, and its checksum."""

    place: str
    urls: tuple[str, ...]  # the same file at several hosts, tried in this order
    checksum: str  # MD5 or SHA-256 of the whole file


def data_folder() -> Path:
    """Where data sets lie: `TACIT_DATA`, or a cache folder of this user."""
    if named := os.environ.get("TACIT_DATA"):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("tacit"))


def local(*places: str) -> Path | None:
    """The first of these files or folders, below the data folder or absolute, that is there."""
    paths = (data_folder() / place for place in places)
    return next((path for path in paths if path.exists()), None)


def fetch(remote: Remote) -> Path:
    """The file, downloaded unless it is there."""
    path = data_folder() / remote.place
    if not path.exists():
        with _in_turn(path):
            if not path.exists():  # still: whoever had the turn before may have fetched it
                _download(remote, path)
    return path


@contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """Wait while another process fetches this file."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from None
    with file:
        with suppress(OSError):  # a file system that knows no locks: then it is as if one were alone
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        lock.unlink(missing_ok=True)  # only now that the file is there: after a failure the next in turn needs the lock


def verify(path: Path, content: bytes | None, checksum: str | None) -> None:
    """Refuse content, or the file as it is, with another checksum; where none is known, shapes and counts must do."""
    if checksum is None:
        return
    with io.BytesIO(content) if content is not None else path.open("rb") as file:
        found = hashlib.file_digest(file, _kind(checksum)).hexdigest()
    if found != checksum:
        raise broken(path, "is not the original (its checksum differs)")


def _kind(checksum: str) -> str:
    return "md5" if len(checksum) == _MD5 else "sha256"


def broken(path: Path, reason: str) -> TacitError:
    """The error for a file of a known data set that is damaged or another than its name says."""
    return TacitError(f"{path} {reason}: delete it and run again to fetch it, or put the original there")


def _download(remote: Remote, path: Path) -> None:
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    reason = ""
    checksum = f"{_kind(remote.checksum)}:{remote.checksum}"
    for url in remote.urls:
        part = path.with_name(f"{path.name}.part")
        try:
            pooch.retrieve(url, checksum, path.name, path.parent, downloader=Resume(part))
            return
        except requests.RequestException as error:
            reason = _reason(error)
        except ValueError:
            reason = "the checksum of what came is wrong"
        except OSError as error:
            raise _unwritable(path, error) from None
    remedy = f"try again, or get {remote.urls[0]} yourself and put it there"
    raise TacitError(f"{path} could not be fetched ({reason}): {remedy}")


def _unwritable(path: Path, error: OSError) -> TacitError:
    remedy = "set TACIT_DATA to a folder that has room and that you may write to"
    return TacitError(f"{path} can not be written ({error.strerror or 'permission denied'}): {remedy}")


def _reason(error: Exception) -> str:
    import requests

    match error:
        case requests.HTTPError(response=response) if response is not None:
            return f"the host answered {response.status_code}"
        case requests.Timeout():
            return "the host did not answer in time"
        case requests.ConnectionError():
            return "no connection to the host"
    return "the connection broke off"


@dataclass(frozen=True)
class Resume:
    """A downloader for pooch that goes on where an earlier one broke off."""

    part: Path  # what has come so far

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        """Fetch `url` to `output_file`, in as many requests as it takes while each brings something."""
        import requests

        with _progress(self.part.stem) as bar:
            while True:
                before = self._size()
                try:
                    self._request(url, bar)
                    break
                except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                    if self._size() <= before:
                        raise
        self.part.replace(output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _request(self, url: str, bar: "Progress") -> None:
        import requests

        # A host that packs the bytes on the way would count other bytes than those on disk.
        headers = {"Accept-Encoding": "identity"}
        if have := self._size():
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=_WAIT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                return  # nothing is missing, or this is no part of that file: the checksum will tell
            response.raise_for_status()
            self._store(response, have if response.status_code == requests.codes.partial_content else 0, bar)

    def _store(self, response: "Response", have: int, bar: "Progress") -> None:
        total = have + int(response.headers.get("Content-Length", 0))
        bar.update(bar.task_ids[0], total=total or None, completed=have)
        with self.part.open("ab" if have else "wb") as file:
            for chunk in response.iter_content(_CHUNK):
                file.write(chunk)
                bar.advance(bar.task_ids[0], len(chunk))


@contextmanager
def _progress(name: str) -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    quiet = not sys.stderr.isatty()
    with Progress(*columns, *speed, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        bar.add_task(name, total=None)
        yield bar
