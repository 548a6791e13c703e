"""How rounds per hour and peak memory grow with the numbers of clients, of parameters and of clients per round.

    python benchmarks/growth.py                  measure what results/growth.json lacks; draw, fill docs/speed.md
    python benchmarks/growth.py --again          measure everything
    python benchmarks/growth.py --point clients=1000000 parameters=10000 cohort=10      one point, in this process

Every point is a process with limits of time and memory, so that a point which is too large costs nothing else. It runs
rounds of FedAvg with one worker process; every client makes one step on four samples, so that what is measured is
Tacit and not training. Peak memory is that of the main process plus that of the worker.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tacit.data.inputs import VectorInputs
from tacit.data.views.vectors import VectorViews
from tacit.engines.events import round_records
from tacit.engines.job import Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.rounds import run_rounds
from tacit.engines.workers import WorkerTransport
from tacit.federation import Federation, Samples, ServerData
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.process import tune_malloc, use_one_thread
from tacit.random import Streams
from tacit.storage import write_durably

ROOT = Path(__file__).parent.parent
STORED, PAGE = ROOT / "benchmarks/results/growth.json", ROOT / "docs/speed.md"
BEGIN, END = "<!-- growth -->", "<!-- end growth -->"
BASE = {"clients": 1000, "parameters": 10**4, "cohort": 10}
AXES = {
    "clients": [10**n for n in range(2, 7)],
    "parameters": [10**n for n in range(4, 9)],
    "cohort": [10, 30, 100, 300, 1000],
}
NAMES = {"clients": "clients", "parameters": "parameters", "cohort": "clients per round"}
SECONDS, LEAST, MOST = 3.0, 2, 50  # how long rounds are timed, and how many at least and at most
FEATURES, CLASSES, HELD = 64, 10, 4  # of the samples, and how many of them a client holds
FOREVER = 10**9  # rounds: the last one is always evaluated and must never come
Point = dict[str, int]


class Wide(nn.Module):
    """Two layers with about as many parameters as asked for."""

    def __init__(self, parameters: int) -> None:
        """The hidden layer takes them all."""
        super().__init__()
        hidden = max(1, parameters // (FEATURES + CLASSES + 1))
        self.first, self.second = nn.Linear(FEATURES, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.second(self.first(x).relu())
        return logits


def job_of(point: Point) -> Job:
    """Clients that hold four samples of a small pool each."""
    stream, clients = torch.Generator().manual_seed(0), point["clients"]
    pool = Samples(torch.randn(1000, FEATURES, generator=stream), torch.arange(1000) % CLASSES)
    none = Samples(pool.x[:0], pool.y[:0])
    names, zeros, ones = tuple(f"x{n}" for n in range(FEATURES)), (0.0,) * FEATURES, (1.0,) * FEATURES
    federation = Federation(
        pool=pool,
        order=torch.arange(HELD * clients) % len(pool),
        starts=torch.arange(0, HELD * clients + 1, HELD),
        server=ServerData(none, none),
        test=Samples(pool.x[:100], pool.y[:100]),
        classes=tuple(map(str, range(CLASSES))),
        inputs=VectorInputs(names, zeros, ones),
        views=VectorViews(zeros, ones),
    )
    train = Training(steps=1, batch=HELD)
    net = Net(lambda: Wide(point["parameters"]))
    return Job(
        FedAvg(Supervised()), net, federation, Streams(0), FOREVER, point["cohort"], train, evaluate_every=FOREVER
    )


def measure(point: Point) -> dict[str, float]:
    """Rounds per hour, by the median round after the first, and the peak memory in MB."""
    use_one_thread()
    tune_malloc()
    times, job = [], job_of(point)
    with tempfile.TemporaryDirectory() as folder, closing(WorkerTransport(job, 1)) as transport:
        position = RunState(Memories(Path(folder), 1 << 30))
        began = last = time.perf_counter()
        for _ in round_records(run_rounds(job, transport, position)):
            times.append((now := time.perf_counter()) - last)
            last = now
            if len(times) > MOST or (len(times) > LEAST and now - began > SECONDS):
                break
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"rounds_per_hour": 3600 / median(times[1:]), "peak_mb": peak / 1000}


def measured_apart(point: Point, seconds: float, megabytes: int) -> dict[str, Any]:
    """The same in a process of its own, or why there is no result."""
    words = [f"{name}={value}" for name, value in point.items()]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, __file__, "--point", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, preexec_fn=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} s"}
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["ended without a word"])[-1]
        memory = "memory" in reason.lower() or done.returncode < 0
        return {"failed": f"more than {megabytes:,} MB" if memory else reason[:100]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def points() -> Iterator[tuple[str, Point]]:
    """Every axis, with the other two at their base."""
    for axis, values in AXES.items():
        for value in values:
            point = BASE | {axis: value}
            yield f"{axis} {value}", point | {"clients": max(point["clients"], point["cohort"])}


def table(found: dict[str, Any]) -> str:
    """One row per point, in Markdown."""
    base = ", ".join(f"{value:,} {NAMES[name]}" for name, value in BASE.items())
    lines = [f"Otherwise {base}.", "", "| | | rounds per hour | peak memory |", "|---|---:|---:|---:|"]
    for axis, values in AXES.items():
        for value in values:
            if (row := found.get(f"{axis} {value}")) is not None:
                lines.append(f"| {NAMES[axis]} | {value:,} | {_numbers(row)} |")
    return "\n".join(lines)


def section(found: dict[str, Any]) -> str:
    """What the page shows: the table and the pictures."""
    pictures = (
        f"![Rounds per hour and peak memory against the number of {name}](growth-{axis}.png)"
        for axis, name in NAMES.items()
    )
    return "\n".join([table(found), "", *pictures])


def _numbers(row: dict[str, Any]) -> str:
    """The last two cells of a row."""
    return f"{row['failed']} | –" if "failed" in row else f"{row['rounds_per_hour']:,.0f} | {row['peak_mb']:,.0f} MB"


def draw(found: dict[str, Any], folder: Path) -> None:
    """One picture per axis: rounds per hour and peak memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for axis, values in AXES.items():
        rows = [(value, found.get(f"{axis} {value}", {})) for value in values]
        known = [(value, row) for value, row in rows if "peak_mb" in row]
        figure, panels = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
        for panel, key, title in zip(
            panels, ("rounds_per_hour", "peak_mb"), ("rounds per hour", "peak memory, MB"), strict=True
        ):
            panel.loglog([value for value, _ in known], [row[key] for _, row in known], "o-", color="#2a6f97")
            panel.set(xlabel=NAMES[axis], title=title)
            panel.grid(alpha=0.3)
        figure.savefig(folder / f"growth-{axis}.png", dpi=110)
        pyplot.close(figure)


def filled(page: str, content: str) -> str:
    """The page with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Measure what is missing, store every point at once, then draw and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="measure all points, also those with a result")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of a point")
    parser.add_argument("--megabytes", type=int, default=8000, help="limit of a point, of address space per process")
    parser.add_argument("--point", nargs="+", metavar="NAME=NUMBER", help="measure one point in this process")
    options = parser.parse_args()
    if options.point:
        given = {name: int(value) for name, value in (word.split("=") for word in options.point)}
        print(json.dumps(measure(BASE | given)))
        return
    found = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() and not options.again else {}
    for name, point in points():
        if name not in found:
            found[name] = measured_apart(point, options.seconds, options.megabytes)
            write_durably(STORED, (json.dumps(found, indent=1) + "\n").encode())
            print(name, found[name], flush=True)
    draw(found, ROOT / "docs")
    write_durably(PAGE, filled(PAGE.read_text(encoding="utf-8"), section(found)).encode())
    print(table(found))


if __name__ == "__main__":
    main()
