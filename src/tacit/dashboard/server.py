"""The page's server: on loopback only, with a secret in its address, for reading only."""

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files as package_files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tacit.dashboard import details
from tacit.dashboard.board import Board
from tacit.errors import TacitError
from tacit.runs.directory import shown

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
LOCAL = {"127.0.0.1", "localhost", "[::1]"}  # names that no other machine can take over
PORT = 8765  # if it is free
PAGE = {
    "": ("index.html", "text/html; charset=utf-8"),
    "watch.css": ("watch.css", "text/css; charset=utf-8"),
    **{f"{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
       for name in ("watch", "chart", "state", "format", "table", "detail", "panels", "parts")},
}  # fmt: skip
# The page loads its own files and asks its own server; a report, which others may have written, gets no script at all.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": STRICT,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MOST_CONNECTIONS = 100
CHUNK = 1 << 18

Endpoint = Callable[["Request"], Awaitable["Response"]]


def refuse_without_packages() -> None:
    """Refuse to go on where the extra is not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise TacitError(
            "the page needs Starlette and uvicorn", "install them with pip install 'tacit[watch]'", code="watch.missing"
        )


def application(board: Board, token: str) -> "Starlette":
    """The page, its data and the files of runs, below the token."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def page(request: "Request") -> Response:
        known = PAGE.get(request.path_params.get("name", ""))
        if known is None:
            return _nothing()
        content = package_files("tacit.dashboard").joinpath("page", known[0]).read_bytes()
        return Response(content, media_type=known[1])

    async def updates(request: "Request") -> Response:
        query = request.query_params
        wanted = _wanted(query.get("series", ""))
        found = await run_in_threadpool(board.updates, query.get("boot", ""), _int(query.get("since")), wanted)
        return JSONResponse(found)

    async def run(request: "Request") -> Response:
        found = board.run(request.path_params["id"])
        return _nothing() if found is None else JSONResponse(await run_in_threadpool(details.of_run, found))

    async def group(request: "Request") -> Response:
        folder = board.folder(request.path_params["id"])
        return _nothing() if folder is None else JSONResponse(await run_in_threadpool(details.of_group, folder))

    async def file(request: "Request") -> Response:
        name, folder = request.path_params["name"], board.folder(request.path_params["id"])
        try:
            if folder is None:
                raise FileNotFoundError(name)
            opened = await run_in_threadpool(shown.opened, folder, name)
        except OSError:
            return _nothing()
        kind, size = shown.KINDS[name], os.fstat(opened.fileno()).st_size
        headers = {"Content-Length": str(size), "Content-Security-Policy": SANDBOX}
        headers |= {"Content-Disposition": f'attachment; filename="{name}"'} if kind == shown.DATA else {}
        return StreamingResponse(_parts(opened, size), media_type=kind, headers=headers)

    routes = [
        Route("/{token}/", page),
        Route("/{token}/api/updates", updates),
        Route("/{token}/api/run/{id}", run),
        Route("/{token}/api/group/{id}", group),
        Route("/{token}/files/{id}/{name}", file),
        Route("/{token}/{name}", page),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(Guard, token=token)
    return app


class Guard:
    """Answers only requests that read, come from this machine's own browser, and know the token."""

    def __init__(self, app: Any, token: str) -> None:
        """`app` is what comes after it."""
        self.app, self._token = app, token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it; every answer has the headers that keep the page to itself."""
        if scope["type"] != "http":
            return
        refused = self._refused(scope)

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(n.lower().encode(), v.encode()) for n, v in HEADERS.items() if n.lower().encode() not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if refused:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await guarded({"type": "http.response.start", "status": refused[0], "headers": headers})
            await guarded({"type": "http.response.body", "body": refused[1].encode()})
        else:
            await self.app(scope, receive, guarded)

    def _refused(self, scope: Any) -> tuple[int, str] | None:
        """Status and text of a refusal; None if the request is in order."""
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0].rsplit(":", 1)[0].lower() not in LOCAL:
            return 421, "this page is for 127.0.0.1 only\n"  # another name may lead here by a trick (DNS rebinding)
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this page only reads\n"
        if any(value != f"http://{hosts[0]}" for name, value in headers if name == b"origin"):
            return 403, "another page asks\n"
        site = next((value for name, value in headers if name == b"sec-fetch-site"), "none")
        mode = next((value for name, value in headers if name == b"sec-fetch-mode"), "")
        if site not in ("none", "same-origin") and mode != "navigate":
            return 403, "another page asks\n"
        given = scope["path"].split("/")[1].encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token):
            return 404, "nothing here; use the address that `tacit watch` printed\n"
        return None


def _nothing() -> "Response":
    from starlette.responses import PlainTextResponse

    return PlainTextResponse("nothing here\n", 404)


def _parts(opened: Any, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, which may grow meanwhile."""
    with opened:
        while size > 0 and (part := opened.read(min(CHUNK, size))):
            size -= len(part)
            yield part


def _int(text: str | None, default: int = -1) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default


def _wanted(text: str) -> dict[str, tuple[int, int]]:
    """`ID:EPOCH:ROWS,…` as the page asks for it."""
    found = {}
    for part in text.split(",")[:1000]:
        id, _, rest = part.partition(":")
        epoch, _, rows = rest.partition(":")
        if id and _int(rows) >= 0:
            found[id] = _int(epoch), _int(rows)
    return found


# --- running ----------------------------------------------------------------------------------------------------------


def listening(port: int | None) -> socket.socket:
    """A socket on loopback at this port; by default at PORT, or at another one if that is taken."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for each in [PORT, 0] if port is None else [port]:
        try:
            found.bind((HOST, each))
            return found
        except OSError:
            continue
    found.close()
    raise TacitError(f"port {port} is in use on this machine", "choose another --port", code="watch.port-in-use")


@contextmanager
def following(board: Board) -> Iterator[None]:
    """Keep a board up to date while the block runs."""
    until = threading.Event()
    thread = threading.Thread(target=board.follow, args=(until,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join(10)


def serve(board: Board, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `announce` gets its address once it can be opened."""
    refuse_without_packages()
    import uvicorn

    token = secrets.token_urlsafe(24)
    found = listening(port)
    config = uvicorn.Config(
        application(board, token),
        log_level="warning",
        access_log=False,  # it would hold the token
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    with found, following(board):
        found.listen(64)
        announce(f"http://{HOST}:{found.getsockname()[1]}/{token}/")
        uvicorn.Server(config).run(sockets=[found])
