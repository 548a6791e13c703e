"""Bounds: reference rows of a comparison that are not methods: labels only, all samples in one place, all labels.

`labels-only`, `pooled` and `all-labels` train in one place until validation shows no more gain. Tacit 0.1 trained its
bounds in rounds, with the epochs of the config; benchmarks with results of that time still do.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tacit.data.split.config import DataConfig
from tacit.data.split.papers import AMOUNTS
from tacit.errors import TacitError, unknown
from tacit.runs import config as configs
from tacit.runs.central import CENTRAL, ROUNDS
from tacit.runs.config import Config

BOUNDS = {
    "labels-only": "Labels only",
    "pooled": "Pooled",
    "all-labels": "All labels",
    "all-labels-strong": "All labels, strong views",
}
SETTINGS = ("method.rates",)  # of the bounds themselves
OF_METHODS = ("method", "objective", "protect")  # sections without a meaning for bounds
ATTACKS = ("hostile", "attack", "strength")  # settings of [faults] without a meaning for bounds


def refuse_seed(extra: Mapping[str, Any]) -> None:
    """Refuse a seed among the settings of all runs: each run has its own, which would silently override it."""
    if "seed" in extra:
        raise TacitError("seeds are given with --seeds", "leave out --set seed", code="compare.seed-setting")


def is_bound(name: str) -> bool:
    """Whether a row is one of the bounds; refuses a misspelled bound."""
    if name not in BOUNDS and get_close_matches(name, BOUNDS, n=1, cutoff=0.8):
        raise unknown("method", name, BOUNDS)
    return name in BOUNDS


def plan(
    base: Mapping[str, Any], extra: Mapping[str, Any], method: str, seed: int, *, in_rounds: bool = False
) -> Config:
    """The config of one row, a method or a bound, with one seed; `in_rounds` trains a bound as Tacit 0.1 did."""
    if not is_bound(method):
        return configs.from_options({**extra, "method": method, "seed": seed}, base)
    own = {name: value for name, value in extra.items() if name in SETTINGS}
    # These are meant for the other rows; data, network and training are common to all.
    base = {name: value for name, value in base.items() if name not in OF_METHODS}
    extra = {name: value for name, value in extra.items() if name.partition(".")[0] not in OF_METHODS}
    base, extra = _peaceful(base), _peaceful(extra)
    if method in CENTRAL and not in_rounds:
        return configs.from_options({**extra, **own, **_IN_ONE_PLACE, "method": method, "seed": seed}, _alone(base))
    at_server = configs.from_options(extra, base).data.labels == "server"
    config = configs.from_options({**extra, **_bound(method, at_server), "seed": seed}, base)
    return replace(config, data=_without_amount(config.data)) if at_server and config.data.labels == "all" else config


def _peaceful(given: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or dotted settings without hostile clients."""
    kept = {name: value for name, value in given.items() if name.removeprefix("faults.") not in ATTACKS}
    faults = kept.pop("faults", None)
    if isinstance(faults, Mapping) and (rest := {name: each for name, each in faults.items() if name not in ATTACKS}):
        kept["faults"] = rest
    return kept


# A round is a hundred steps of each rate; how many there are is decided on validation.
_IN_ONE_PLACE = {"rounds": ROUNDS, "log.evaluate_every": 10, "log.checkpoint_every": 5, "log.select": "last"}


def _alone(base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file without what only rounds have."""
    train = base.get("train", {})
    known = (
        {name: value for name, value in train.items() if name != "patience"} if isinstance(train, Mapping) else train
    )
    return {name: value for name, value in base.items() if name not in ("faults", "server")} | {"train": known}


def _bound(name: str, at_server: bool) -> dict[str, Any]:
    """The settings of a bound: train on the given labels only, or on all labels, with strong views if asked for."""
    if name == "labels-only":
        return {"method": "server-only+supervised" if at_server else "fedavg+supervised"}
    strong = {"objective.view": "strong"} if name == "all-labels-strong" else {}
    return {"method": "fedavg+supervised", "labels": "all", **strong}


def _without_amount(data: DataConfig) -> DataConfig:
    """The data without a number of labels: the server's number would otherwise apply to every client.

    The name of a split goes too, since it would bring its number back; its settings are already expanded.
    """
    nothing: dict[str, Any] = dict.fromkeys(AMOUNTS)
    return replace(data, split=None, **nothing)
