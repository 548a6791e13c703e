"""Runs that ask for a protection they could not have are refused before anything is written."""

from pathlib import Path
from typing import Any

import pytest

from tacit.nets import build
from tacit.protect.sample_dp import refuse_unvectorised
from tests.inference import trained
from tests.nets.inputs import LINE, inputs
from tests.refusals import refused

NOISE: dict[str, Any] = {"method": "fedavg+supervised", "protect.sample_noise": 2.0}
SECURE: dict[str, Any] = {"method": "fedavg+supervised", "protect.secure": True}


@pytest.mark.parametrize(
    "settings, code",
    [
        (NOISE | {"method": "fedmatch"}, "protect.method-sees-samples"),
        (NOISE | {"method": "fedavg+freematch"}, "protect.loss-mixes-samples"),
        (NOISE | {"net": "lenet", "net.norm": "batch"}, "protect.batchnorm"),
        (NOISE | {"data.stream_steps": 2}, "protect.streaming-data"),
        (SECURE | {"method": "fedmatch"}, "protect.not-a-sum"),
        (SECURE | {"method": "scaffold"}, "protect.not-a-sum"),
        (SECURE | {"limits.max_norm": 3.0}, "protect.secure-and-limits"),
        (SECURE | {"limits.norm_factor": 3.0}, "protect.secure-and-limits"),
        (SECURE | {"protect.combine": "clipped"}, "protect.secure-and-limits"),
        (SECURE | {"protect.combine": "median"}, "protect.secure-and-limits"),
        (SECURE | {"protect.client_noise": 1.0, "protect.client_clip": 1.0}, "protect.secure-and-limits"),
        (SECURE | {"faults.hostile": 1}, "protect.secure-and-limits"),
        (SECURE | {"cohort": 2}, "protect.secure-needs-clients"),
    ],
)
def test_a_run_that_cannot_be_protected_is_refused(tmp_path: Path, settings: dict[str, Any], code: str) -> None:
    with refused(code):
        trained.image_folder(tmp_path, **settings)
    assert not (tmp_path / "run").exists()


def test_gradients_of_single_samples_are_refused_where_torch_has_none() -> None:
    with refused("protect.network"):
        refuse_unvectorised(build("lstm", LINE, 10), inputs(LINE, 1))
