"""Several methods and seeds on one config, each in a run directory of its own; finished runs are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit import config as configs
from tacit import display
from tacit.catalog import own_settings
from tacit.config import Config
from tacit.data.papers import AMOUNTS
from tacit.data.scenario import Scenario
from tacit.errors import TacitError, unknown
from tacit.experiment import Experiment
from tacit.prepare import build_job
from tacit.report.read import Run, load

# Rows that are no method: what a comparison of semi-supervised methods has to be seen against.
BOUNDS = {"labels-only": "Labels only", "all-labels": "All labels", "all-labels-strong": "All labels, strong views"}


def compare(
    base: Mapping[str, Any],
    extra: Mapping[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    mode: display.Mode,
    console: Console,
) -> list[Run]:
    """Play every method with every seed under `folder`; all are checked before the first one runs."""
    refuse_seed(extra)
    planned = []
    for method, missing in strangers(methods).items():
        mine, more = _without(base, missing), {name: value for name, value in extra.items() if name not in missing}
        for seed in seeds:
            config = plan(mine, more, method, seed)
            configs.refuse_sites(config)
            planned.append((config, folder / method / f"seed-{seed}", method, seed))
    for config, place, _, seed in planned:
        if seed == seeds[0] and not (place / "config.toml").exists():
            build_job(config)  # refuses what the method needs and the data lacks
    for config, place, method, seed in planned:
        play_once(config, place, mode, console, f"{method} seed {seed}")
    return [load(place, method) for _, place, method, _ in planned]


def refuse_seed(extra: Mapping[str, Any]) -> None:
    """A seed among the settings of all runs: each has its own, which would win in silence."""
    if "seed" in extra:
        raise TacitError("seeds are given with --seeds: leave out --set seed")


def is_bound(name: str) -> bool:
    """Whether a row is one of the bounds; a name that nearly is one is refused."""
    if name not in BOUNDS and get_close_matches(name, BOUNDS, n=1, cutoff=0.8):
        raise unknown("method", name, BOUNDS)
    return name in BOUNDS


def unequal_steps(runs: Sequence[Run]) -> str:
    """A word of caution where labels alone were trained for much less than the methods beside them; else nothing.

    An epoch over few labels is few steps, so that what looks like a gain may be the longer training.
    """
    steps = {run.label: run.steps for run in runs}
    most = max((count for name, count in steps.items() if name not in BOUNDS), default=0)
    least = steps.get("labels-only", most)
    if 2 * least > most:
        return ""
    return (
        f"labels-only made {least:,} steps where others made up to {most:,}: part of a gain may be longer training; "
        "more train.epochs, or server.epochs, for labels-only alone would tell"
    )


def strangers(methods: Sequence[str]) -> dict[str, set[str]]:
    """For each method, the settings it does not have but another of them has: they are meant for that one.

    What none of them has is in no set, so that it is refused like any mistake.
    """
    own = {name: own_settings(name) for name in methods if not is_bound(name)}
    anybody = set[str]().union(*own.values())
    return {name: anybody - own.get(name, anybody) for name in methods}


def _without(tree: Mapping[str, Any], missing: set[str]) -> dict[str, Any]:
    """Nested settings without those of these dotted names."""
    return {
        section: {name: value for name, value in values.items() if f"{section}.{name}" not in missing}
        if isinstance(values, Mapping)
        else values
        for section, values in tree.items()
    }


def plan(base: Mapping[str, Any], extra: Mapping[str, Any], method: str, seed: int) -> Config:
    """The config of one row: of a method, or of a bound."""
    if not is_bound(method):
        return configs.from_options({**extra, "method": method, "seed": seed}, base)
    # The settings of methods and objectives are for the others; data, network and training are common to all.
    base = {name: value for name, value in base.items() if name not in ("method", "objective")}
    extra = {name: value for name, value in extra.items() if name.partition(".")[0] not in ("method", "objective")}
    at_server = configs.from_options(extra, base).data.labels == "server"
    config = configs.from_options({**extra, **_bound(method, at_server), "seed": seed}, base)
    return replace(config, data=_without_amount(config.data)) if at_server and config.data.labels == "all" else config


def _bound(name: str, at_server: bool) -> dict[str, Any]:
    """What makes a bound: the labels that are there alone, or all labels, if need be with strong augmentation."""
    if name == "labels-only":
        return {"method": "server-only+supervised" if at_server else "fedavg+supervised"}
    strong = {"objective.view": "strong"} if name == "all-labels-strong" else {}
    return {"method": "fedavg+supervised", "labels": "all", **strong}


def _without_amount(data: Scenario) -> Scenario:
    """The data without a number of labels: one that is meant for the server would count for each client.

    A split is its settings then, not its name, which would bring its number back.
    """
    nothing: dict[str, Any] = dict.fromkeys(AMOUNTS)
    return replace(data, split=None, **nothing)


def play_once(config: Config, folder: Path, mode: display.Mode, console: Console, label: str) -> None:
    """Play a run unless it is finished already; one that was interrupted goes on."""
    if not (folder / "config.toml").exists():
        experiment = Experiment.create(config, folder)
    else:
        experiment = Experiment.reopen(folder, config.engine, config.track)  # neither changes a number
        if experiment.config != config:
            raise TacitError(f"{folder} holds a run with another config: choose another --out")
    if experiment.finished_rounds() < config.rounds:
        display.play(experiment, mode, console, label)
