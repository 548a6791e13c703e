"""Where data sets are stored, how they are downloaded, and how a wrong file is detected.

The folder is `TACIT_DATA`, or the user's cache. A download goes to `NAME.part`, resumes from there after an
interruption, and gets its name only when its checksum is right; an existing file is never downloaded again. The
process that downloads holds `NAME.lock`, so that two processes do not write to one part.
"""

import hashlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import TacitError
from tacit.storage import in_turn

if TYPE_CHECKING:
    from requests import Response
    from rich.progress import Progress

_WAIT = (10, 60)  # seconds to wait for a connection, and for the next bytes
_CHUNK = 1 << 16  # bytes; an incomplete chunk is requested again after an interruption
_MD5 = 32  # hexadecimal digits; SHA-256 has 64
BROKEN_REMEDY = "delete it and run again to download it, or put the original there"


@dataclass(frozen=True)
class Remote:
    """A file to download: its place below the data folder, its addresses and its checksum."""

    place: str
    urls: tuple[str, ...]  # of the same file, tried in this order
    checksum: str  # MD5 or SHA-256 of the whole file


def data_folder() -> Path:
    """The folder of data sets: `TACIT_DATA`, or the user's cache."""
    if named := os.environ.get("TACIT_DATA"):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("tacit"))


def cache_folder() -> Path:
    """The folder of what is computed once: `TACIT_CACHE`, or the user's cache. Data sets may be read-only, this not."""
    if named := os.environ.get("TACIT_CACHE"):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("tacit"))


def local(*places: str) -> Path | None:
    """The first of these files or folders that exists, below the data folder or absolute."""
    paths = (data_folder() / place for place in places)
    return next((path for path in paths if path.exists()), None)


def fetch(remote: Remote) -> Path:
    """The file, downloaded if it is missing."""
    path = data_folder() / remote.place
    if not path.exists():
        with _in_turn(path):
            if not path.exists():  # another process may have fetched it meanwhile
                _download(remote, path)
    return path


@contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """Wait while another process fetches this file."""
    lock = path.with_name(f"{path.name}.lock")
    with ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(in_turn(lock, needed=False))
        except OSError as error:
            raise _unwritable(path, error) from None
        yield
        lock.unlink(missing_ok=True)  # only on success: after a failure, a waiting process still needs the lock


def verify(path: Path, content: bytes | None, checksum: str | None) -> None:
    """Refuse content, or the file itself, with another checksum; without a known one, shapes and counts decide."""
    if checksum is None:
        return
    with io.BytesIO(content) if content is not None else path.open("rb") as file:
        found = hashlib.file_digest(file, _kind(checksum)).hexdigest()
    if found != checksum:
        raise broken(path, "is not the original (its checksum differs)", code="data.wrong-checksum")


def _kind(checksum: str) -> str:
    return "md5" if len(checksum) == _MD5 else "sha256"


def broken(path: Path, reason: str, *, code: str) -> TacitError:
    """The error for a file of a known data set that is damaged or not the original."""
    return TacitError(f"{path} {reason}", BROKEN_REMEDY, code=code)


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
            reason = "the downloaded file has a wrong checksum"
        except OSError as error:
            raise _unwritable(path, error) from None
    raise TacitError(
        f"{path} could not be downloaded ({reason})",
        f"try again, or download {remote.urls[0]} yourself and put it there",
        code="data.download-failed",
    )


def _unwritable(path: Path, error: OSError) -> TacitError:
    return TacitError(
        f"{path} cannot be written ({error.strerror or 'permission denied'})",
        "set TACIT_DATA to a folder with free space that you may write to",
        code="data.folder-not-writable",
    )


def _reason(error: Exception) -> str:
    import requests

    match error:
        case requests.HTTPError(response=response) if response is not None:
            return f"the host answered {response.status_code}"
        case requests.Timeout():
            return "the host did not answer in time"
        case requests.ConnectionError():
            return "no connection to the host"
    return "the connection was interrupted"


@dataclass(frozen=True)
class Resume:
    """A downloader for pooch that resumes an interrupted download."""

    part: Path  # downloaded so far

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        """Fetch `url` to `output_file`, with further requests as long as each brings something."""
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

        # A host that compresses the transfer would count other bytes than those on disk.
        headers = {"Accept-Encoding": "identity"}
        if have := self._size():
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=_WAIT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                return  # nothing is missing, or this is a part of another file: the checksum decides
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
