"""A last layer for each client, fitted to its own labels after the last round. It stays there.

The start is the final common model, whatever method trained it. Only the last layer changes, and no further than the
client's labels justify: see `learn.linear_head`. A simulation reports what its clients would gain and stores only
accuracies. A site gets a model for itself.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tacit import params
from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Samples
from tacit.inference import model_file
from tacit.inference.labeled import Labeled, labeled_samples
from tacit.inference.model import Model
from tacit.learn import EVALUATION_BATCH
from tacit.learn.linear_head import FOLDS, LinearHead, fit_chosen
from tacit.metrics.local_heads import LocalHead, LocalHeads
from tacit.nets import Net
from tacit.params import Params
from tacit.process import one_thread
from tacit.random import Streams
from tacit.runs.experiment import Experiment

CARD = """
## Local head

The last layer of this model was fitted to {labels:,} labels of one site, {name}. It gets {local:.1%} of the site's
{held_out:,} test samples right, the common model {common:.1%}. Everything else on this card is about the common model.
"""


@dataclass(frozen=True)
class _HeldOut:
    """Samples to measure accuracy on: features (n, d), classes (n,) and weights (n,), which add up to 1."""

    z: Tensor
    y: Tensor
    weight: Tensor

    def accuracy(self, head: LinearHead) -> float:
        """The weighted share of the samples that a head gets right."""
        right = head.logits(self.z).argmax(dim=1) == self.y
        return float(self.weight @ right.double())


@dataclass(frozen=True)
class _CommonModel:
    """The final model of a simulation."""

    job: Job
    params: Params

    @cached_property
    def head(self) -> LinearHead:
        """Its last layer."""
        return _head_in(self.job.net, self.params)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Features and classes of the common test samples."""
        samples = self.job.federation.test
        return self.features(samples.x), samples.y

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """(n, features) of stored samples, not augmented, in float64."""
        job = self.job
        fast = params.channels_last({name: value.to(job.device) for name, value in self.params.items()})
        views = (job.federation.views.plain(part.to(job.device)) for part in x.split(EVALUATION_BATCH))
        return torch.cat([job.net.features(fast, part).flatten(1).cpu().double() for part in views])


def of_run(folder: Path) -> LocalHeads:
    """What local heads would bring to each client with labels in a finished simulation.

    Both accuracies are on the samples that the client holds without a label, by their true labels. A client without
    such samples holds nothing out: for it, test samples count by how frequent their class is among its labels.
    """
    experiment = Experiment.reopen(folder)
    if experiment.config.data.at_sites:
        problem, remedy = f"the labels of {folder} are at its sites", "let a site run `tacit site local-head MODEL`"
        raise TacitError(problem, remedy, code="local-heads.at-sites")
    model = experiment.result().params
    if model is None:
        problem, remedy = f"{folder} has no common model", "use a method that has one"
        raise TacitError(problem, remedy, code="local-heads.no-common-model")
    with one_thread():
        common = _CommonModel(experiment.work, model)
        found = [_of_client(common, client) for client in range(experiment.job.federation.clients)]
    heads = tuple(each for each in found if each is not None)
    if not heads:
        problem = f"no client of {folder} has labels of its own"
        remedy = "use a run with labels at clients, such as --labels client"
        raise TacitError(problem, remedy, code="local-heads.no-labels")
    return LocalHeads(f"local heads of {folder.name}", heads)


def _of_client(model: _CommonModel, client: int) -> LocalHead | None:
    federation, last = model.job.federation, model.job.rounds - 1
    held, truth = federation.client(client, last), federation.true_labels(client, last)
    labeled, hidden = held.take(held.labeled), _hidden(held, truth, len(federation.classes))
    if not len(labeled):
        return None
    measured = _equally(model.features(hidden.x), hidden.y) if len(hidden) else _by_class_mix(*model.test, labeled.y)
    head, strength = _fit(labeled, model.features(labeled.x), model.head)
    common, local = (measured.accuracy(each) for each in (model.head, head))
    return LocalHead(str(client), len(labeled), len(measured.y), strength, common, local)


def _hidden(held: Samples, truth: Tensor | None, classes: int) -> Samples:
    """The samples without a label whose class is known to the simulation and to the model, with that class."""
    labels = held.y if truth is None else truth
    rows = (held.y == UNLABELED) & (labels != UNLABELED) & (labels < classes)
    return Samples(held.x, labels).take(rows.nonzero().reshape(-1))


def _equally(z: Tensor, y: Tensor) -> _HeldOut:
    return _HeldOut(z, y, torch.full((len(y),), 1 / len(y), dtype=torch.float64))


def _by_class_mix(z: Tensor, y: Tensor, labels: Tensor) -> _HeldOut:
    """Test samples, each weighted so that the classes are as frequent as among these labels."""
    classes = int(max(y.max(), labels.max())) + 1
    mix, counts = (torch.bincount(each, minlength=classes) for each in (labels, y))
    weight = (mix / counts.clamp(min=1)).double()[y]
    counted = weight > 0
    if not counted.any():
        problem = "the test samples have no class that a client has labels of"
        raise TacitError(problem, "add test samples of every class", code="local-heads.no-test-samples")
    return _HeldOut(z[counted], y[counted], weight[counted] / weight.sum())


def _fit(labeled: Samples, z: Tensor, start: LinearHead) -> tuple[LinearHead, float]:
    """A head fitted to labeled samples with these features, and its strength; a group is in one fold."""
    order = torch.randperm(len(labeled), generator=Streams(0).at("local head"))
    fold = torch.empty(len(order), dtype=torch.int64)
    fold[order] = labeled.folds(order, FOLDS)
    return fit_chosen(z, labeled.y, start, fold)


def _head_in(net: Net, model: Params) -> LinearHead:
    """The last layer of a model, in float64."""
    weight, bias = _names(net)
    return LinearHead(model[weight].cpu().double(), model[bias].cpu().double())


def _names(net: Net) -> tuple[str, str]:
    """The tensors of the last layer; refuses a network without a linear one."""
    if net.head is None or net.head.bias is None:
        raise TacitError(
            "this network has no last layer that is linear in its features, with a bias",
            "use another network",
            code="local-heads.no-linear-head",
        )
    return net.head.weight, net.head.bias


def of_own_data(model: Model, data: str, name: str) -> tuple[LocalHead, bytes]:
    """Fit a head to a site's labeled samples: both accuracies on its test samples, and the file of its own model."""
    net, weights = model.architecture, model.weights
    start, names = _head_in(net, weights), _names(net)
    labeled, test = (_as_samples(labeled_samples(model, data, part)) for part in ("labeled", "test"))
    with one_thread():
        head, strength = _fit(labeled, model.features(labeled.x).double(), start)
    held_out = _equally(model.features(test.x).double(), test.y)
    common, local = (held_out.accuracy(each) for each in (start, head))
    found = LocalHead(name, len(labeled), len(test), strength, common, local)
    # The temperature was that of the common head.
    about = replace(model.description, card=model.card + CARD.format(**vars(found)), temperature=1.0)
    own = {at: value.to(weights[at]) for at, value in zip(names, head, strict=True)}
    return found, model_file.encode(net, weights | own, about)


def _as_samples(given: Labeled) -> Samples:
    """With the groups as numbers."""
    if given.groups is None:
        return Samples(given.x, given.y)
    number = {group: place for place, group in enumerate(dict.fromkeys(given.groups))}
    return Samples(given.x, given.y, torch.tensor([number[group] for group in given.groups]))
