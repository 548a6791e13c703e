"""Run several methods with several seeds on one config; finished runs are not repeated."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs.auto import AUTO, decide
from tacit.runs.bounds import plan, refuse_seed
from tacit.runs.build import build_job
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.directory.planned import Plan, PlannedRun, working
from tacit.runs.experiment import Experiment
from tacit.runs.fitting import Fitted, fit
from tacit.runs.followers import progress
from tacit.runs.followers.live_table import LiveTable, Row
from tacit.runs.followers.notices import DIVERGED

# Rows are compared on the same labels and test samples, so `auto` holds out no others.
AS_OTHERS = {"data.folds": None, "data.hold_out": None}

_Planned = tuple[Config, Path, str, int]  # folder, method and seed of a run


def compare(
    base: Mapping[str, Any],
    extra: Mapping[str, Any],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    mode: progress.Mode,
    console: Console,
) -> dict[Path, str]:
    """Run every method with every seed; the folder of each run, and its method.

    All are checked before the first one starts.
    """
    refuse_seed(extra)
    planned, notes = [], []
    for method, fitted in fit(base, extra, methods).items():
        notes += [fitted.note(method)] if fitted.dropped else []
        for seed in seeds:
            config = _planned(fitted, method, seed)
            configs.refuse_sites(config)
            planned.append((config, folder / method / f"seed-{seed}", method, seed))
    for config, place, _, seed in planned:
        if seed == seeds[0] and not RunDirectory(place).exists():
            build_job(config)  # refuses a method whose needs are not met
    for note in notes if mode != "quiet" else ():
        progress.say(note, console)
    runs = [
        PlannedRun(str(place.relative_to(folder)), method, seed, config.rounds)
        for config, place, method, seed in planned
    ]
    with working(folder, Plan("comparison", folder.name, tuple(runs))):
        _run_all(planned, mode, console)
    return {place: method for _, place, method, _ in planned}


def _run_all(planned: Sequence[_Planned], mode: progress.Mode, console: Console) -> None:
    """Run what is not finished, with one live table in a terminal."""
    rows = {
        place: Row.of(_label(method, seed), config.rounds, RunDirectory(place))
        for config, place, method, seed in planned
    }
    live = mode == "auto" and console.is_terminal
    with LiveTable(rows, console).shown() if live else nullcontext():
        for config, place, method, seed in planned:
            label, row = _label(method, seed), rows[place]
            try:
                run_once(config, place, mode, console, label, row if live else None)
                row.state = "finished"
            except TacitError as error:
                if error.code != DIVERGED:
                    raise
                row.state = "diverged"
                progress.say(f"{label}  {error.problem}", console)


def _label(method: str, seed: int) -> str:
    return f"{method} seed {seed}"


def _planned(fitted: Fitted, method: str, seed: int) -> Config:
    """The config of one row with one seed; `auto` decides for each seed, since each draws other labels."""
    if method == AUTO:
        return decide({**AS_OTHERS, **fitted.extra, "seed": seed}, fitted.base).config
    return plan(fitted.base, fitted.extra, method, seed)


def run_once(
    config: Config, folder: Path, mode: progress.Mode, console: Console, label: str, row: Row | None = None
) -> None:
    """Run a config unless it has finished or diverged; an interrupted run continues. `row` is one of a live table."""
    if not RunDirectory(folder).exists():
        experiment = Experiment.create(config, folder)
    else:
        experiment = Experiment.reopen(folder, config.engine, config.track)  # neither changes a number
        if experiment.config != config:
            raise TacitError(
                f"{folder} holds a run with another config", "choose another --out", code="run.other-config"
            )
    end = experiment.directory.stop_reason()
    if end is not None and end.code == DIVERGED:
        raise end  # it would diverge again
    if not experiment.directory.is_finished():
        progress.run(experiment, mode, console, label, row)
