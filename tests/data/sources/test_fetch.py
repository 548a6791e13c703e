"""The data folder, and downloads: resumed after an interruption, verified, and never incomplete under their name."""

import fcntl
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from tacit.data.sources import fetch
from tacit.data.sources.fetch import Remote
from tests.refusals import refused

CONTENT = bytes(range(256)) * 4000  # about a megabyte
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Host:
    """A web host on this machine, and the faults it should have."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True  # it answers requests for a range
    stops: list[int] = field(default_factory=list)  # bytes that the next answers send before they stop
    status: list[int] = field(default_factory=list)  # status codes of the next answers, instead of a file
    asked: list[str] = field(default_factory=list)  # the range of each request


def handler(host: Host) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:  # the name that http.server calls
            wanted = self.headers.get("Range", "")
            host.asked.append(wanted)
            if host.status:
                self.send_error(host.status.pop(0))
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and host.ranges else 0
            if start and start >= len(host.content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(host.content) - start))
            self.end_headers()
            end = start + host.stops.pop(0) if host.stops else len(host.content)
            self.wfile.write(host.content[start:end])

    return Handler


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    host = Host()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(host)) as server:
        host.url = f"http://127.0.0.1:{server.server_port}/file.bin"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield host
        server.shutdown()
        thread.join()


def remote(host: Host, checksum: str = MD5) -> Remote:
    return Remote("SET/raw/file.bin", (host.url,), checksum)


def names(tmp_path: Path) -> list[str]:
    """All files except the lock, which stays after a failure."""
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    return sorted(path.name for path in files if path.suffix != ".lock")


@pytest.mark.parametrize("checksum", [MD5, hashlib.sha256(CONTENT).hexdigest()])
def test_a_file_is_downloaded_once(host: Host, tmp_path: Path, checksum: str) -> None:
    path = fetch.fetch(remote(host, checksum))
    assert path == tmp_path / "data/SET/raw/file.bin"
    assert path.read_bytes() == CONTENT
    assert fetch.fetch(remote(host, checksum)) == path
    assert host.asked == [""]
    assert names(tmp_path) == ["file.bin"]


def test_an_existing_file_is_never_replaced(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "data/SET/raw/file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"packed differently")
    assert fetch.fetch(remote(host)).read_bytes() == b"packed differently"
    assert host.asked == []


def test_an_interrupted_download_is_resumed(host: Host, tmp_path: Path) -> None:
    host.stops = [262_144, 65_536]
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["", "bytes=262144-", "bytes=327680-"]
    assert names(tmp_path) == ["file.bin"]


def test_a_later_run_resumes_the_download(host: Host, tmp_path: Path) -> None:
    host.stops = [262_144, 0]
    with refused("data.download-failed"):
        fetch.fetch(remote(host))
    assert names(tmp_path) == ["file.bin.part"]
    assert (tmp_path / "data/SET/raw/file.bin.part").read_bytes() == CONTENT[:262_144]
    host.asked.clear()
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["bytes=262144-"]
    assert names(tmp_path) == ["file.bin"]


def test_without_ranges_a_download_starts_again(host: Host, tmp_path: Path) -> None:
    host.ranges, host.stops = False, [262_144]
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["", "bytes=262144-"]


def test_a_download_without_progress_is_given_up(host: Host, tmp_path: Path) -> None:
    host.ranges, host.stops = False, [131_072] * 50
    with refused("data.download-failed"):
        fetch.fetch(remote(host))
    assert len(host.asked) == 2
    assert "file.bin" not in names(tmp_path)


def test_a_complete_part_is_used(host: Host, tmp_path: Path) -> None:
    part = tmp_path / "data/SET/raw/file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]


def test_a_part_of_another_file_is_deleted(host: Host, tmp_path: Path) -> None:
    part = tmp_path / "data/SET/raw/file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"other")
    with refused("data.download-failed"):
        fetch.fetch(remote(host))
    assert names(tmp_path) == []
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT


def test_wrong_content_is_deleted(host: Host, tmp_path: Path) -> None:
    host.content = CONTENT[:-1] + b"?"
    with refused("data.download-failed") as refusal:
        fetch.fetch(remote(host))
    path = tmp_path / "data/SET/raw/file.bin"
    assert str(refusal.error) == (
        f"{path} could not be downloaded (the downloaded file has a wrong checksum); "
        f"try again, or download {host.url} yourself and put it there"
    )
    assert names(tmp_path) == []


def test_a_second_process_waits_for_the_download(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second starts while the first downloads, waits for it, and finds the file."""
    second = Thread(target=lambda: found.append(fetch.fetch(remote(host))))
    found: list[Path] = []
    waits, lock, download = Event(), fcntl.flock, fetch._download

    def seen_lock(file: Any, how: int) -> None:
        if current_thread() is second:
            with pytest.raises(BlockingIOError):
                lock(file, how | fcntl.LOCK_NB)
            waits.set()
        lock(file, how)

    def slow_download(wanted: Remote, path: Path) -> None:
        assert current_thread() is not second
        second.start()
        assert waits.wait(60)
        download(wanted, path)

    monkeypatch.setattr(fcntl, "flock", seen_lock)
    monkeypatch.setattr(fetch, "_download", slow_download)
    path = fetch.fetch(remote(host))
    second.join()
    assert found == [path]
    assert path.read_bytes() == CONTENT
    assert host.asked == [""]
    assert not list((tmp_path / "data").rglob("*.lock"))


