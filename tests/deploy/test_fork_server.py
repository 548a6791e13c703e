"""Forked client processes behave like Flower's own program, which runs instead if the fork server fails."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.deploy import flower_cli, fork_client, fork_server
from tacit.deploy.site_errors import printed_reason

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")
pytestmark = pytest.mark.flower


def launch(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the launcher in a folder to its end."""
    return subprocess.run(
        [folder / fork_server.CLIENT, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the launcher and the socket of a fork server."""
    folder = tmp_path_factory.mktemp("served")
    fork_server.write_launchers(folder, folder / "socket")
    with flower_cli.running(fork_server.command(folder / "socket"), folder / "home", folder / "server.log") as process:
        until = time.monotonic() + 120
        while not (folder / "socket").exists():
            assert process.exit_code() is None, process.output()
            assert time.monotonic() < until, process.output()
            time.sleep(0.05)
        yield folder


def test_the_forked_process_is_flowers_program(served: Path, tmp_path: Path) -> None:
    fork_server.write_launchers(tmp_path, tmp_path / "no-socket")
    forked, own = launch(served, "--help"), launch(tmp_path, "--help")
    assert "--runtime-api-address" in own.stdout
    assert forked.stdout == own.stdout


def test_errors_go_to_the_launchers_standard_error(served: Path) -> None:
    assert "error: one of the arguments --token" in launch(served, "--nonsense").stderr


def test_a_closed_connection_does_not_disturb_later_tasks(served: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(served / "socket"))
    for _ in range(3):
        assert "usage" in launch(served, "--help").stdout


def test_flowers_programs_for_other_tasks_are_replaced_by_a_refusal(served: Path) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert {fork_server.CLIENT, *fork_server.OTHERS} == set(TASK_TYPE_TO_COMMAND.values())
    for name in fork_server.OTHERS:
        words = [str(served / name), "--token", "secret"]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
        assert printed_reason(shown).startswith(f"not taking part: the hub asks for {name}")
        assert "secret" not in shown


def echo_task(socket_path: Path) -> "subprocess.Popen[str]":
    """A task whose own program is `echo`."""
    words = [sys.executable, "-IS", fork_client.__file__, str(socket_path), "/bin/echo", "not", "forked"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_task_that_is_not_accepted_runs_in_its_own_program(tmp_path: Path) -> None:
    """The fork server dies with a task in its queue, or closes the connection before the fork."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        with echo_task(tmp_path / "socket") as first:
            connection, _ = listening.accept()
            request, outputs = fork_client.receive_request(connection)
            assert request
            assert request["arguments"] == ["not", "forked"]
            for output in outputs:
                os.close(output)
            connection.close()
            assert first.communicate(timeout=120)[0] == "not forked\n"


def test_a_failed_fork_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fork() -> int:
        raise BlockingIOError("no memory")

    def program() -> None:
        raise AssertionError("there was no fork")

    monkeypatch.setattr(os, "fork", fork)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        with echo_task(tmp_path / "socket") as task:
            connection, _ = listening.accept()
            with connection:
                fork_server._serve(program, connection, listening)
            assert task.communicate(timeout=120)[0] == "not forked\n"
    assert "no memory" in capsys.readouterr().err


def test_the_fork_client_imports_next_to_nothing(served: Path) -> None:
    """It starts for every message."""
    words = [sys.executable, "-ISX", "importtime", fork_client.__file__, str(served / "socket"), "/bin/false", "--help"]
    imports = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stderr
    assert not {"torch", "numpy", "flwr", "tacit"} & {line.rpartition("|")[2].strip() for line in imports.splitlines()}
