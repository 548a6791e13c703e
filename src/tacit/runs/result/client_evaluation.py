"""How good a run's common model is for each of its clients, where a simulation knows the true labels."""

import torch

from tacit.errors import TacitError
from tacit.federation import UNLABELED, Samples
from tacit.learn import EVALUATION_BATCH, Score, evaluate
from tacit.metrics import evaluation
from tacit.metrics.evaluation import Evaluation
from tacit.metrics.predictions import Predictions
from tacit.process import one_thread
from tacit.runs.experiment import Experiment


def evaluate_clients(experiment: Experiment, *, positive: int | None = None, seed: int = 0) -> Evaluation:
    """The final model on the samples that each client holds without a label, by their true labels.

    A client without such samples is evaluated on its labeled ones, which the model was trained on.
    """
    federation, params = experiment.job.federation, experiment.result().params
    if params is None or federation.truth is None:
        raise TacitError(
            f"{experiment.folder} has no common model, or no true labels, to evaluate for each client",
            "use a simulated run of a method with a common model",
            code="evaluate.no-clients",
        )
    last = experiment.job.rounds - 1
    y: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    names: list[str] = []
    for client in range(federation.clients):
        truth = federation.true_labels(client, last)
        samples = _known(federation.client(client, last), truth, len(federation.classes))
        if len(samples):
            y.append(samples.y)
            outputs += _score(experiment, params, samples).outputs
            names += [str(client)] * len(samples)
    if not y:
        raise TacitError(
            f"no client of {experiment.folder.name} has a sample whose class is known",
            "evaluate labeled samples with --data",
            code="evaluate.no-clients",
        )
    found = Predictions(torch.cat(y).numpy(), torch.cat(outputs).numpy(), federation.classes)
    about = f"{experiment.folder.name} on the unlabeled samples of its {federation.clients} clients"
    # Clients are all there are and no draw from many, so the bootstrap draws samples.
    return evaluation.evaluate(
        found, about, positive=positive, groups=names, group_word="client", resample_groups=False, seed=seed
    )


def _known(held: Samples, truth: torch.Tensor | None, classes: int) -> Samples:
    """The samples without a label, with their true one; all samples if each has a label. Not of unknown classes."""
    labels = held.y if truth is None else truth
    known = (labels != UNLABELED) & (labels < classes)
    hidden = (held.y == UNLABELED) & known
    rows = (hidden if hidden.any() else known).nonzero().reshape(-1)
    return Samples(held.x.index_select(0, rows), labels.index_select(0, rows))


def _score(experiment: Experiment, params: dict[str, torch.Tensor], samples: Samples) -> Score:
    job = experiment.job
    model = {name: value.to(job.device) for name, value in params.items()}
    with one_thread():
        parts = (samples.take(rows) for rows in torch.arange(len(samples)).split(EVALUATION_BATCH))
        return sum(
            (evaluate(job.net, model, part, job.federation.views, job.device, outputs=True) for part in parts), Score()
        )
