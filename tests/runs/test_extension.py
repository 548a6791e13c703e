"""More rounds for a run: the same bits as if they had been planned, or a line that says why not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.method import Training
from tacit.objectives import OBJECTIVES
from tacit.params import equal
from tacit.runs import registry
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.runs.extension import extend
from tests import toys
from tests.engines import farm
from tests.refusals import refused


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    values = {"data": str(folder / "images.npz"), "clients": 4, "labels": "client", "per_class": 2, "workers": 0}
    farm.write_images(folder / "images.npz")
    return values | {"rounds": 2, "method": "fedavg+fixmatch", "train.steps": 2, "train.batch": 6} | changes


def test_an_extended_run_has_the_bits_of_one_planned_with_all_rounds(tmp_path: Path) -> None:
    options = small(tmp_path, method="scaffold", labels="all", per_class=None)
    tacit.run(out=tmp_path / "short", **options)
    extended, lines = extend(tmp_path / "short", 4)
    assert lines == []
    for _ in extended.rounds():
        pass
    planned = tacit.run(out=tmp_path / "long", **options | {"rounds": 4})
    found = tacit.resume(tmp_path / "short")
    assert found.params is not None
    assert planned.params is not None
    assert equal(found.params, planned.params)
    assert found.config == planned.config
    assert [dict(r, seconds=0) for r in found.history] == [dict(r, seconds=0) for r in planned.history]
    assert RunDirectory(tmp_path / "short").fingerprints() == RunDirectory(tmp_path / "long").fingerprints()


def test_a_schedule_that_ends_with_the_run_is_named(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **small(tmp_path, **{"train.schedule": "cosine", "lr": 0.04}))
    _, (line,) = extend(tmp_path / "run", 4)
    assert "train.schedule is cosine" in line
    assert "from 0.028 to 0.028" in line


def test_a_method_paced_by_the_number_of_rounds_is_named(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **small(tmp_path, method="fedavg+uda"))
    _, (line,) = extend(tmp_path / "run", 3)
    assert line.startswith("fedavg+uda is paced by the number of rounds")


def test_a_run_killed_between_the_two_files_is_still_valid(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **small(tmp_path))
    before = (tmp_path / "run" / "config.toml").read_text()
    extend(tmp_path / "run", 3)
    (tmp_path / "run" / "config.toml").write_text(before)
    assert Experiment.reopen(tmp_path / "run").config.rounds == 2
    extend(tmp_path / "run", 3)
    assert len(tacit.resume(tmp_path / "run").history) == 3


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **small(tmp_path))
    written = (tmp_path / "run" / "run.json").read_bytes()
    with refused("run.fewer-rounds"):
        extend(tmp_path / "run", 1)
    assert (tmp_path / "run" / "run.json").read_bytes() == written
    assert len(tacit.resume(tmp_path / "run", rounds=2).history) == 2
    assert "before" not in json.loads(written)


def _state(name: str, planned: int) -> Any:
    """The state after four rounds of a method that was planned with this number of them."""
    method = registry.build_method(name, {}, {})
    train = Training(batch=5, lr=0.05, steps=2, momentum=0.0)
    job = replace(toys.unlabeled(method, train=train), rounds=planned)
    moments = zip(range(4), toys.rounds(job), strict=False)
    *_, (_, last) = moments
    return job.codec.encode(last.state)


NAMES = [*registry.methods(), *(f"fedavg+{name}" for name in OBJECTIVES)]


@pytest.mark.parametrize("name", NAMES)
def test_methods_that_depend_on_the_number_of_rounds_say_so(name: str) -> None:
    method: Any = registry.build_method(name, {}, {})
    parts = [part for part in (method, getattr(method, "objective", None)) if part is not None]
    needs = [part.needs for part in parts]
    if any(each.client_labels or each.simulation or each.linear_head for each in needs):
        pytest.skip("it needs other data, or another network than a toy's")
    paced = any(part.needs.planned_rounds for part in parts)
    assert paced or _state(name, 5) == _state(name, 9)
