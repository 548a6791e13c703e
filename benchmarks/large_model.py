"""A run over three sites with a model of 60 million parameters: seconds, peak memory, and what the hub stores.

    python benchmarks/large_model.py [--rounds 1] [--width 60]

A hub and three sites run as processes on loopback, with TLS and keys. Each round sends the model (240 MB) to every site
and back. The resident memory of every process is read four times a second; the sum over all processes of the hub, or of
a site, counts pages that processes share more than once, so that it is an upper bound. Seconds depend on the machine
and on who else uses it; sizes and memory hardly do.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w
from flower import SITES, going, set_up, tacit, write_config  # type: ignore[import-not-found]  # the script beside this

from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.processes import interrupt_on_termination
from tacit.runs import toml_file
from tacit.runs.directory import RunDirectory

PAUSE = 0.25  # seconds between two looks
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Peaks(threading.Thread):
    """Looks at processes and folders until it is told to stop, and notes the largest values."""

    def __init__(self, hub: HubDirectory) -> None:
        """For a hub whose sites are in folders beside its own."""
        super().__init__(daemon=True)
        self.largest: dict[str, int] = {}
        self._hub, self._done = hub, threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._done.wait(PAUSE):
            self._note("state.db", _size(self._hub.database))
            objects = self._hub.flower_home / "objects"
            self._note("flower/objects", sum(map(_size, objects.iterdir())) if objects.is_dir() else 0)
            for name, bytes in _memory(self._hub.path.parent).items():
                self._note(name, bytes)

    def stop(self) -> None:
        """End it."""
        self._done.set()
        self.join()

    def _note(self, name: str, value: int) -> None:
        self.largest[name] = max(value, self.largest.get(name, 0))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _memory(folder: Path) -> dict[str, int]:
    """The resident memory of the largest process of the hub and of a site, and of all of them together."""
    found: dict[str, list[int]] = {name: [] for name in ("hub", *SITES)}
    parents, lines, sizes = _processes()
    for pid, size in sizes.items():
        line, above = "", pid
        while above in lines:  # a process that was forked for a message has no path in its own command line
            line, above = f"{line} {lines[above]}", parents[above]
        owner = next((name for name in (*SITES, "hub") if f"{folder}/{name}" in line), None)
        if owner is not None:
            found[owner].append(size)
    sums = {name: sum(of_one) for name, of_one in found.items()}
    return {
        "largest process of the hub": max(found["hub"], default=0),
        "all processes of the hub": sums["hub"],
        "largest process of a site": max((size for name in SITES for size in found[name]), default=0),
        "all processes of a site": max(sums[name] for name in SITES),
    }


def _processes() -> tuple[dict[int, int], dict[int, str], dict[int, int]]:
    """Parent, command line and resident bytes of every process, by its id."""
    parents, lines, sizes = dict[int, int](), dict[int, str](), dict[int, int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(place.name)
            parents[pid] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            lines[pid] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            sizes[pid] = int((place / "statm").read_text().split()[1]) * PAGE_BYTES
    return parents, {pid: line for pid, line in lines.items() if pid in sizes}, sizes


@contextmanager
def watched(hub: HubDirectory) -> Iterator[Peaks]:
    """The largest values while the block runs."""
    peaks = Peaks(hub)
    peaks.start()
    try:
        yield peaks
    finally:
        peaks.stop()


def main() -> None:
    """Play the run and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--width", type=float, default=60.0, help="of the mlp; 60 has 61 million parameters")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-large-") as name, interrupt_on_termination(), ExitStack() as running:
        folder = Path(name)
        hub = set_up(folder)
        config = write_config(folder, given.rounds)
        tree: dict[str, Any] = {**toml_file.read(config), "net": {"name": "mlp", "width": given.width}}
        config.write_text(tomli_w.dumps(tree), encoding="utf-8")
        running.enter_context(going(folder, "hub", "start", "--hub", str(hub.path), until="The hub listens at"))
        for site in SITES:
            words = ("site", "join", hub.address, "--any-run", "--site", str(folder / site))
            running.enter_context(going(folder, *words, until=f"joined as {site}"))
        began = time.monotonic()
        with watched(hub) as peaks:
            tacit(folder, "hub", "run", str(config), "--hub", str(hub.path))
        seconds = time.monotonic() - began
        (run,) = (RunDirectory(path) for path in hub.runs_folder.iterdir())
        rounds = run.rounds()
        print(f"parameters            {rounds[0].bytes_up / len(SITES) / 4 / 1e6:10.1f} million")
        print(f"sites that answered   {min(record.clients for record in rounds):10} of {len(SITES)} in every round")
        print(f"bytes of a round      {rounds[0].all_bytes / 1e6:10.0f} MB")
        print(f"seconds of the run    {seconds:10.0f}")
        print(f"seconds of a round    {max(record.seconds for record in rounds):10.0f}")
        for what, bytes in peaks.largest.items():
            print(f"{what + ', most':<34} {bytes / 1e6:10.1f} MB")
        print(f"{'state.db at the end':<34} {_size(hub.database) / 1e6:10.1f} MB")


if __name__ == "__main__":
    main()
