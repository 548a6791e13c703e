"""What holds for every objective: it learns wherever labels are, from the right view, and repeats itself."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.federation import Samples
from tacit.learn import Objective, fit, loss_of_batch
from tacit.method import ClientContext, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedprox import FedProx
from tacit.methods.local_only import LocalOnly
from tacit.methods.scaffold import Scaffold
from tacit.methods.server_only import ServerOnly
from tacit.nets import build
from tacit.objectives import OBJECTIVES
from tacit.objectives.labeling import Labeling, Teacher
from tacit.params import Params
from tacit.updates import known_metrics
from tests.objectives.bench import EYE, NOISY, client, gradient, leaves, start, whole
from tests.toys import TWO_EPOCHS, apart, federation, hide, images, job, linear, points, rounds, same, samples

# Settings with which a model that knows nothing yet still learns from unlabeled samples.
EAGER: dict[str, dict[str, Any]] = {
    "pseudo-label": {"threshold": 0.0},
    "fixmatch": {"threshold": 0.0},
    "uda": {"threshold": 0.0, "annealing": "none"},
    "pi": {"ramp": 0.0},
    "mean-teacher": {"ramp": 0.0, "alpha": 0.5},
    "mixup": {"ramp": 0.0, "weight": 30.0},  # a linear model is nearly consistent by itself
    "flexmatch": {"threshold": 0.4},
    "openmatch": {"threshold": 0.0},
}
SEMI = [name for name in OBJECTIVES if name != "supervised"]


def make(name: str, **more: Any) -> Any:
    return OBJECTIVES[name](**EAGER.get(name, {}) | more)


def holder_of(data: Samples, **more: Any) -> ClientContext:
    return client(data, linear(), TWO_EPOCHS, views=NOISY, **more)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_has_a_page(name: str) -> None:
    pages = Path(__file__).parents[2] / "docs" / "objectives"
    assert (pages / f"{name}.md").is_file()
    assert f"({name}.md)" in (pages / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SEMI)
@pytest.mark.parametrize("shown", [0, 5, 20], ids=["no labels", "some labels", "all labels"])
def test_it_learns_wherever_the_labels_are(name: str, shown: int) -> None:
    holder = holder_of(hide(points(0, 20), shown))
    trained = fit(holder, start(linear()), make(name))
    assert apart(trained.params, start(linear())) > 1e-3
    assert trained.metrics.keys() <= (known_metrics(make(name)) or set())  # otherwise every client would be left out
    assert ("loss_supervised" in trained.metrics) == (shown > 0)
    if shown < 20:
        assert {"loss_unlabeled", "weight_unlabeled"} <= trained.metrics.keys()


@pytest.mark.parametrize("name", SEMI)
def test_unlabeled_samples_change_what_is_learnt(name: str) -> None:
    few = points(0, 6)
    more = Samples(torch.cat([few.x, points(1, 14).x]), torch.cat([few.y, torch.full((14,), -1)]))
    both = [
        fit(replace(holder_of(data), train=Training(steps=4, batch=6, lr=0.1)), start(linear()), make(name))
        for data in (few, more)
    ]
    assert apart(both[0].params, both[1].params) > 1e-3


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_visit_is_repeatable(name: str) -> None:
    holder = holder_of(hide(points(0, 20), shown=8))
    first = fit(holder, start(linear()), make(name))
    assert same(fit(holder, start(linear()), make(name)).params, first.params)
    assert not same(fit(replace(holder, round=1), start(linear()), make(name)).params, first.params)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_received_model_is_left_alone(name: str) -> None:
    net = build("cnn", (1, 16, 16), 3, "batch")
    received = start(net)
    fit(client(hide(images(0, 12), shown=4), net), received, make(name))
    assert same(received, start(net))


@pytest.mark.parametrize("name", SEMI)
def test_the_gradient_of_unlabeled_samples_is_that_of_the_loss_with_targets_held(name: str) -> None:
    """Released baselines detach the strong view and learn nothing, or let gradient into the target."""
    data = samples([[1.0, 0.0], [0.0, 0.7], [0.5, 0.1]], [-1, -1, -1])
    holder = client(data, linear(2, 2), views=NOISY)
    w = leaves(EYE)
    found = gradient(loss_of_batch(make(name).local_loss(holder, EYE, {}), holder.net, w, whole(holder)).total, w)
    numeric = _numeric_gradient(make(name), holder)
    for key, value in numeric.items():
        assert torch.allclose(found[key], value, atol=2e-3), key
    assert max(value.abs().max() for value in found.values()) > 1e-3


@pytest.mark.parametrize("labeler", ["local", "global", "confident"])
def test_the_labeler_answers_without_gradient(labeler: Any) -> None:
    holder = client(hide(points(0, 6)), linear())
    teacher = Teacher(holder, start(linear()), Labeling(labeler=labeler), {})
    batch = whole(holder)
    assert not teacher(leaves(start(linear())), batch, batch.u)[0].requires_grad


@pytest.mark.parametrize("name", SEMI)
def test_passes_with_gradient_learn_and_passes_without_label(name: str) -> None:
    holder = client(hide(points(0, 6)), linear(), views=NOISY)
    real, passes = holder.net.apply, []

    def watched(params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        passes.append((torch.is_grad_enabled(), train))
        return real(params, x, train)

    local = make(name).local_loss(holder, start(linear()), {})
    holder.net.apply = watched  # type: ignore[method-assign]
    loss_of_batch(local, holder.net, leaves(start(linear())), whole(holder))
    with_gradient = [train for gradient, train in passes if gradient]
    assert with_gradient == [True]  # one pass learns, in training mode
    assert all(train for _, train in passes)  # and so does the model label as it trains, or the teacher


def test_the_received_model_labels_in_evaluation_mode() -> None:
    holder = client(hide(points(0, 6)), linear())
    modes = []
    real = holder.net.apply

    def watched(params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        modes.append(train)
        return real(params, x, train)

    holder.net.apply = watched  # type: ignore[method-assign]
    Teacher(holder, start(linear()), Labeling(labeler="global"), {})
    assert modes == [False]


def _numeric_gradient(objective: Objective, holder: ClientContext) -> Params:
    """Central differences of the cost while whatever is computed without gradient answers as for EYE."""
    real, epsilon = holder.net.apply, 1e-2

    def held(params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        return real(params if torch.is_grad_enabled() else EYE, x, train)

    holder.net.apply = held  # type: ignore[method-assign]
    slopes = {}
    for name, value in EYE.items():
        slope = torch.zeros_like(value)
        for place in range(value.numel()):
            cost = []
            for step in (epsilon, -epsilon):
                w = leaves(EYE)
                with torch.no_grad():
                    w[name].view(-1)[place] += step
                cost.append(
                    float(
                        loss_of_batch(
                            objective.local_loss(holder, EYE, {}), holder.net, w, whole(holder)
                        ).total.detach()
                    )
                )
            slope.view(-1)[place] = (cost[0] - cost[1]) / (2 * epsilon)
        slopes[name] = slope
    return slopes


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("framework", [FedAvg, FedProx, LocalOnly, Scaffold, ServerOnly])
def test_every_framework_runs_with_it(name: str, framework: Any) -> None:
    at_server = framework is ServerOnly
    clients = [hide(points(k, 12), 0 if at_server else 6) for k in range(2)]
    data = federation(clients, server=points(9, 6) if at_server else None, test=points(8, 9))
    *_, last = rounds(job(framework(objective=make(name)), data, linear(), rounds=2))
    accuracy = last.record.local_accuracy if framework is LocalOnly else last.record.accuracy
    assert framework is LocalOnly or accuracy is not None


@pytest.mark.parametrize("name", SEMI)
def test_labels_at_the_server_only(name: str) -> None:
    data = federation([hide(points(k, 12)) for k in range(2)], server=points(9, 6), test=points(8, 9))
    *_, last = rounds(job(FedAvg(objective=make(name)), data, linear(), rounds=2))
    assert {"loss_unlabeled", "weight_unlabeled"} <= last.record.metrics.keys()
    assert last.record.accuracy is not None


@pytest.mark.parametrize("name", [name for name in SEMI if name not in {"pi", "mean-teacher"}])
def test_pseudo_labels_are_reported_for_diagnosis(name: str) -> None:
    trained = fit(holder_of(hide(points(0, 20), shown=8)), start(linear()), make(name))
    assert trained.pseudo_labels is not None
    assert set(trained.pseudo_labels.index.tolist()) == set(range(8, 20))
