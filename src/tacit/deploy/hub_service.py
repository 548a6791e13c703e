"""`tacit hub start`: the processes of a running hub.

The SuperLink listens on this machine only. It gives its tasks to one executor, and takes orders from the operator's
`flwr`; both have a secret. The gateway is what sites reach.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tacit.deploy import apps, flower_cli, gateway
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.hub_sites import sync_keys
from tacit.deploy.processes import Program, free_port, port_is_free, wait_for_port, write_launcher
from tacit.errors import TacitError
from tacit.storage import LockedError, locked

_CONTROL_SECRET = Path(__file__).parents[1] / "engines" / "flower" / "control_secret.py"


@dataclass(frozen=True)
class Service:
    """The processes of a hub."""

    programs: dict[str, Program]  # by what they are

    def wait(self) -> TacitError:
        """Wait until one of them ends; the error that says so."""
        while True:
            for name, program in self.programs.items():
                if program.exit_code() is not None:
                    return flower_cli.program_ended(program, name)
            time.sleep(0.3)


@contextmanager
def serving(hub: HubDirectory) -> Iterator[Service]:
    """The hub while the block runs: sites can reach it, and it accepts the key of every site."""
    hub.flower_home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(hub):
        _refuse_taken_port(hub)
        secret = flower_cli.new_secret(hub.flower_home / "executor.secret")
        flwr = _with_secret("flwr", flower_cli.new_secret(hub.operator_secret))
        write_launcher(hub.flower_home / "bin" / "flwr", flwr)
        hub.write_connection(free_port())
        apps.write(hub.app_folder)
        superlink = [*_with_secret("flower-superlink", hub.operator_secret), *hub.superlink_options(secret)]
        executor = flower_cli.executor_command(hub.superlink_address, secret, hub.authority)
        with _running(hub, "superlink", superlink) as first:
            flower_cli.wait_until_healthy(first, hub.superlink_address, hub.authority)
            if not hub.settings.insecure:
                sync_keys(hub)
            with (
                _running(hub, "executor", executor) as second,
                _running(hub, "gateway", gateway.command(hub.gateway_settings())) as third,
            ):
                if not wait_for_port(third, hub.local_host, hub.settings.port, flower_cli.START_SECONDS):
                    raise flower_cli.program_ended(third, "the hub's gateway", "did not start")
                programs = {"Flower's SuperLink": first, "Flower's SuperExec": second, "the hub's gateway": third}
                yield Service(programs)


def _with_secret(program: str, secret: Path) -> list[str]:
    """The command of one of Flower's programs that asks for, or sends, the operator's secret."""
    flower_cli.find_program(program)
    return [sys.executable, "-I", str(_CONTROL_SECRET), program, str(secret)]


def _running(hub: HubDirectory, name: str, command: list[str]) -> AbstractContextManager[Program]:
    return flower_cli.running(command, hub.flower_home, hub.flower_home / f"{name}.log")


@contextmanager
def _alone(hub: HubDirectory) -> Iterator[None]:
    """Refuse a second start of the same hub: it would replace the secrets of the first."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(hub.flower_home / "hub.lock", "ab"))
        except LockedError as error:
            raise TacitError(
                "this hub is running already", f"see `{hub.command('status')}`", code="hub.already-running"
            ) from error
        yield


def _refuse_taken_port(hub: HubDirectory) -> None:
    settings = hub.settings
    if not port_is_free(settings.listen or settings.host, settings.port):
        raise TacitError(
            f"port {settings.port} of {settings.listen or settings.host} is in use or not available",
            f"stop the program that uses it, or set another host, listen or port in {hub.settings_file}",
            code="hub.port-in-use",
        )
