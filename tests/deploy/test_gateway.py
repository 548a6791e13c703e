"""The hub's public port as a real process: what it passes on, and what never reaches the SuperLink."""

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import certificates, gateway, gateway_rules
from tests.deploy.machines import free_port

pytestmark = pytest.mark.flower

PASSED = "/v1/fleet/pull-messages"


@dataclass
class SuperLink:
    """A server that notes what reaches it, and sends every body back."""

    port: int = field(default_factory=free_port)
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.send_header("flwr-answer", "yes")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = answer  # noqa: N815 — the base class names them

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@dataclass
class Running:
    """A gateway and the server behind it."""

    settings: gateway.Settings
    superlink: SuperLink

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.settings.port), timeout=20)

    def send(self, data: bytes) -> bytes:
        """Send bytes; everything that comes back until the connection is closed, or falls silent."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)


def read_all(connection: socket.socket, silence: float = 3.0) -> bytes:
    connection.settimeout(silence)
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except (TimeoutError, ConnectionResetError):
        pass
    return received


def running(tmp_path: Path, **tls: str) -> Iterator[Running]:
    superlink = SuperLink()
    server = ThreadingHTTPServer(("127.0.0.1", superlink.port), superlink.handler())
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["certificate"], tls["key"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = gateway.Settings("127.0.0.1", free_port(), superlink.port, **tls)
    process = subprocess.Popen(gateway.command(settings))
    try:
        wait_until_open(settings.port)
        yield Running(settings, superlink)
    finally:
        process.terminate()
        assert process.wait(20) == 0
        server.shutdown()
        server.server_close()


def wait_until_open(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from running(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("gateway")
    authority = certificates.create_authority("127.0.0.1")
    server = certificates.issue("127.0.0.1", authority)
    files = {"ca.crt": authority.certificate, "server.pem": server.certificate, "server.key": server.key}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    names = {"certificate": "server.pem", "key": "server.key", "authority": "ca.crt"}
    yield from running(folder, **{name: str(folder / file) for name, file in names.items()})


def request(path: str = PASSED, body: bytes = b"", method: str = "POST", *headers: str, length: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: hub", f"content-length: {length or len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def test_an_order_of_the_fleet_interface_is_passed_on_with_known_headers_only(plain: Running) -> None:
    plain.superlink.seen.clear()
    given = ("flwr-signature: abc", "content-type: application/x", "x-forwarded-for: 1.2.3.4", "connection: close")
    answer = plain.send(request(PASSED, b"hello", "POST", *given))
    assert (status(answer), answer.endswith(b"hello"), b"flwr-answer: yes" in answer.lower()) == (200, True, True)
    ((path, headers, body),) = plain.superlink.seen
    assert (path, body) == (PASSED, b"hello")
    assert set(headers) == {"flwr-signature", "content-type", "content-length", "host"}
    assert headers["host"] == "127.0.0.1"


def flower_routes() -> list[tuple[str, str]]:
    """Every route of the installed SuperLink that is none of the fleet's, with its documentation pages."""
    from fastapi.routing import iter_route_contexts
    from flwr.superlink.main import create_app

    app = create_app()
    found = {
        (method, getattr(each.route, "path", ""))
        for each in iter_route_contexts(app.routes)
        for method in getattr(each.route, "methods", None) or ("GET",)
    }
    outside = sorted(route for route in found if not route[1].startswith("/v1/fleet/"))
    assert {"/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/openapi.json"} <= {at for _, at in outside}
    assert any(path.startswith("/v1/fleet/") for _, path in found)
    return outside


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries below Flower
def test_no_other_route_of_flower_is_reached(plain: Running) -> None:
    plain.superlink.seen.clear()
    for method, path in flower_routes():
        expected = 200 if path == "/health" else 403
        assert status(plain.send(request(path, b"", method, "connection: close"))) == expected, (method, path)
    assert plain.superlink.seen == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_fleet_route_of_flower_is_passed_on(plain: Running) -> None:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    for method, path in PROTOBUF_REQUEST_TYPES:
        if path.startswith("/v1/fleet/"):
            assert status(plain.send(request(path, b"", method, "connection: close"))) == 200, path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/./pull-messages",
        "/v1/fleet//pull-messages",
        "//v1/fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?x=1",
        "/v1/fleet/pull-messages;x",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/",
        "/v1/fleet",
        "/v1/fleets/pull-messages",
        "/V1/FLEET/pull-messages",
        "/v1/%66leet/pull-messages",
        "/v1/fleet\\..\\control\\start-run",
        "http://127.0.0.1/v1/fleet/pull-messages",
        "http://127.0.0.1/v1/control/start-run",
        "*",
        "/",
    ],
)
def test_a_path_of_any_other_form_is_refused(plain: Running, path: str) -> None:
    plain.superlink.seen.clear()
    assert status(plain.send(request(path, b"", "POST", "connection: close"))) in (400, 403)
    assert plain.superlink.seen == []


SMUGGLED = request("/v1/control/start-run")


