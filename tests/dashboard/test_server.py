"""Only this machine's own browser, with the secret, gets an answer, and only known files of runs are served."""

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tacit.cli import watch
from tacit.dashboard import server
from tacit.dashboard.board import Board
from tacit.runs.directory import shown
from tests.dashboard.invented import a_run, by_name, looked
from tests.refusals import refused

uvicorn = pytest.importorskip("uvicorn")


@contextmanager
def served(board: Board) -> Iterator[str]:
    """The page of a board at an address, followed and served while the block runs."""
    token = "a-token-of-the-test"
    socket = server.listening(None)
    config = uvicorn.Config(
        server.application(board, token), log_level="error", access_log=False, lifespan="off", ws="none"
    )
    program = uvicorn.Server(config)
    thread = threading.Thread(target=program.run, kwargs={"sockets": [socket]}, daemon=True)
    with socket, server.following(board):
        socket.listen(16)
        thread.start()
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}/{token}/"
        finally:
            program.should_exit = True
            thread.join(30)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    a_run(tmp_path / "runs" / "a", 3)
    made = Board([tmp_path / "runs"])
    looked(made)
    return made


def asked(
    address: str, path: str = "", method: str = "GET", headers: dict[str, str] | None = None, whole: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; `whole` is the path as it goes over the wire."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    try:
        connection.request(method, whole or place.path + path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_page_its_parts_and_its_data_are_served(board: Board) -> None:
    with served(board) as address:
        for name, (_, kind) in server.PAGE.items():
            status, headers, body = asked(address, name)
            assert (status, headers["content-type"]) == (200, kind), name
            assert body
        status, headers, body = asked(address, "api/updates")
        assert status == 200
        assert b'"status":"finished"' in body
        assert asked(address, "no-such-part.js")[0] == 404


def test_every_answer_has_the_headers_that_keep_the_page_to_itself(board: Board) -> None:
    with served(board) as address:
        answers = [
            asked(address),
            asked(address, "api/updates"),
            asked(address, "nothing"),
            asked(address, method="POST"),
        ]
    for _, headers, _ in answers:
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["api/updates", "", "watch.js"])
def test_a_wrong_token_gets_nothing(board: Board, path: str) -> None:
    with served(board) as address:
        for token in ("wrong", "", "a-token-of-the-tesT", "a-token-of-the-test2", "%ff"):
            place = urlsplit(address)
            status, _, body = asked(address, whole=f"/{token}/{path}")
            assert status == 404, place
            assert b"finished" not in body


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8765"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost:1234"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
def test_requests_of_other_pages_and_names_are_refused(board: Board, headers: dict[str, str], status: int) -> None:
    with served(board) as address:
        assert asked(address, "api/updates", headers=headers)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_possible(board: Board, method: str) -> None:
    with served(board) as address:
        assert asked(address, "api/updates", method)[0] == 405


def test_known_files_of_runs_are_served_and_nothing_else(board: Board, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    (tmp_path / "secret").write_text("secret")
    (folder / "private.key").write_text("secret")
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / "errors.log").symlink_to(tmp_path / "secret")
    (folder / "progress.log").mkdir()
    os.mkfifo(folder / "flower.log")
    (id,) = board.runs
    with served(board) as address:
        assert asked(address, f"files/{id}/config.toml")[0] == 200
        status, headers, _ = asked(address, f"files/{id}/report.html")
        assert status == 200
        assert headers["content-security-policy"].startswith("sandbox;")
        wrong = [
            "private.key",
            "errors.log",
            "progress.log",
            "flower.log",
            "../../secret",
            "..%2f..%2fsecret",
            "checkpoint",
        ]
        for name in [*wrong, "config.toml%00.key", "%2e%2e/%2e%2e/secret", "/etc/passwd"]:
            status, _, body = asked(address, f"files/{id}/{name}")
            assert (status, b"secret" in body) == (404, False), name
        assert asked(address, "files/unknown/config.toml")[0] == 404


def test_odd_queries_are_answered(board: Board) -> None:
    with served(board) as address:
        for query in (
            "since=x",
            "series=a:b:c,,::,:",
            "since=-99999999999999999999",
            "boot=%00",
            "series=" + "a:0:0," * 2000,
        ):
            assert asked(address, f"api/updates?{query}")[0] == 200


def test_a_port_in_use_is_refused() -> None:
    with server.listening(None) as taken, refused("watch.port-in-use"):
        taken.listen()
        server.listening(taken.getsockname()[1])


def test_a_folder_is_opened_before_its_file(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 1)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    shown.opened(tmp_path / "a", "config.toml").close()
    with pytest.raises(NotADirectoryError):
        shown.opened(tmp_path / "link", "config.toml")


def test_the_program_listens_on_loopback_only() -> None:
    with server.listening(None) as socket:
        assert socket.getsockname()[0] == "127.0.0.1"


def test_a_folder_that_does_not_exist_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Board] = []

    def started(board: Board, port: int | None, announce: Callable[[str], None]) -> None:
        announce("http://127.0.0.1:1/")
        made.append(board)

    monkeypatch.setattr(server, "serve", started)
    watch.serve([tmp_path / "later"], None, show=False)
    assert "There is no folder" in " ".join(capsys.readouterr().out.split())
    (board,) = made
    assert looked(board)["runs"] == []
    a_run(tmp_path / "later" / "a", 1)
    assert by_name(looked(board)).keys() == {"a"}
    (tmp_path / "file").touch()
    with refused("watch.no-folder"):
        watch.serve([tmp_path / "file"], None, show=False)
