"""What a round on real machines costs, as a ratio of an empty round of Flower as its users have it.

    python benchmarks/flower.py [--rounds 4] [--blocks 3]

A hub and three sites run as processes on loopback, with TLS and keys. Flower alone are its own programs with its own
settings, and an app that sends an empty message to every node and awaits the replies with `Grid.send_and_receive`; the
same with `import torch` in its client shows what every app pays that trains. Ours is `tacit hub start`, `tacit site
join` and a run of fedavg with one step of a small network: it sends a model both ways and merges, and looks for work
more often than Flower does by itself, so that it may even be the faster one. They take turns in blocks, each with
programs of its own, and a block's first round is not counted. A round is the time from its messages to those of the
next, and its parts are those of the site that is done last. Seconds depend on the machine and on who else uses it, the
more as all three sites share its cores, so only the ratio of the medians counts; it is the last line.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import tomli_w

from tacit.deploy import flower_cli, hub_service, supernode
from tacit.deploy.apps import run_settings
from tacit.deploy.hub_directory import CONNECTION, HubDirectory
from tacit.deploy.processes import Program, interrupt_on_termination
from tacit.deploy.settings import Site, load_settings

SITES = ("north", "south", "east")
PATIENCE = 900.0  # seconds for one block, or for a program to start
OURS = "Tacit"
ALONE = {"Flower": "", "Flower + torch": "import torch\n"}  # and what the client imports

Times = list[float]  # the parts of one round, in the order of PARTS, and before them the processor's
PARTS = (  # what lies between two stamps of a client; the last one is the next round's message
    "until Flower starts a process: looks for work",
    "until the process has Flower and the app's files",
    "imports of the app",
    "until the app has its message",
    "the client's work",
    "the way back: looks for replies, merge, next messages",
)

# --- the apps ---------------------------------------------------------------------------------------------------------

PROJECT: dict[str, Any] = {
    "project": {"name": "empty-app", "version": "1.0.0", "description": "An empty round", "license": "Apache-2.0"},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "tacit",
                "components": {"serverapp": "app.server:app", "clientapp": "app.client:app"},
                "config": {"rounds": 1},
            }
        }
    },
}
SERVER = """\
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    for round in range(context.run_config["rounds"]):
        content = RecordDict({"empty": ConfigRecord({})})
        messages = [Message(content, node, "train", group_id=str(round)) for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
        assert len(replies) == 3 and not any(reply.has_error() for reply in replies)
"""
CLIENT = """\
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""
# Around a client: its time on the processor; when its message was made, its process began, its module was reached,
# loaded, asked and done.
STAMPING = """\
import json
import os
import time
from pathlib import Path


def begun():
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - float(Path("/proc/uptime").read_text().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")


def stamped(plain, reached=None, loaded=None):
    class Stamped(type(plain)):
        def __init__(self):
            self.__dict__ = plain.__dict__

        def __call__(self, message, context):
            asked, about = time.time(), message.metadata
            reply = super().__call__(message, context)
            if about.message_type == "train":
                before = [about.created_at, begun(), reached or asked, loaded or asked]
                times = [time.process_time(), *before, asked, time.time()]
                Path({stamps!r}, f"{{about.group_id}}-{{context.node_id}}.json").write_text(json.dumps(times))
            return reply

    return Stamped()
"""
STAMPED = """\
import time

reached = time.time()
from app.plain import app as plain

app = stamped(plain, reached, time.time())
"""
# A site of Tacit's runs the app of its installation, whatever the hub sends, and loads it before there is a message.
# Python imports `sitecustomize` when it starts.
CUSTOMIZE = """\
import importlib.abc
import importlib.util
import sys


class Stamps(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "tacit.deploy.apps":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def execute(module):
            load(module)
            plain = module.client
            module.client = lambda: stamped(plain())

        spec.loader.exec_module = execute
        return spec


sys.meta_path.insert(0, Stamps())
"""


def write_alone(folder: Path, imports: str) -> None:
    """An app of Flower alone."""
    files = {
        "pyproject.toml": tomli_w.dumps(PROJECT),
        "app/__init__.py": "",
        "app/server.py": SERVER,
        "app/client.py": imports + CLIENT,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def stamp(folder: Path) -> None:
    """Have an app's client write its times to a folder next to the app."""
    (folder / "app" / "client.py").rename(folder / "app" / "plain.py")
    text = STAMPING.format(stamps=str(stamps(folder))) + STAMPED
    (folder / "app" / "client.py").write_text(text, encoding="utf-8")


def stamp_sites(app: Path) -> Path:
    """A folder for the Python path of sites, which makes Tacit's own client write its times."""
    folder = app.with_name(f"{app.name}-path")
    folder.mkdir()
    text = STAMPING.format(stamps=str(stamps(app))) + CUSTOMIZE
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


def stamps(folder: Path) -> Path:
    """Where the clients of an app note their times."""
    return folder.with_name(f"{folder.name}-stamps")


def write_config(folder: Path, rounds: int) -> Path:
    """A run of fedavg with next to no work."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 16, 16), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(folder / "data.npz", x=pixels[:45], y=labels[:45], x_test=pixels[45:], y_test=labels[45:])
    config: dict[str, Any] = {
        "rounds": rounds,
        "method": {"name": "fedavg+supervised"},
        "data": {"name": str(folder / "data.npz"), "labels": "client", "per_class": 4, "clients": len(SITES)},
        "train": {"steps": 1, "batch": 6},
    }
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    return folder / "config.toml"


# --- the hub and its sites --------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def finish(command: Sequence[str], home: Path, log: Path) -> None:
    """Run a program to its end, in bounded time."""
    with flower_cli.running(command, home, log) as program:
        until = time.monotonic() + PATIENCE
        while (code := program.exit_code()) is None and time.monotonic() < until:
            time.sleep(0.1)
        if code != 0:
            sys.exit(f"{' '.join(command[:4])} … failed or took too long: {flower_cli.last_lines(program.output(), 3)}")


def tacit(folder: Path, *words: str) -> None:
    """Run a command of `tacit` to its end."""
    finish([sys.executable, "-m", "tacit", *words], folder, folder / "setup.log")


@contextmanager
def going(folder: Path, *words: str, until: str) -> Iterator[None]:
    """A command of `tacit` that runs while the block does, and has said a text when it begins."""
    log = folder / f"{'-'.join(words[:2])}-{Path(words[-1]).name}.log"
    with flower_cli.running([sys.executable, "-m", "tacit", *words], folder, log) as program:
        await_word(program, until)
        yield


def await_word(program: Program, text: str) -> None:
    """Return once a program has said it."""
    limit = time.monotonic() + PATIENCE
    while text not in program.output():
        if program.exit_code() is not None or time.monotonic() > limit:
            sys.exit(f"'{text}' was not said, but: {flower_cli.last_lines(program.output(), 3)}; see {program.log}")
        time.sleep(0.1)


def set_up(folder: Path) -> HubDirectory:
    """A hub that knows three sites; nothing runs yet."""
    hub = str(folder / "hub")
    tacit(folder, "hub", "init", hub, "--port", str(free_port()))
    for name in SITES:
        site = folder / name
        tacit(folder, "site", "init", str(site), "--name", name, "--port", str(free_port()))
        shutil.copy(folder / "hub" / "ca.crt", site)
        with (site / "site.toml").open("a", encoding="utf-8") as settings:
            settings.write(tomli_w.dumps({"allow_data": [str(folder / "data.npz")]}))
        tacit(folder, "hub", "add", name, str(site / f"{name}.key.pub"), "--hub", hub)
    return HubDirectory.open(folder / "hub")


@contextmanager
def with_tacit(hub: HubDirectory, path: Path) -> Iterator[None]:
    """The hub and its sites as Tacit runs them, with a folder in their Python path."""
    folder = hub.path.parent
    paths = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    with ExitStack() as running, patch.dict(os.environ, PYTHONPATH=paths):
        running.enter_context(going(folder, "hub", "start", "--hub", str(hub.path), until="The hub listens at"))
        for name in SITES:
            words = ("site", "join", hub.address, "--any-run", "--site", str(folder / name))
            running.enter_context(going(folder, *words, until=f"joined as {name}"))
        yield


@contextmanager
def with_flower(hub: HubDirectory) -> Iterator[None]:
    """The same by Flower's own programs, with its own settings."""
    with ExitStack() as running, patch.dict(flower_cli.PACE, clear=True):
        running.enter_context(hub_service.serving(hub))
        for name in SITES:
            home = hub.path.parent / name
            words = supernode.command(home / "site.toml", load_settings(Site, home / "site.toml"), hub.address)
            node = running.enter_context(flower_cli.running(words, home / "flower-alone", home / "alone.log"))
            await_word(node, "SuperNode ID")
        yield


# --- the race ---------------------------------------------------------------------------------------------------------


def play(hub: HubDirectory, app: Path, settings: str) -> list[Times]:
    """Play a run; the parts of each round but the first and the last, which has no next one."""
    stamps(app).mkdir()
    flwr = flower_cli.find_program("flwr", hub.flower_home)
    words = [flwr, "run", str(app), CONNECTION, "--stream", "--run-config", settings]
    finish(words, hub.flower_home, app.with_suffix(".log"))
    found: dict[int, list[Times]] = defaultdict(list)
    for path in stamps(app).iterdir():
        found[int(path.stem.partition("-")[0])].append(json.loads(path.read_text(encoding="utf-8")))
    shutil.rmtree(stamps(app))
    if any(len(found[round]) != len(SITES) for round in range(max(found, default=-1) + 1)) or len(found) < 3:
        sys.exit(f"not every site took part in every round of {app.name}: see who is short of memory or time")
    rounds = [max(found[round], key=lambda times: times[-1]) for round in sorted(found)]
    starts = [min(times[1] for times in found[round]) for round in sorted(found)]
    return [_parts(rounds[at], starts[at + 1]) for at in range(1, len(rounds) - 1)]


def _parts(times: Times, end: float) -> Times:
    return [times[0], *(after - before for before, after in pairwise([*times[1:], end]))]


def whole(rounds: list[Times]) -> float:
    """Seconds of a round, the median."""
    return median(sum(times[1:]) for times in rounds)


def race(folder: Path, rounds: int, blocks: int) -> dict[str, list[Times]]:
    """The rounds of each, in blocks that take turns."""
    hub = set_up(folder)
    apps = {name: folder / f"app{number}" for number, name in enumerate([*ALONE, OURS])}
    for name, imports in ALONE.items():
        write_alone(apps[name], imports)
        stamp(apps[name])
    tacit(folder, "hub", "app", str(apps[OURS]), "--hub", str(hub.path))
    path = stamp_sites(apps[OURS])
    settings = dict.fromkeys(apps, f"rounds={rounds + 2}")
    settings[OURS] = run_settings(hub=hub.path, config=write_config(folder, rounds + 2))
    found: dict[str, list[Times]] = defaultdict(list)
    for block in range(blocks):
        for name, app in apps.items():
            with with_tacit(hub, path) if name == OURS else with_flower(hub):
                found[name] += play(hub, app, settings[name])
            print(f"block {block + 1} of {blocks}, {name}: {whole(found[name]):.1f} s a round so far", flush=True)
    return found


def show(found: dict[str, list[Times]]) -> None:
    """Medians of every part, then the ratios."""

    def line(about: str, values: Iterable[float]) -> None:
        print(f"{about:54}" + "".join(f"{value:8.2f}" for value in values))

    print(f"{'seconds of a round, medians':54}" + "".join(f"{name.replace('Flower + ', '+ '):>8}" for name in found))
    for at, part in enumerate(PARTS, start=1):
        line(part, (median(times[at] for times in rounds) for rounds in found.values()))
    seconds = {name: whole(rounds) for name, rounds in found.items()}
    line("all", seconds.values())
    line("of a client's process on the processor", (median(times[0] for times in each) for each in found.values()))
    print(f"flower, which imports torch ratio={seconds[OURS] / seconds['Flower + torch']:.2f}")
    print(f"flower ratio={seconds[OURS] / seconds['Flower']:.2f}")


def main() -> None:
    """Print the parts of a round, then the ratio."""
    parser = argparse.ArgumentParser(description="Cost of a round beyond Flower's own; the last line counts.")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of a block to measure (default: 4)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of each (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder, interrupt_on_termination():
        try:
            found = race(Path(folder), max(options.rounds, 1), max(options.blocks, 1))
        except KeyboardInterrupt:
            sys.exit("stopped; all processes are ended")
    show(found)


if __name__ == "__main__":
    main()
