"""What a finished run returns: its records, its model, how good it is."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.params import Params
from tacit.runs.config import Config


@dataclass(frozen=True)
class Result:
    """A finished run."""

    config: Config
    history: list[dict[str, Any]] = field(repr=False)  # the records of all rounds
    params: Params | None = field(repr=False)  # the final model; None for a method without a common model
    job: Job = field(repr=False)

    @property
    def accuracy(self) -> float:
        """Test accuracy of the model that is saved; without a common model, the clients' mean; NaN if not measured.

        With `data.folds` and no test samples it is cross-validated.
        """
        last = self.history[-1]
        if last["selected"] is not None:
            known = last["selected"]["accuracy"]
            return math.nan if known is None else float(known)
        known = last["local_accuracy"] if last["accuracy"] is None else last["accuracy"]
        return math.nan if known is None else float(known)

    def net(self) -> torch.nn.Module:
        """The trained network as an ordinary torch module in evaluation mode."""
        if self.params is None:
            raise TacitError(
                f"{self.config.method_name} trains no common model: each client has its own",
                "use another method to get one",
                code="run.no-common-model",
            )
        return self.job.net.module(self.params)
