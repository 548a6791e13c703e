"""The hub's public port: it passes Flower's fleet interface on to the SuperLink, and nothing else.

A program: `python -m tacit.deploy.gateway SETTINGS`, with the fields of `Settings` as JSON. The SuperLink has one port
for everything: sites fetch work there, but anyone who reaches it can also start runs, which bring their own programs.
So the SuperLink listens on this machine only, and sites reach this process.

A request is parsed, checked, and written again from its parts: the path has a fixed form, the headers are known, the
length is stated. No byte of a refused request reaches the SuperLink.
"""

import asyncio
import json
import resource
import signal
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from email.utils import formatdate

import h11

from tacit.deploy import gateway_rules as rules

LARGE_BODIES = 32  # that may be under way at the same time
HANDSHAKE_SECONDS = 15.0
HEAD_SECONDS = 30.0  # for the next request; Flower's nodes close an idle connection sooner
STALL_SECONDS = 60.0  # between two parts of a body
BODY_SECONDS = 600.0  # for a whole body
ANSWER_SECONDS = 300.0  # until the SuperLink answers
REUSE_SECONDS = 3.0  # the SuperLink closes its connections after five seconds without a request
PART = 256 * 1024  # bytes that are read at once
LOGGED, SHOWN = 100_000, 100  # refused requests that are printed, and letters of their paths


@dataclass(frozen=True)
class Settings:
    """Where to listen, and how to reach the SuperLink; without certificates nothing is encrypted."""

    host: str
    port: int
    superlink: int  # the SuperLink's port on this machine
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None  # verifies the SuperLink, which has the same certificate

    def server_tls(self) -> ssl.SSLContext | None:
        """TLS towards sites."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client_tls(self) -> ssl.SSLContext | None:
        """TLS towards the SuperLink."""
        return None if self.authority is None else ssl.create_default_context(cafile=self.authority)


@dataclass
class Peer:
    """One end of a connection: the stream, and the state of HTTP on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    address: str = "127.0.0.1"
    used: float = field(default_factory=time.monotonic)  # when it was last used

    async def event(self) -> object:
        """The next event; raises h11.RemoteProtocolError for anything that is not HTTP/1.1."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(PART))
        return event

    async def send(self, event: h11.Event) -> None:
        """Send an event; waits while the other end reads more slowly than we write."""
        if data := self.http.send(event):
            self.writer.write(data)
            await self.writer.drain()
        self.used = time.monotonic()

    def next_request(self) -> bool:
        """Whether another request may follow on this connection."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    async def finish(self) -> None:
        """End the connection once the other end has what was sent."""
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(STALL_SECONDS):
                await self.writer.wait_closed()
        self.close()

    def close(self) -> None:
        """End the connection at once."""
        self.writer.transport.abort()


