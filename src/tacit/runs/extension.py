"""More rounds for a run: it continues as if it had been planned with them, and a line says where that is not so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.learn import learning_rate
from tacit.runs import config as configs
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment

SHAPED_BY_END = "cosine"  # the schedule whose rates depend on the number of rounds


def extend(folder: Path, rounds: int) -> tuple[Experiment, list[str]]:
    """Plan a run, finished or not, for this number of rounds; the run, and what differs from one planned so before."""
    before = Experiment.reopen(folder)
    directory, done = before.directory, before.finished_rounds()
    _refuse(directory, before.config, rounds, done)
    if rounds == before.config.rounds:
        return before, []
    planned = configs.make(configs.in_full(before.config) | {"rounds": rounds})
    with directory.lock():
        directory.replan(configs.dumps(planned), planned.fingerprints())
    job = replace(before.job, rounds=rounds)
    return replace(before, config=planned, job=job), _differences(before.config, planned, done)


def _refuse(directory: RunDirectory, config: Config, rounds: int, done: int) -> None:
    if directory.schema() == 1:
        raise TacitError(
            f"{directory.path} is a run of Tacit 0.1, which cannot be extended",
            "start a new run",
            code="run.older-version",
        )
    if rounds < max(done, 1):
        raise TacitError(
            f"{directory.path} has finished {done} rounds, more than {rounds}",
            f"give --rounds {max(done, 1)} or more",
            code="run.fewer-rounds",
        )
    configs.refuse_sites(config)


def _differences(before: Config, planned: Config, done: int) -> list[str]:
    """What is not as if the run had been planned so from the start; nothing if no round is done."""
    if not done:
        return []
    lines = [
        f"{section}.schedule is {old.schedule}: rounds 1 to {done} followed it over {before.rounds} rounds, so the "
        f"result differs from a run planned with {planned.rounds}; the rate goes from "
        f"{learning_rate(old, done - 1, before.rounds):.2g} to {learning_rate(new, done, planned.rounds):.2g}"
        for section, old, new in (
            ("train", before.train, planned.train),
            ("server", before.server_train, planned.server_train),
        )
        if old.schedule.partition(":")[0] == SHAPED_BY_END and (section == "train" or old.lr != before.train.lr)
    ]
    method: Any = planned.build_method()
    parts = (method, getattr(method, "objective", None))
    if any(part is not None and part.needs.planned_rounds for part in parts):
        lines.append(
            f"{planned.method_name} is paced by the number of rounds: rounds 1 to {done} were paced for "
            f"{before.rounds}, so the result differs from a run planned with {planned.rounds}"
        )
    return lines
