"""What the model of a run reveals about the samples it was trained on: membership inference on a simulation or a site.

A simulation knows its training samples; a site knows its own. Held-out samples are the test samples of either.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacit.data import sources
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Samples
from tacit.inference.labeled import labeled_samples
from tacit.inference.model import Model
from tacit.learn import EVALUATION_BATCH, Score, evaluate
from tacit.metrics import membership
from tacit.metrics.membership import Membership
from tacit.metrics.predictions import Predictions
from tacit.process import one_thread
from tacit.runs.experiment import Experiment

MOST = 10_000  # samples of a kind that are attacked; more would hardly narrow the interval
FEWEST = 10  # below, an area under a curve says nothing


def of_run(folder: Path, seed: int = 0) -> Membership:
    """The attacks on the final model of a simulation, whose data must be as it was when the run began."""
    experiment = Experiment.reopen(folder)
    if experiment.config.data.at_sites:
        raise TacitError(
            f"the training samples of {folder} are at its sites",
            "let a site attack the model with its own samples: tacit evaluate MODEL --membership --data ITS-DATA",
            code="evaluate.members-at-sites",
        )
    params = experiment.result().params
    if params is None:
        raise TacitError(f"{folder} has no common model", "use a method that has one", code="evaluate.no-common-model")
    job = experiment.job
    model = {name: value.to(job.device) for name, value in params.items()}

    def outputs(given: Samples) -> Predictions:
        parts = (given.take(rows) for rows in torch.arange(len(given)).split(EVALUATION_BATCH))
        with one_thread():
            found = sum(
                (evaluate(job.net, model, part, job.federation.views, job.device, outputs=True) for part in parts),
                Score(),
            )
        return Predictions(given.y.numpy(), torch.cat(found.outputs).numpy(), job.federation.classes)

    members = training_samples(experiment)
    return _attacked(f"{folder.name} on its own training samples", members, job.federation.test, outputs, seed)


def training_samples(experiment: Experiment) -> dict[str, Samples]:
    """The samples that a simulation trained on, by whether it saw their labels, all with their true labels.

    They are those of the server and of the clients that took part. An objective that learns from labels only has not
    trained on the others.
    """
    job, folder = experiment.job, experiment.directory
    federation, objective = job.federation, getattr(job.method, "objective", None)
    records = folder.rounds(folder.total_rounds())
    took_part = sorted({k for record in records for k in record.traffic if k not in record.skipped})
    parts: dict[str, list[Samples]] = {"labeled": [federation.server.labeled], "unlabeled": []}
    for client in took_part:
        held = federation.client(client, job.rounds - 1)
        truth = federation.true_labels(client, job.rounds - 1)
        parts["labeled"].append(held.take(held.labeled))
        if truth is not None and not getattr(objective, "labels_only", False):
            hidden = ((held.y == UNLABELED) & (truth != UNLABELED)).nonzero().reshape(-1)
            parts["unlabeled"].append(Samples(held.x, truth).take(hidden))
    return {kind: _joined(found) for kind, found in parts.items() if found}


def of_own_data(model: Model, data: str, seed: int = 0) -> Membership:
    """The attacks on a model with labeled samples that it was trained on and test samples of the same source."""
    trained, held_out = labeled_samples(model, data, "labeled"), labeled_samples(model, data, "test")

    def outputs(given: Samples) -> Predictions:
        return Predictions(given.y.numpy(), model.logits(given.x).numpy(), model.classes)

    about = f"the labeled samples of {Path(data).name if sources.is_path(data) else data}"
    members, others = (Samples(each.x, each.y) for each in (trained, held_out))
    return _attacked(about, {"labeled": members}, others, outputs, seed)


def _attacked(
    about: str,
    members: Mapping[str, Samples],
    others: Samples,
    outputs: Callable[[Samples], Predictions],
    seed: int,
) -> Membership:
    chosen = {kind: _some(given, seed) for kind, given in members.items() if len(given) >= FEWEST}
    others = _some(others.take(others.labeled), seed)
    if not chosen or len(others) < 2 * FEWEST:
        raise TacitError(
            f"there are too few training samples ({max(map(len, members.values()), default=0)}) or held-out ones "
            f"({len(others)}) to attack the model",
            f"use {FEWEST} or more of the former and {2 * FEWEST} or more of the latter",
            code="evaluate.too-few-members",
        )
    return membership.membership(
        about, {kind: outputs(given) for kind, given in chosen.items()}, outputs(others), seed=seed
    )


def _joined(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _some(given: Samples, seed: int) -> Samples:
    """At most `MOST` samples, in a random order, so that every second one is a fair half."""
    order: Tensor = torch.from_numpy(np.random.default_rng([seed, 97]).permutation(len(given))[:MOST])
    return given.take(order)
