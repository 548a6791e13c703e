"""A site with a wrong clock is told so, since the hub only refuses it."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tacit.deploy import clock, supernode
from tests.deploy import places
from tests.refusals import refused

START = 1_800_000_000.0  # of the hub's clock


class Health(BaseHTTPRequestHandler):
    """Says the hub's time."""

    date: str | None = formatdate(START, usegmt=True)

    def do_GET(self) -> None:
        self.send_response_only(200)
        if self.date is not None:
            self.send_header("Date", self.date)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a hub that answers /health."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "ahead, fits", [(0, True), (3, True), (-290, True), (10, False), (-400, False), (3600, False), (-86400, False)]
)
def test_a_wrong_clock_is_named_before_joining(
    ahead: float, fits: bool, hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.deploy.clock.time.time", lambda: START + ahead)
    if fits:
        clock.require_clock(hub, None)
        return
    with refused("site.wrong-clock") as caught:
        supernode.join(places.site(tmp_path, "a", port=1), hub, lambda text: None, any_run=True)
    assert f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the hub's" in caught.error.problem


@pytest.mark.parametrize("date", [None, "", "yesterday", "\x00"])
def test_a_hub_that_does_not_say_its_time_is_no_reason_to_refuse(
    date: str | None, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Health, "date", date)
    assert clock.clock_ahead(hub, None) is None
    clock.require_clock(hub, None)


def test_a_hub_that_is_not_there_is_no_reason_to_refuse(tmp_path: Path) -> None:
    clock.require_clock("127.0.0.1:1", None)
    (tmp_path / "ca.crt").write_text("no certificate")
    clock.require_clock("127.0.0.1:1", tmp_path / "ca.crt")
