"""Run on Flower's simulation: each of its nodes builds the same job from the same config."""

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec

from tacit.engines.job import Job, Transport
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs.build import build_job
from tacit.runs.config import Config


def check(config: Config) -> None:
    """Refuse Flower if it is not installed, before anything starts; a run over sites needs no Ray."""
    if config.engine.name == "flower" and "," in config.engine.device:
        raise TacitError(
            "several devices are for --engine local", "name one device", code="engine.several-devices-on-flower"
        )
    packages = ("flwr",) if config.data.at_sites else ("flwr", "ray")
    missing = [name for name in packages if find_spec(name) is None]
    if missing and config.engine.name == "flower":
        raise TacitError(
            f"--engine flower needs the package {missing[0]}",
            "install it with pip install 'tacit[flower]', or use --engine local",
            code="engine.flower-missing",
        )


def transport(job: Job, config: Config, cores: int) -> Transport:
    """Flower's simulation with one virtual node per client."""
    from tacit.engines import flower  # imported here because Flower is optional

    about = {"config": configs.dumps(config)}
    return flower.SimulationTransport(job, flower.simulated(open_job), about, cores, cluster(config.engine.ray))


def cluster(setting: str | None) -> str | None:
    """The address of the Ray cluster to join, from the setting or RAY_ADDRESS; None to start one here."""
    address = setting or os.environ.get("RAY_ADDRESS") or None
    if address and (found := re.fullmatch(r"\[?([^/]+?)\]?:(\d{1,5})", address)):
        try:
            socket.create_connection((found[1], int(found[2])), timeout=5).close()
        except (OSError, OverflowError) as error:  # Ray itself would retry for minutes
            raise TacitError(
                f"no Ray cluster answers at {address}",
                "check engine.ray or RAY_ADDRESS, or run `ray start --head` there",
                code="engine.no-ray-cluster",
            ) from error
    return address


def open_job(about: Mapping[str, str]) -> Job:
    """The job of the config in a message; the last one is cached, since loading its data takes a while."""
    return _job(about["config"])


@lru_cache(maxsize=1)
def _job(config: str) -> Job:
    return build_job(configs.make(tomllib.loads(config)))[0]