def test_a_failed_download_can_be_repeated(host: Host, tmp_path: Path) -> None:
    host.status = [503]
    with refused("data.download-failed"):
        fetch.fetch(remote(host))
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert not list((tmp_path / "data").rglob("*.lock"))


def test_downloads_work_without_file_locks(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT


def test_the_next_address_is_tried_after_a_failure(host: Host, tmp_path: Path) -> None:
    host.status = [404]
    twice = Remote("SET/raw/file.bin", (host.url, host.url), MD5)
    assert fetch.fetch(twice).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_hosts_refusal_is_reported_with_its_status(host: Host, tmp_path: Path, status: int) -> None:
    host.status = [status]
    with refused("data.download-failed") as refusal:
        fetch.fetch(remote(host))
    assert str(status) in refusal.error.problem
    assert names(tmp_path) == []


def test_without_network_the_address_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port  # nobody listens there after the server has stopped
    nowhere = Remote("SET/file.bin", (f"http://127.0.0.1:{port}/file.bin",), MD5)
    with refused("data.download-failed") as refusal:
        fetch.fetch(nowhere)
    assert "no connection" in refusal.error.problem
    assert nowhere.urls[0] in refusal.error.remedy


def test_a_data_folder_that_is_a_file_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "file"))
    with refused("data.folder-not-writable") as refusal:
        fetch.fetch(remote(host))
    assert "None" not in str(refusal.error)
    assert "\n" not in str(refusal.error)


def test_a_write_protected_data_folder_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(*args: object, **options: object) -> None:
        raise PermissionError("a long text of pooch")

    monkeypatch.setattr("pooch.retrieve", denied)
    with refused("data.folder-not-writable") as refusal:
        fetch.fetch(remote(host))
    assert "permission denied" in refusal.error.problem


def test_the_data_folder_is_tacit_data_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    assert fetch.data_folder() == tmp_path
    monkeypatch.setenv("TACIT_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fetch.data_folder().name == "tacit"
    assert not (tmp_path / "cache").exists()


def test_local_takes_the_first_existing_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    (tmp_path / "b").mkdir()
    (tmp_path / "c").write_text("")
    assert fetch.local("a", "b", "c") == tmp_path / "b"
    assert fetch.local("a", str(tmp_path / "c")) == tmp_path / "c"
    assert fetch.local("a") is None


def test_another_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    fetch.verify(path, None, MD5)
    fetch.verify(path, b"unzipped", hashlib.sha256(b"unzipped").hexdigest())
    fetch.verify(path, b"anything", None)
    for content in (None, b"other"):
        with refused("data.wrong-checksum"):
            fetch.verify(path, content, hashlib.md5(b"another").hexdigest())
