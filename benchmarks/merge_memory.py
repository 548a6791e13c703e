"""Peak memory of merging 20 uploads of 11 million parameters, decoded all at once or one by one.

    python benchmarks/merge_memory.py

Each way runs in a process of its own; the peak is the resident memory above that of the encoded uploads.
"""

import argparse
import resource
import subprocess
import sys

import torch

from tacit.aggregation import WeightsState, WeightsUp, merge_weights
from tacit.engines.uploads import Uploads
from tacit.engines.wire import Codec, Encoded
from tacit.method import ServerContext, Training
from tacit.params import Params
from tacit.random import Streams

CPU = torch.device("cpu")


def peak(way: str, clients: int, millions: int) -> float:
    """Megabytes above the encoded uploads while one round is merged."""
    codec = Codec({"WeightsUp": WeightsUp})
    w: Params = {f"layer{k}": torch.zeros(1_000_000) for k in range(millions)}
    encoded = {client: Encoded(codec.encode(WeightsUp(w, 1)), codec, CPU) for client in range(clients)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ups = {client: each.decode() for client, each in encoded.items()} if way == "all" else encoded
    merge_weights(_server(), WeightsState(w), Uploads(ups), "samples")
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000


def _server() -> ServerContext:
    """A server without data or network: the average needs neither."""
    empty: dict[str, object] = dict.fromkeys(("net", "inputs", "views", "data", "log"))
    values = {
        "round": 0,
        "rounds": 1,
        "train": Training(),
        "streams": Streams(0),
        "device": CPU,
        "cohort": (),
        "clients": 0,
    }
    return ServerContext(**values, **empty)  # type: ignore[arg-type]


def main() -> None:
    """Measure both ways, each in a new process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["all", "one"], help="measure only this, in this process")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--millions", type=int, default=11, help="of parameters")
    options = parser.parse_args()
    if options.way:
        print(f"{peak(options.way, options.clients, options.millions):.0f}")
        return
    sizes = ["--clients", str(options.clients), "--millions", str(options.millions)]
    for way, words in (("all", "all decoded at once"), ("one", "decoded one by one")):
        done = subprocess.run(
            [sys.executable, __file__, "--way", way, *sizes], capture_output=True, text=True, check=True
        )
        print(f"{words}: {int(done.stdout):,} MB above the encoded uploads")


if __name__ == "__main__":
    main()
