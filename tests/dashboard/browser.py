"""A page in headless Chromium, driven through DevTools' protocol over two pipes, so that no port is opened."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --hide-scrollbars "
    "--remote-debugging-pipe --enable-precise-memory-info"
)
# Chromium reads from file 3 and writes to file 4.
START = """import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3, inheritable=True)
os.dup2(write, 4, inheritable=True)
os.execv(sys.argv[3], sys.argv[3:])"""
TIMEOUT = 120.0  # seconds, on a busy machine


class Browser:
    """One tab. Every wait has an end, and every message of the page's console and network is noted."""

    def __init__(self, process: "subprocess.Popen[bytes]", write: int, read: int) -> None:
        self._process, self._write, self._read = process, write, read
        self._buffer, self._last = b"", 0
        self.requests: list[str] = []
        self.console: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the tab."""
        return self._call(method, values, self._session)

    def _call(self, method: str, values: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": values} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT
        while True:
            answer = self._receive(until)
            if answer.get("id") == message["id"]:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        values = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.console.append(json.dumps(values["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(values["exceptionDetails"]))
            case "Log.entryAdded":
                self.console.append(json.dumps(values["entry"]))

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str, timeout: float = TIMEOUT) -> Any:
        """Wait until an expression is true; its value."""
        until = time.monotonic() + timeout
        while not (value := self.run(condition)):
            assert time.monotonic() < until, f"never true: {condition}\n{self.run('document.body.innerText')[:2000]}"
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def size(self, width: int, height: int = 900) -> None:
        """Give the window a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def scheme(self, name: str) -> None:
        """Prefer light or dark colours."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key: str) -> None:
        """Press a key: Tab, Enter, Escape, ArrowLeft, or a letter."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, " ": 32}
        letter = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
        code = codes.get(key, ord(key[0].upper()))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **letter)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.call("Input.insertText", text=text)

    def heap(self) -> int:
        """Bytes that the page's objects take after the unused ones are gone."""
        for _ in range(3):
            self.call("HeapProfiler.collectGarbage")
        return int(self.run("performance.memory.usedJSHeapSize"))

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        """Write a picture of the page."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(done["data"]))


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, which ends with the block."""
    assert CHROMIUM is not None
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()

    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            START,
            str(to_browser),
            str(from_browser),
            CHROMIUM,
            *FLAGS.split(),
            f"--user-data-dir={profile}",
        ],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(process, from_us, to_us)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(30)
        os.close(from_us)
        os.close(to_us)
