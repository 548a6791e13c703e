"""Flower's programs: how they are started, and everything that is read from their output and logs.

Flower promises no stability for any of these texts. Check them all before you widen `VERSIONS`.
"""

import json
import os
import re
import secrets
import shutil
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from http.client import HTTPException
from pathlib import Path

from tacit import engines
from tacit.deploy import processes
from tacit.deploy.processes import Program
from tacit.errors import TacitError
from tacit.storage import SECRET, write_durably

VERSIONS = ">=1.41,<1.43"  # of flwr, as in pyproject.toml: the ones whose texts are known here

START_SECONDS = 120.0  # a program may need this long to start on a busy machine
QUIET = {  # no telemetry, no downloads
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
PACE = {  # by default Flower polls less often and fetches fewer objects at once
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "8",  # every array is a separate object
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "8",
}
_EXECUTOR = Path(engines.__file__).parent / "flower" / "superexec.py"  # Flower's SuperExec, with tokens in files
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_KEY_IN_USE = "already in use"


class FlowerError(TacitError):
    """One of Flower's programs failed; `output` has its own words."""

    def __init__(self, problem: str, remedy: str, *, code: str, output: str) -> None:
        """`output` is for this module alone to search."""
        super().__init__(problem, remedy, code=code)
        self.output = output


class KeyInUseError(FlowerError):
    """Flower knows this public key, or knew it once."""


# --- starting programs ------------------------------------------------------------------------------------------------


def find_program(name: str, home: Path | None = None) -> str:
    """The path of one of Flower's programs: the launcher in `home`, or that in the environment of this Python."""
    near = [*([home / "bin" / name] if home else []), Path(sys.executable).with_name(name)]
    found = next((str(path) for path in near if path.exists()), None) or shutil.which(name)
    if not found:
        raise TacitError(f"the program {name} is not installed", "pip install 'tacit[flower]'", code="flower.missing")
    return found


def environment(home: Path) -> dict[str, str]:
    """This process's variables plus those that keep Flower quiet and inside the folder `home`.

    Flower's programs find each other by the PATH, in which `home/bin` comes first. No proxy is used between programs on
    this machine.
    """
    path = os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]
    own = {"PATH": path, "FLWR_HOME": str(home), "no_proxy": ",".join(filter(None, direct))}
    return {**os.environ, **QUIET, **PACE, **own}


@contextmanager
def running(command: Sequence[str], home: Path, log: Path) -> Iterator[Program]:
    """A program that runs in Flower's environment while the block does."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with processes.running(command, environment(home), log) as program:
        yield program


def call(name: str, arguments: Sequence[str], home: Path, timeout: float = START_SECONDS) -> str:
    """Run a short program to its end; its output."""
    command = [find_program(name, home), *arguments]
    with tempfile.TemporaryDirectory() as folder, running(command, home, Path(folder) / "output") as program:
        until = time.monotonic() + timeout
        while (code := program.exit_code()) is None:
            if time.monotonic() > until:
                raise TacitError(
                    f"`{name} {arguments[0]}` did not finish within {timeout:g} s",
                    "check that the hub still runs",
                    code="flower.timeout",
                )
            time.sleep(0.05)
        if code:
            raise _failed(program.output())
        return program.output()


def options(values: Mapping[str, object]) -> list[str]:
    """`--name value` for each, `--name` for True, nothing for None and False."""
    pairs = ([f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in values.items() if value)
    return [word for pair in pairs for word in pair]


def new_secret(path: Path) -> Path:
    """Write a new secret to a file that only its owner can read; the file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, secrets.token_hex(32).encode(), mode=SECRET)
    return path


def guarded(secret: Path) -> list[str]:
    """Options of a SuperLink or SuperNode that gives its tasks only to an executor with this secret.

    An executor that it starts by itself has none, so `executor_command` starts one.
    """
    return options({"isolation": "process", "superexec-auth-secret-file": secret})


def executor_command(address: str, secret: Path, authority: Path | None = None) -> list[str]:
    """The command that starts the executor for the tasks of the SuperLink or SuperNode at an address."""
    security = {"root-certificates": authority} if authority else {"insecure": True}
    values = {"runtime-api-address": address, "superexec-auth-secret-file": secret} | security
    find_program("flower-superexec")  # refuses to go on without Flower
    return [sys.executable, "-I", str(_EXECUTOR), str(secret.parent / "tokens"), *options(values)]