@pytest.mark.parametrize(
    "data",
    [
        request(PASSED, SMUGGLED, "POST", "transfer-encoding: chunked", length="4"),
        request(PASSED, b"0\r\n\r\n" + SMUGGLED, "POST", "transfer-encoding: chunked"),
        request(PASSED, b"", "POST", "content-length: 5"),
        request(PASSED, b"x", length="+1"),
        request(PASSED, b"x", length="-1"),
        request(PASSED, b"x", length="1, 2"),
        request(PASSED, b"x", length="0x1"),
        b"POST /v1/fleet/a HTTP/1.1\r\nhost: a\r\ncontent-length : 0\r\n\r\n" + SMUGGLED,
        b"POST /v1/fleet/a HTTP/1.1\r\nhost: a\r\n content-length: 0\r\n\r\n" + SMUGGLED,
        b"POST /v1/fleet/a HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/1.1\r\nhost: a\r\n\r\n" + SMUGGLED,
        b"POST /v1/fleet/a HTTP/1.0\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        b"POST /v1/fleet/a HTTP/0.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
    ],
)
def test_no_request_hides_another_one(plain: Running, data: bytes) -> None:
    plain.superlink.seen.clear()
    plain.send(data)
    for path, _, body in plain.superlink.seen:  # at most an empty order of the fleet
        assert (path, body) == ("/v1/fleet/a", b"")


def test_requests_in_a_row_are_checked_one_by_one(plain: Running) -> None:
    plain.superlink.seen.clear()
    answer = plain.send(request(PASSED, b"one") + request(PASSED, b"two") + SMUGGLED + request(PASSED, b"three"))
    assert [body for _, _, body in plain.superlink.seen] == [b"one", b"two"]
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 403") == 1


def test_long_heads_and_bodies_are_refused_before_they_are_read(plain: Running) -> None:
    plain.superlink.seen.clear()
    assert status(plain.send(request(PASSED, b"", "POST", f"flwr-x: {'a' * 20_000}"))) == 431
    assert status(plain.send(request(PASSED, b"", length=str(gateway_rules.LONGEST_BODY + 1)))) == 413
    assert plain.superlink.seen == []


def test_a_large_body_of_a_known_address_arrives_whole(encrypted: Running) -> None:
    encrypted.superlink.seen.clear()
    body = bytes(range(256)) * (20 * 2**20 // 256)
    context = ssl.create_default_context(cafile=encrypted.settings.authority)

    def answer(data: bytes) -> bytes:
        with context.wrap_socket(encrypted.connect(), server_hostname="127.0.0.1") as connection:
            sender = threading.Thread(target=connection.sendall, args=[data])
            sender.start()
            received = read_all(connection, 60)
            sender.join()
            return received

    assert status(answer(request(length=str(len(body))))) == 413  # the SuperLink would read it all before it asks who
    assert encrypted.superlink.seen == []
    assert status(answer(request(PASSED, b"", "POST", "connection: close"))) == 200
    assert answer(request(PASSED, body, "POST", "connection: close")).endswith(body)
    assert encrypted.superlink.seen[1][2] == body


def test_a_hub_with_a_certificate_speaks_only_modern_tls(encrypted: Running) -> None:
    encrypted.superlink.seen.clear()
    assert not encrypted.send(request()).startswith(b"HTTP")
    context = ssl.create_default_context(cafile=encrypted.settings.authority)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)), encrypted.connect() as raw:
        context.wrap_socket(raw, server_hostname="127.0.0.1")
    assert encrypted.superlink.seen == []


def test_the_hub_tells_whether_it_runs_and_what_time_it_is(plain: Running) -> None:
    plain.superlink.seen.clear()
    answer = plain.send(request("/health", b"", "GET", "connection: close"))
    assert status(answer) == 200
    assert b"\r\ndate: " in answer.lower()
    assert plain.superlink.seen == []


def test_one_address_gets_a_limited_number_of_connections(plain: Running) -> None:
    assert status(plain.send(request(PASSED, b"", "POST", "connection: close"))) == 200  # the address is known from now
    opened = [plain.connect() for _ in range(gateway_rules.PER_ADDRESS)]
    try:
        with plain.connect() as further:
            further.settimeout(20)
            assert further.recv(1) == b""  # closed at once
    finally:
        for connection in opened:
            connection.close()
    until = time.monotonic() + 20
    while status(plain.send(request(PASSED, b"", "POST", "connection: close"))) != 200:
        assert time.monotonic() < until


def test_strangers_do_not_use_up_the_connections_of_sites() -> None:
    admission = gateway_rules.Admission()
    admission.trust("192.0.2.1")
    for network in range(256):
        for host in range(1, 200):
            admission.enter(f"10.0.{network}.{host}")
    assert not admission.enter("203.0.113.1")
    assert all(admission.enter("192.0.2.1") for _ in range(gateway_rules.PER_ADDRESS))
    assert not admission.enter("192.0.2.1")
    admission.leave("192.0.2.1")
    assert admission.enter("192.0.2.1")


@pytest.mark.parametrize(
    "addresses", [["192.0.2.9"], [f"2001:db8::{k:x}" for k in range(1, 500)], ["::ffff:192.0.2.9"]]
)
def test_a_stranger_gets_few_connections_with_any_number_of_addresses(addresses: list[str]) -> None:
    admission = gateway_rules.Admission()
    admitted = sum(admission.enter(addresses[k % len(addresses)]) for k in range(500))
    assert admitted == gateway_rules.PER_STRANGER
    assert admission.enter("2001:db8:0:1::1")


def test_a_superlink_that_is_gone_is_a_bad_gateway() -> None:
    settings = gateway.Settings("127.0.0.1", free_port(), free_port())
    process = subprocess.Popen(gateway.command(settings))
    try:
        wait_until_open(settings.port)
        with socket.create_connection(("127.0.0.1", settings.port)) as connection:
            connection.sendall(request())
            assert status(read_all(connection)) == 502
    finally:
        process.terminate()
        process.wait(20)


def test_the_settings_travel_as_json() -> None:
    settings = gateway.Settings("::1", 1, 2, "a", "b", "c")
    assert gateway.Settings(**json.loads(gateway.command(settings)[-1])) == settings
