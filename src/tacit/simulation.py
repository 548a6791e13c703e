"""A run on Flower's simulation: what its nodes need to know to build the same job from the same config."""

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec

from tacit import config as configs
from tacit.config import Config
from tacit.engines.loop import Courier, Job
from tacit.errors import TacitError
from tacit.prepare import build_job


def check(config: Config) -> None:
    """Refuse Flower where it is not installed, before anything starts; sites hold their own data and need no Ray."""
    packages = ("flwr",) if config.data.at_sites else ("flwr", "ray")
    missing = [name for name in packages if find_spec(name) is None]
    if missing and config.engine.name == "flower":
        remedy = "install it with pip install 'tacit[flower]', or use --engine local"
        raise TacitError(f"--engine flower needs the package {missing[0]}: {remedy}")


def courier(job: Job, config: Config, cores: int) -> Courier:
    """Flower's simulation with one virtual node per client."""
    from tacit.engines import flower  # here, since Flower is an extra

    about = {"config": configs.dumps(config)}
    return flower.SimulationCourier(job, flower.simulated(open_job), about, cores, cluster(config.engine.ray))


def cluster(setting: str | None) -> str | None:
    """The Ray cluster to join: that of the setting or of RAY_ADDRESS, as for Ray itself; None: there is none."""
    address = setting or os.environ.get("RAY_ADDRESS") or None
    if address and (found := re.fullmatch(r"\[?([^/]+?)\]?:(\d{1,5})", address)):
        try:
            socket.create_connection((found[1], int(found[2])), timeout=5).close()
        except (OSError, OverflowError) as error:  # Ray itself would try for minutes
            raise TacitError(
                f"no Ray cluster answers at {address}: check engine.ray or RAY_ADDRESS, or `ray start --head` there"
            ) from error
    return address


def open_job(about: Mapping[str, str]) -> Job:
    """The job of a config that came with a message; the last one is kept, since loading its data takes a while."""
    return _job(about["config"])


@lru_cache(maxsize=1)
def _job(config: str) -> Job:
    return build_job(configs.make(tomllib.loads(config)))[0]
