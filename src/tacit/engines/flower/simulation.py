"""Flower's simulation: one virtual node per client, on Ray actors with a core each."""

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from queue import Queue
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.engines.flower.client_app import Workspace, client_app
from tacit.engines.flower.grid import GridClient
from tacit.engines.flower.messages import NodeInfo, RunInfo
from tacit.engines.flower.nodes import ClientNodes
from tacit.engines.flower.transport import FlowerTransport
from tacit.engines.job import ClientNews, ClientTask, Job
from tacit.errors import TacitError


class SimulationTransport(FlowerTransport):
    """Carries tasks to the virtual nodes of a simulation that it starts and ends."""

    def __init__(self, job: Job, app: ClientApp, run_info: RunInfo, cores: int, address: str | None) -> None:
        """Start Ray with this many cores, or use the cluster at `address`; `close` ends what was started."""
        self._closing, self._ended = threading.Event(), threading.Event()
        grids: Queue[Grid | BaseException] = Queue()
        started: dict[str, Any] = {"address": address} if address else {"num_cpus": cores}
        quiet = {"logging_level": "error", "log_to_driver": False}
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": started | quiet}
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._closing.wait()

        def simulate() -> None:
            try:
                _simulate(server, app, job.federation.clients, backend)
            except BaseException as error:
                grids.put(error)
            finally:
                grids.put(RuntimeError("it ended before it began"))  # never read if there was a grid
                self._ended.set()

        self._thread = threading.Thread(target=simulate, name="Flower's simulation", daemon=True)
        self._thread.start()
        grid = grids.get()
        if isinstance(grid, BaseException):
            self.close()
            raise TacitError(
                f"Flower's simulation could not start: {grid}",
                "fix that, or use --engine local",
                code="flower.simulation-not-started",
                resumable=True,
            ) from grid
        while len(list(grid.get_node_ids())) < job.federation.clients and not self._ended.is_set():
            time.sleep(0.02)  # the grid exists before its nodes do
        names = {str(client): client for client in range(job.federation.clients)}
        super().__init__(job, ClientNodes(GridClient(grid, lambda: not self._ended.is_set()), run_info, names))

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Send the tasks. A deadline runs from a client's start, so with one only as many are sent as can work."""
        clients = list(tasks)
        at_once = len(clients) if self._job.deadline is None else _cores()
        for first in range(0, len(clients), max(at_once, 1)):
            some = {client: tasks[client] for client in clients[first : first + at_once]}
            yield from super().run(round, some)

    def close(self) -> None:
        """End the simulation and the Ray that was started for it."""
        import ray

        self._closing.set()
        self._thread.join()
        ray.shutdown()


def simulated(open_job: Callable[[RunInfo], Job]) -> ClientApp:
    """The app of virtual nodes, which find their data by their number; their memory travels with the task."""

    def introduce(run_info: RunInfo, node: Mapping[str, Any]) -> NodeInfo:
        return NodeInfo(str(node["partition-id"]))

    return client_app(lambda run_info, node, client: Workspace(open_job(run_info)), introduce)


def _cores() -> int:
    """How many clients can work at once."""
    import ray

    resources: Callable[[], Mapping[str, float]] = ray.cluster_resources
    return max(int(resources().get("CPU", 1)), 1)


def _simulate(server: ServerApp, app: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
    """Run Flower's simulation without its log output."""
    for name in ("RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    from flwr.simulation import run_simulation

    loggers = {name: logging.getLogger(name) for name in ("flwr", "ray")}
    before = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        logger.setLevel(logging.ERROR)
    try:
        run_simulation(server, app, nodes, backend_config=backend)
    finally:
        for name, logger in loggers.items():
            logger.setLevel(before[name])
