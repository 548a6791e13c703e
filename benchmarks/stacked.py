"""Whether it pays to train several clients as one batched model: operators of torch per step, and time on one core.

    python benchmarks/stacked.py [--clients 16] [--seconds 2]

The last lines are ratios of a visit of all clients one after the other over the same visit stacked: above 1, stacking
is faster. On a GPU every operator is at least one kernel, so fewer of them matter more than on a CPU.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from tacit import nets
from tacit.data.inputs import ImageInputs
from tacit.data.views.augment import ImageViews
from tacit.engines.job import Job
from tacit.federation import Federation, Samples, ServerData
from tacit.learn import fit
from tacit.learn.stacked import asked, fit_stacked
from tacit.learn.training import Visit
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.process import use_one_thread
from tacit.random import Streams

STEPS, HELD, CLASSES = 5, 50, 10
SHAPE = (1, 28, 28)
NETS = {  # without batch statistics and dropout
    "linear": nets.build("linear", SHAPE, CLASSES),
    "lenet": nets.build("lenet", SHAPE, CLASSES, "none"),
    "resnet9": nets.build("resnet9", SHAPE, CLASSES, "group", width=0.25),
}


def visits_of(net: Net, clients: int, batch: int) -> list[Visit]:
    """What the clients of a round of FedAvg ask for."""
    count = HELD * clients
    pool = Samples(torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8), torch.arange(count) % CLASSES)
    none = Samples(pool.x[:0], pool.y[:0])
    moments = (0.5,) * SHAPE[0], (0.25,) * SHAPE[0]
    federation = Federation(
        pool=pool,
        order=torch.arange(count),
        starts=torch.arange(0, count + 1, HELD),
        server=ServerData(none, none),
        test=none,
        classes=tuple(map(str, range(CLASSES))),
        inputs=ImageInputs(SHAPE, *moments),
        views=ImageViews(*moments, flip=False),
    )
    train = Training(steps=STEPS, batch=batch)
    job = Job(FedAvg(Supervised(view="plain")), net, federation, Streams(0), 1, clients, train)
    server = job.server(0, {})
    _, downs = job.method.send(server, job.method.start(server))
    found = [asked(partial(job.method.client_update, job.client(0, k), None, downs[k])) for k in range(clients)]
    return [visit for visit in found if visit is not None]


def one_by_one(visits: list[Visit]) -> None:
    """Every client by itself."""
    for visit in visits:
        fit(visit.holder, visit.start, visit.objective)


def stacked(visits: list[Visit]) -> None:
    """All at once."""
    assert fit_stacked(visits) is not None, "these clients cannot be stacked"


def operators(run: Callable[[list[Visit]], None], visits: list[Visit]) -> int:
    """How many operators of torch a visit of all clients calls, per step."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run(visits)
    return sum(int(event.count) for event in found.key_averages() if event.key.startswith("aten::")) // STEPS


def main() -> None:
    """Count, then time both ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each network")
    options = parser.parse_args()
    use_one_thread()
    for name, net in NETS.items():
        visits = visits_of(net, options.clients, options.batch)
        many, few = (operators(run, visits) for run in (one_by_one, stacked))
        print(f"{name}: {many:,} operators per step of {options.clients} clients, {few:,} stacked")
        times: dict[Callable[[list[Visit]], None], list[float]] = {one_by_one: [], stacked: []}
        until = time.perf_counter() + options.seconds
        while time.perf_counter() < until or len(times[stacked]) < 3:
            for run in (one_by_one, stacked):
                began = time.perf_counter()
                run(visits)
                times[run].append(time.perf_counter() - began)
        print(f"stacked {name}: {median(times[one_by_one]) / median(times[stacked]):.2f} times as fast")


if __name__ == "__main__":
    main()