def is_healthy(address: str, authority: Path | None) -> bool:
    """Whether a SuperLink responds at an address of this machine; no proxy is asked."""
    try:
        context = ssl.create_default_context(cafile=str(authority)) if authority else None
        direct = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        url = f"http{'s' if authority else ''}://{address}/health"
        with urllib.request.build_opener(*direct).open(url, timeout=5):
            return True
    except (OSError, HTTPException):  # urllib and a damaged certificate raise an OSError too
        return False


def wait_until_healthy(program: Program, address: str, authority: Path | None) -> None:
    """Return once the SuperLink that was started responds."""
    until = time.monotonic() + START_SECONDS
    while not is_healthy(address, authority):
        if program.exit_code() is not None or time.monotonic() > until:
            raise program_ended(program, "Flower's SuperLink", "did not start")
        time.sleep(0.2)


def program_ended(program: Program, name: str, what: str = "ended") -> TacitError:
    """The error for one of the hub's programs that is not running any more."""
    return TacitError(f"{name} {what}: {last_lines(program.output())}", f"see {program.log}", code="hub.program-ended")


# --- reading output ---------------------------------------------------------------------------------------------------


def last_lines(text: str, lines: int = 1) -> str:
    """The last lines that are not empty, without colours and frames."""
    plain = (_COLOURS.sub("", line).strip(" │╭╮╰╯─\t") for line in text.splitlines())
    return " ".join([line for line in plain if line][-lines:])


def _failed(output: str, lines: int = 1) -> FlowerError:
    return FlowerError(
        f"Flower refused: {last_lines(output, lines)}", "fix that and try again", code="flower.refused", output=output
    )


def _call_json(arguments: Sequence[str], home: Path) -> dict[str, object]:
    """The JSON at the end of the output of `flwr`, which may print other lines first.

    When JSON is requested, a program that fails reports the failure in it and exits with code 0.
    """
    output = call("flwr", [*arguments, "--format", "json"], home)
    try:
        found: dict[str, object] = json.loads(output[output.index("{") :])
    except ValueError as error:
        raise FlowerError(
            f"cannot understand Flower's reply ({last_lines(output) or 'nothing'})",
            f"install a version that Tacit knows: pip install 'flwr{VERSIONS}'",
            code="flower.unknown-reply",
            output=output,
        ) from error
    if found.get("success") is False:
        raise _failed(str(found.get("error-message")), lines=2)
    return found


def register_node(key: Path, name: str, connection: str, home: Path) -> int:
    """Let the SuperLink accept a public key; the id of its node."""
    try:
        reply = _call_json(["supernode", "register", str(key), connection, "--name", name], home)
    except FlowerError as error:
        if _KEY_IN_USE not in error.output:
            raise
        raise KeyInUseError(error.problem, error.remedy, code="flower.key-in-use", output=error.output) from error
    return int(str(reply["node-id"]))


def unregister_node(node: int, connection: str, home: Path) -> None:
    """Let the SuperLink no longer accept a node's public key."""
    call("flwr", ["supernode", "unregister", str(node), connection], home)


def stop_run(output: str, connection: str, home: Path) -> None:
    """Stop the run that `flwr run` started last, by its output so far; nothing if it has not started one."""
    if found := re.findall(r"started run (\d+)", output):
        call("flwr", ["stop", found[-1], connection], home)


class SuperNodeEvent(Enum):
    """What happens at a SuperNode, by the text in its log."""

    JOINED = "SuperNode ID"
    RECONNECTED = "Connection successful after"
    TRAINING = "Receiving: train message"
    IDENTIFYING = "Receiving: query message"


class SuperNodeFailure(Enum):
    """Why a SuperNode ended, by the text in its log; the first that matches counts."""

    UNKNOWN_KEY = "[code: 2004]"
    NO_KEY = "[code: 2001]"
    WRONG_ADDRESS = "IP address mismatch"
    WRONG_HOST = "Hostname mismatch"
    EXPIRED = "certificate has expired"
    WRONG_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


def supernode_event(line: str) -> SuperNodeEvent | None:
    """The event that a line of a SuperNode's log reports."""
    return next((event for event in SuperNodeEvent if event.value in line), None)


def supernode_failure(output: str) -> SuperNodeFailure | None:
    """The failure that a SuperNode's output reports; None if it is none of the known ones."""
    return next((failure for failure in SuperNodeFailure if failure.value in output), None)


def has_joined(log: Path) -> bool:
    """Whether a SuperNode that wrote to this log has ever joined."""
    return log.exists() and SuperNodeEvent.JOINED.value in log.read_text(errors="replace")
