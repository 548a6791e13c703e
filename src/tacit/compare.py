"""Several methods and seeds on one config, each in a run directory of its own; finished runs are kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit import config as configs
from tacit import display
from tacit.config import Config
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.report.read import Run, load


def compare(
    base: Mapping[str, Any],
    extra: Mapping[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    mode: display.Mode,
    console: Console,
) -> list[Run]:
    """Play every method with every seed under `folder`; all configs are checked before the first one runs."""
    planned = []
    for method in methods:
        for seed in seeds:
            config = configs.from_options({**extra, "method": method, "seed": seed}, base)
            planned.append((config, folder / method.replace("/", "-") / f"seed-{seed}", f"{method} seed {seed}"))
    for config, place, label in planned:
        play_once(config, place, mode, console, label)
    return [load(place) for _, place, _ in planned]


def play_once(config: Config, folder: Path, mode: display.Mode, console: Console, label: str) -> None:
    """Play a run unless it is finished already; one that was interrupted goes on."""
    if not (folder / "config.toml").exists():
        experiment = Experiment.create(config, folder)
    else:
        experiment = Experiment.reopen(folder)
        if experiment.config != config:
            raise TacitError(f"{folder} holds a run with another config: choose another --out")
    if experiment.finished_rounds() < config.rounds:
        display.play(experiment, mode, console, label)