class Gateway:
    """The connections of all sites."""

    def __init__(self, settings: Settings) -> None:
        """Read the certificates."""
        self.settings = settings
        self._server_tls, self._client_tls = settings.server_tls(), settings.client_tls()
        self._admission = rules.Admission()
        self._refused = 0
        self._large = asyncio.Semaphore(LARGE_BODIES)
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Serve the connections to a port for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listening)
            except OSError:  # out of file handles, say
                await asyncio.sleep(0.5)
                continue
            if not self._admission.enter(address):
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        """Serve one connection; whatever is wrong with it ends this one only."""
        try:
            with suppress(OSError, EOFError, TimeoutError, h11.ProtocolError):
                site = await self._welcome(connection, address)
                try:
                    await self._requests(site)
                    await site.finish()
                finally:
                    site.close()
        finally:
            connection.close()
            self._admission.leave(address)

    async def _welcome(self, connection: socket.socket, address: str) -> Peer:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        reader = asyncio.StreamReader(limit=2 * PART, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        seconds = HANDSHAKE_SECONDS if self._server_tls else None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._server_tls, ssl_handshake_timeout=seconds
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return Peer(reader, writer, h11.Connection(h11.SERVER, rules.LONGEST_HEAD), address)

    async def _requests(self, site: Peer) -> None:
        """Answer the requests of one connection, one after the other."""
        superlink: Peer | None = None
        try:
            while True:
                request: object = None
                try:
                    async with asyncio.timeout(HEAD_SECONDS):
                        request = await site.event()
                    if not isinstance(request, h11.Request):
                        return
                    superlink = await self._answer(site, request, superlink)
                except h11.RemoteProtocolError as error:
                    await self._refuse(site, error.error_status_hint, request)
                    return
                except rules.RefusedError as refused:
                    await self._refuse(site, refused.status, request)
                    return
                if not site.next_request():
                    return
        finally:
            if superlink:
                superlink.close()

    async def _refuse(self, site: Peer, status: int, request: object) -> None:
        """Refuse a request, and print that, but no more than LOGGED times: strangers must not fill the disk."""
        self._refused += 1
        if self._refused <= LOGGED:
            what = ascii(request.target[:SHOWN]) if isinstance(request, h11.Request) else "not HTTP/1.1"
            print(f"{formatdate(usegmt=True)} {site.address} {status} {what}", flush=True)
        await _reply(site, status)

    async def _answer(self, site: Peer, request: h11.Request, superlink: Peer | None) -> Peer | None:
        """Answer one request; the connection to the SuperLink, for the next one."""
        if request.method in (b"GET", b"HEAD") and request.target == rules.HEALTH:
            await _end_of_message(site)
            await _reply(site, 200)
            return superlink
        headers = rules.checked(request)
        length = next(int(value) for name, value in headers if name == b"content-length")
        if length <= rules.LARGE_BODY:
            return await self._pass_on(site, request, headers, superlink)
        if not self._admission.knows(site.address):  # a site's first requests are small
            raise rules.RefusedError(413)
        async with self._large:
            return await self._pass_on(site, request, headers, superlink)

    async def _pass_on(
        self, site: Peer, request: h11.Request, headers: list[tuple[bytes, bytes]], superlink: Peer | None
    ) -> Peer | None:
        superlink = await self._connected(superlink)
        await superlink.send(h11.Request(method=request.method, target=request.target, headers=headers))
        async with asyncio.timeout(BODY_SECONDS):
            await _copy(site, superlink)
        async with asyncio.timeout(ANSWER_SECONDS):
            response = await superlink.event()
        if not isinstance(response, h11.Response):
            raise ConnectionError("the SuperLink sent no answer")
        if response.status_code == 200:  # it has checked the signature
            self._admission.trust(site.address)
        headers = [*rules.passed_back(response), (b"date", formatdate(usegmt=True).encode())]
        await site.send(h11.Response(status_code=response.status_code, headers=headers, reason=response.reason))
        await _copy(superlink, site)
        return superlink if superlink.next_request() else None

    async def _connected(self, superlink: Peer | None) -> Peer:
        """The connection of the last request, or a new one."""
        if superlink and time.monotonic() < superlink.used + REUSE_SECONDS and not superlink.reader.at_eof():
            return superlink
        if superlink:
            superlink.close()
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.settings.superlink, ssl=self._client_tls, limit=2 * PART
            )
        except OSError:
            raise rules.RefusedError(502) from None
        return Peer(reader, writer, h11.Connection(h11.CLIENT, rules.LONGEST_HEAD))


async def _copy(source: Peer, target: Peer) -> None:
    """Copy the body of a message, part by part."""
    while True:
        async with asyncio.timeout(STALL_SECONDS):
            event = await source.event()
        match event:
            case h11.Data() | h11.EndOfMessage():
                await target.send(h11.Data(data=event.data) if isinstance(event, h11.Data) else h11.EndOfMessage())
            case _:
                raise ConnectionError("the other end is gone")
        if isinstance(event, h11.EndOfMessage):
            return


async def _end_of_message(site: Peer) -> None:
    async with asyncio.timeout(HEAD_SECONDS):
        if not isinstance(await site.event(), h11.EndOfMessage):
            raise rules.RefusedError(400)


async def _reply(site: Peer, status: int) -> None:
    """An answer without a body; one that refuses ends the connection."""
    headers = [("content-length", "0"), ("date", formatdate(usegmt=True))]
    headers += [] if status == 200 else [("connection", "close")]
    if site.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await site.send(h11.Response(status_code=status, headers=headers))
        await site.send(h11.EndOfMessage())
    if status != 200:  # the client may still be writing: let it read the answer before the connection is reset
        with suppress(OSError, TimeoutError):
            if site.writer.can_write_eof():
                site.writer.write_eof()
            async with asyncio.timeout(1.0):
                while await site.reader.read(PART):
                    pass


async def serve(settings: Settings) -> None:
    """Listen until SIGTERM or SIGINT."""
    gateway, loop = Gateway(settings), asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    both = settings.host == "::" and socket.has_dualstack_ipv6()
    address = settings.host, settings.port
    with socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both) as listening:
        listening.setblocking(False)
        accepting = asyncio.create_task(gateway.accept(listening))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, accepting.cancel)
        with suppress(asyncio.CancelledError):
            await accepting


def main(text: str) -> None:
    """Run with the settings in a text."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * rules.CONNECTIONS)), hard))
    asyncio.run(serve(Settings(**json.loads(text))))


def command(settings: Settings) -> list[str]:
    """The command that runs this program. It imports next to nothing of Tacit, so it starts at once."""
    return [sys.executable, "-m", "tacit.deploy.gateway", json.dumps(asdict(settings))]


if __name__ == "__main__":
    main(sys.argv[1])
