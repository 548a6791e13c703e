"""The workload of `speed.py w1` in other frameworks, each used as its own documentation shows.

    python benchmarks/peers.py pfl|flower WORKLOAD       WORKLOAD: the fields of `speed.Workload` as JSON

A peer reads a number of rounds per line, plays them, and answers `seconds …`; it ends with its input. So it can take
turns with whatever it is compared to. Peers get what speaks for them: floats in memory and batches that are not
shuffled, as in the bare loop.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tacit.nets import Cnn

SHAPE = (1, 28, 28)
PROCESSES = 2
ROUNDS = 10**6  # more than anyone waits for

Workload = dict[str, Any]
Samples = tuple[Tensor, Tensor]


def read_turns() -> Iterator[int]:
    """The number of rounds of each turn, until the input ends."""
    for line in sys.stdin:
        yield int(line)


class Turns:
    """Holds a framework's own loop between rounds until it is its turn, and answers after each."""

    def __init__(self) -> None:
        """Nothing has been asked for yet."""
        self._turns, self._left, self._began = read_turns(), 0, 0.0

    def wait(self) -> bool:
        """Called before the first round and after each; False when there will be no more turns."""
        if self._left:
            self._left -= 1
            if self._left:
                return True
            print("seconds", time.perf_counter() - self._began, flush=True)
        self._left = next(self._turns, 0)
        self._began = time.perf_counter()
        return self._left > 0


def make_net() -> Cnn:
    """The small CNN, in training mode."""
    return Cnn(SHAPE, 10, "none", 1.0).train()


def make_samples(workload: Workload, client: int) -> Samples:
    """A client's images as floats and labels."""
    random = np.random.default_rng(client)
    x = random.standard_normal((workload["samples"], *SHAPE), dtype=np.float32)
    return torch.from_numpy(x), torch.from_numpy(random.integers(0, 10, workload["samples"]))


# --- pfl --------------------------------------------------------------------------------------------------------------


def pfl(workload: Workload) -> None:
    """Start two workers as pfl does it on one machine: torchrun, which hands them the input."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    os.execv(sys.executable, [*launcher, __file__, "pfl-worker", json.dumps(workload)])


def pfl_worker(workload: Workload) -> None:
    """FederatedAveraging on a SimulatedBackend; the workers share a cohort and reduce their sums."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(Cnn):
        """The CNN with the two functions pfl asks for."""

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            """What is minimised."""
            return cross_entropy(self(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            """What is logged when users are evaluated: in the first round only."""
            return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}

    class Gate:
        """A callback that keeps both workers waiting between turns: the first reads the input and tells the other."""

        def __init__(self) -> None:
            self._turns = Turns()

        def on_train_begin(self, model: Any) -> Metrics:
            """Wait for the first turn."""
            self._stop()
            return Metrics()

        def after_central_iteration(self, metrics: Any, model: Any, central_iteration: int) -> tuple[bool, Metrics]:
            """Go on, or wait for the next turn."""
            return self._stop(), Metrics()

        def on_train_end(self, model: Any) -> None:
            """Nothing to do."""

        def _stop(self) -> bool:
            stop = torch.zeros(1)
            if torch.distributed.get_rank() == 0:
                stop += not self._turns.wait()
            torch.distributed.broadcast(stop, src=0)
            return bool(stop)

    samples = {client: make_samples(workload, client) for client in range(workload["clients"])}
    users = FederatedDataset(
        lambda client: Dataset(samples[client], user_id=str(client)), get_user_sampler("random", list(samples))
    )
    net = Net(SHAPE, 10, "none", 1.0).train()
    model = PyTorchModel(
        net,
        local_optimizer_create=partial(torch.optim.SGD, momentum=workload["momentum"]),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=workload["cohort"],
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload["lr"], local_batch_size=workload["batch"]
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Gate()],
        send_metrics_to_platform=False,
    )
    torch.distributed.destroy_process_group()


# --- Flower -----------------------------------------------------------------------------------------------------------


def flower(workload: Workload) -> None:
    """FedAvg of the message API on the simulation engine: two Ray actors of one processor each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    scratch = os.environ.get("PEER_SCRATCH", "/tmp")
    os.environ["FLWR_HOME"] = str(Path(scratch) / "flwr")
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=flower_server(workload),
        client_app=flower_client(workload),
        num_supernodes=workload["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": PROCESSES, "_temp_dir": scratch, "include_dashboard": False},
        },
    )


def flower_server(workload: Workload) -> Any:
    """Flower's own FedAvg; it waits for its turn where a server would evaluate."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    def main(grid: Grid, context: Context) -> None:
        turns = Turns()

        def between_rounds(server_round: int, arrays: ArrayRecord) -> None:
            if not turns.wait():
                raise EndError

        strategy = FedAvg(fraction_train=workload["cohort"] / workload["clients"], fraction_evaluate=0.0)
        try:
            strategy.start(grid, ArrayRecord(make_net().state_dict()), num_rounds=ROUNDS, evaluate_fn=between_rounds)
        except EndError:
            return

    app = ServerApp()
    app.main()(main)
    return app


class EndError(Exception):
    """There are no more turns; Flower's loop has no other way out."""


def flower_client(workload: Workload) -> Any:
    """One epoch of SGD in the shape of Flower's PyTorch tutorial."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        net = make_net()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=workload["lr"], momentum=workload["momentum"])
        x, y = cached_samples(workload, int(context.node_config["partition-id"]))
        for inputs, labels in zip(x.split(workload["batch"]), y.split(workload["batch"]), strict=True):
            optimizer.zero_grad()
            cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        records: dict[str, Any] = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": workload["samples"]}),
        }
        return Message(content=RecordDict(records), reply_to=message)

    app = ClientApp()
    app.train()(train)
    return app


def cached_samples(workload: Workload, client: int, cache: dict[int, Samples] = {}) -> Samples:  # noqa: B006
    """A client's samples, made once per process."""
    if client not in cache:
        cache[client] = make_samples(workload, client)
    return cache[client]


PEERS: dict[str, Callable[[Workload], None]] = {"pfl": pfl, "pfl-worker": pfl_worker, "flower": flower}

if __name__ == "__main__":
    torch.set_num_threads(1)
    PEERS[sys.argv[1]](json.loads(sys.argv[2]))
