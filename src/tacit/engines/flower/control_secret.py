"""Orders to the SuperLink need a secret, which the hub's own `flwr` sends.

A script: `python control_secret.py PROGRAM SECRET ARGUMENT…` runs Flower's program `flower-superlink` or `flwr` with
the secret in the file SECRET. Flower has no accounts of its own, so without this every user of the hub's machine could
start runs. The script imports nothing of Tacit, so it starts as fast as Flower's program.
"""

import hmac
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

HEADER = "tacit-secret"
DATABASE = "state.db"  # in Flower's folder
# These need no secret: nodes sign their requests, tasks have tokens, and health tells nothing.
OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Guard:
    """Answers 403 to requests without the secret."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], secret: str) -> None:
        """`app` answers all other requests."""
        self._app, self._secret = app, secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    def _may_pass(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == HEADER.encode()]
        secret = len(given) == 1 and hmac.compare_digest(given[0], self._secret)
        return secret or (scope["type"] == "http" and scope["path"].startswith(OPEN))


def guard_superlink(secret: str) -> None:
    """Make the SuperLink that this process will run ask for the secret."""
    from starlette.middleware import Middleware

    extensions = import_module("flwr.superlink.extensions")
    extensions.get_middleware  # noqa: B018 — Flower's hook; without it nothing would be guarded
    extensions.get_middleware = lambda: (Middleware(Guard, secret=secret),)  # type: ignore[attr-defined]


def send_secret(secret: str) -> None:
    """Send the secret with every request of this process."""
    client: Any = import_module("flwr.supercore.protobuf.client").ProtobufClient
    plain = client.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        self._client.headers[HEADER] = secret

    client.__init__ = init


def _object_files() -> Any:
    """The module next to this script, which does not import Tacit either."""
    found = spec_from_file_location("object_files", Path(__file__).with_name("object_files.py"))
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main(program: str, secret: Path, arguments: list[str]) -> Any:
    """Run one of Flower's programs."""
    sys.argv = [program, *arguments]
    if program == "flower-superlink":
        home = Path(os.environ["FLWR_HOME"])
        _object_files().store_objects_in_files(home / "objects", home / DATABASE)
        guard_superlink(secret.read_text(encoding="ascii"))
        return import_module("flwr.superlink.cli").flower_superlink()
    send_secret(secret.read_text(encoding="ascii"))
    return import_module("flwr.cli.app").app()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
