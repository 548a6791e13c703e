"""FedOpenMatch: each term by hand, its reductions, and a second head that the classifier does not notice."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tacit
from tacit.federation import Samples
from tacit.inference.export import export
from tacit.learn import fit, loss_of_batch
from tacit.losses import no_class, one_vs_all, prior_adjusted
from tacit.method import ClientContext
from tacit.nets import Net, build
from tacit.nets.border import UpperNet, border_of
from tacit.nets.one_vs_all import BIAS, WEIGHT, WithOneVsAll, pairs
from tacit.nets.start import Start, Trains
from tacit.objectives import FixMatch, OpenMatch
from tacit.params import Params
from tacit.runs.config import from_options
from tests.engines import farm
from tests.objectives.bench import NOISY, Scaled, client, gradient, leaves, start, whole
from tests.refusals import refused
from tests.toys import hide, images, samples

SHAPE = (1, 16, 16)


class Identity(torch.nn.Module):
    """Features are the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def features(self, x: Tensor) -> Tensor:
        return x

    def classify(self, z: Tensor) -> Tensor:
        return self.fc(z)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def head(factor: float = 1.0) -> Params:
    """The logits are the view; the yes of class j is factor·x_j, and its no is 0."""
    weight = torch.cat([torch.zeros(2, 2), factor * torch.eye(2)])
    return {"fc.weight": torch.eye(2), "fc.bias": torch.zeros(2), WEIGHT: weight, BIAS: torch.zeros(4)}


def cost_of(data: Samples, w: Params, **settings: Any) -> Any:
    holder = client(data, Net(WithOneVsAll(Identity, 2)), views=Scaled())
    return loss_of_batch(OpenMatch(**settings).local_loss(holder, w, {}), holder.net, w, whole(holder))


# --- the losses -------------------------------------------------------------------------------------------------------


def test_one_vs_all_takes_the_own_class_and_the_hardest_other_one() -> None:
    # odds of yes to no: 3, 1/4 and 2, so p(yes) = 3/4, 1/5, 2/3; the third is the hardest no: p(no) = 1/3
    logits = torch.tensor([[[0.0, 0.0, 0.0], [log(3), log(1 / 4), log(2)]]])
    assert one_vs_all(logits, torch.tensor([0])).item() == pytest.approx(-log(3 / 4) - log(1 / 3))
    assert one_vs_all(logits, torch.tensor([1])).item() == pytest.approx(-log(1 / 5) - log(1 / 4))
    assert no_class(logits).item() == pytest.approx(-log(1 / 4))  # of the first, the surest yes


def test_the_prior_of_a_class_is_subtracted_from_its_pair() -> None:
    logits = torch.zeros(1, 2, 4)
    # π = (3/4, 1/4): with equal logits and ω = 1, p(yes) = 1/4
    assert prior_adjusted(logits, 1.0).softmax(dim=1)[0, 1].tolist() == pytest.approx([1 / 4] * 4)
    # with ω = 2 the odds are (1/3)² = 1/9
    assert prior_adjusted(logits, 2.0).softmax(dim=1)[0, 1].tolist() == pytest.approx([1 / 10] * 4)
    assert torch.equal(prior_adjusted(logits, 0.0), logits)


# --- the objective ----------------------------------------------------------------------------------------------------

A, B = [log(9), 0.0], [log(2), 0.0]  # plain views: p = 9/10 and 2/3 for class 0, and the head says yes with the same


def test_a_labeled_sample_costs_its_cross_entropy_and_its_pairs() -> None:
    # weak views double: odds 81 for class 0, 1 for class 1; with two classes π = (1/2, 1/2) changes nothing
    cost = cost_of(samples([A], [0]), head())
    assert cost.metrics["loss_supervised"].item() == pytest.approx(-log(81 / 82), rel=1e-4)
    assert cost.metrics["loss_ova"].item() == pytest.approx(-log(81 / 82) - log(1 / 2), rel=1e-4)
    assert cost.total.item() == pytest.approx(-2 * log(81 / 82) - log(1 / 2), rel=1e-4)


@pytest.mark.parametrize(
    "settings, factor, accepted",
    [
        ({"threshold": 0.5}, 1.0, [True, True]),
        ({"threshold": 0.8}, 1.0, [True, False]),  # confidence 0.9 and 0.67
        ({"threshold": 0.5, "inlier": 0.8}, 1.0, [True, False]),  # yes 0.9 and 0.67
        ({"threshold": 0.5}, -1.0, [False, False]),  # the head says no to both
        ({"threshold": 0.5, "inlier": 0.0}, -1.0, [True, True]),  # nobody asks the head
    ],
    ids=str,
)
def test_a_pseudo_label_counts_if_both_heads_agree(settings: Any, factor: float, accepted: list[bool]) -> None:
    cost = cost_of(samples([A, B], [-1, -1]), head(factor), consistency=0.0, **settings)
    assert cost.pseudo_labels.accepted.tolist() == accepted
    assert cost.metrics["kept"].item() == pytest.approx(sum(accepted) / 2)
    # strong views halve the logits: odds 3 and √2
    each = [-log(3 / 4), -log(2**0.5 / (1 + 2**0.5))]
    expected = sum(loss for loss, counts in zip(each, accepted, strict=True) if counts) / 2
    assert cost.metrics["loss_unlabeled"].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(
    "settings, factor, expected",
    [
        # a certain inlier (0.9) learns its class on the strong view: odds 3 for class 0, 1 for class 1; mean over two
        ({"ova_threshold": 0.85}, 1.0, (-log(3 / 4) - log(1 / 2)) / 2),
        ({"ova_threshold": 0.85, "threshold": 0.95}, 1.0, 0.0),  # its label is not sure enough
        ({"ova_threshold": 0.95}, 1.0, 0.0),
        # the head says yes with 0.1: a certain outlier, whose hardest no is that of class 1, with odds 1
        ({"ova_threshold": 0.85}, -1.0, -log(1 / 2) / 2),
    ],
    ids=str,
)
def test_the_second_head_learns_from_certain_answers(settings: Any, factor: float, expected: float) -> None:
    given = {"threshold": 0.5, "consistency": 0.0, "omega": 0.0} | settings
    cost = cost_of(samples([A, B], [-1, -1]), head(factor), **given)
    assert cost.metrics["loss_ova"].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_all_samples_are_asked_for_the_same_logits_on_two_views() -> None:
    # weak 2x and strong x/2 differ by 1.5x: of four numbers, two are 1.5·log 9 and 1.5·log 2; the pairs have eight
    squares = (1.5 * log(9)) ** 2 + (1.5 * log(2)) ** 2
    cost = cost_of(samples([A, B], [-1, -1]), head(), threshold=1.0, consistency=3.0, ova_threshold=1.0)
    assert cost.metrics["loss_consistency"].item() == pytest.approx(squares / 4 + squares / 8, rel=1e-4)
    assert cost.metrics["kept"].item() == 0, "whether or not a label is accepted"
    assert cost.total.item() == pytest.approx(3 * (squares / 4 + squares / 8), rel=1e-4)


@pytest.mark.parametrize("stopped", [True, False])
def test_the_second_head_changes_no_features_unless_asked(stopped: bool) -> None:
    net = build("cnn", SHAPE, 3, one_vs_all=True)
    holder = client(hide(images(0, 8), shown=8), net)
    w = leaves(start(net))
    objective = OpenMatch(stop_gradient=stopped)
    loss = loss_of_batch(objective.local_loss(holder, start(net), {}), net, w, whole(holder)).metrics["loss_ova"]
    found = gradient(loss, w)
    assert (found["conv1.weight"] is None) == stopped
    assert found["fc2.weight"] is None, "the classifier never"
    assert found[WEIGHT].abs().max() > 0


def visit(net: Net, objective: Any) -> Params:
    holder: ClientContext = client(hide(images(0, 20), shown=8), net, views=NOISY)
    holder = replace(holder, train=replace(holder.train, steps=3, batch=6, momentum=0.9))
    return fit(holder, start(net), objective).params


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("two_heads", [True, False])
def test_without_filter_and_consistency_it_is_fixmatch_with_the_global_labeler(norm: Any, two_heads: bool) -> None:
    plain = visit(build("lenet", SHAPE, 3, norm), FixMatch(threshold=0.4, labeler="global"))
    open_set = OpenMatch(threshold=0.4, inlier=0.0, omega=0.0, consistency=0.0)
    mine = visit(build("lenet", SHAPE, 3, norm, one_vs_all=two_heads), open_set)
    assert mine.keys() - plain.keys() == ({WEIGHT, BIAS} if two_heads else set())
    assert all(torch.equal(mine[name], value) for name, value in plain.items())
    other = visit(build("lenet", SHAPE, 3, norm, one_vs_all=two_heads), replace(open_set, consistency=1.0))
    assert not torch.equal(other["fc3.weight"], plain["fc3.weight"])


# --- the second head in a network -------------------------------------------------------------------------------------


def test_a_network_classifies_the_same_with_a_second_head() -> None:
    plain, both = build("lenet", (1, 28, 28), 5), build("lenet", (1, 28, 28), 5, one_vs_all=True)
    w, w2 = (net.init(torch.Generator().manual_seed(3)) for net in (plain, both))
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain.apply(w, x), both.apply(w2, x))
    assert all(torch.equal(w2[name], value) for name, value in w.items())
    assert both.head == plain.head
    assert both.size() == plain.size() + 2 * 5 * (84 + 1)
    assert pairs(w2, both.features(w2, x)).shape == (4, 2, 5)


def test_the_second_head_trains_where_only_the_head_does() -> None:
    net = build("lenet", (1, 28, 28), 3, start=Start(trains=Trains("head")), one_vs_all=True)
    assert set(net.trainable) == {"fc3.weight", "fc3.bias", WEIGHT, BIAS}
    assert border_of(net) == -1
    w, x = start(net), torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    upper = UpperNet(net, -1)
    assert torch.allclose(upper.apply(w, upper.below(x)), net.apply(w, x))


def test_a_network_without_features_cannot_have_a_second_head() -> None:
    with refused("nets.no-features"):
        Net(WithOneVsAll(lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)), 2))


def test_a_config_gets_the_head_with_the_objective_and_a_user_may_decline() -> None:
    given = {"labels": "server", "per_class": 2}
    assert from_options({**given, "method": "fedavg+openmatch"}).net.one_vs_all is True
    assert from_options({**given, "method": "fedavg+fixmatch"}).net.one_vs_all is None
    assert from_options({**given, "method": "fedavg+openmatch", "net.one_vs_all": False}).net.one_vs_all is False


def test_the_model_of_a_run_is_saved_loaded_and_exported_as_a_classifier(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": str(farm.write_images(tmp_path / "images.npz")),
        "labels": "server",
        "per_class": 4,
        "clients": 3,
    }
    settings: dict[str, Any] = {
        "method": "fedavg+openmatch",
        "rounds": 2,
        "workers": 0,
        "train.steps": 2,
        "net": "lenet",
    }
    unknown: dict[str, Any] = {"data.unknown_classes": 1, "objective.threshold": 0.0, "objective.inlier": 0.4}
    result = tacit.run(out=tmp_path / "run", **given, **settings, **unknown)
    metrics = result.history[-1]["metrics"]
    assert {"loss_ova", "loss_consistency", "inliers", "pseudo_unknown"} <= metrics.keys()
    assert result.params is not None
    assert result.params[WEIGHT].shape[0] == 4
    model = tacit.load(tmp_path / "run")
    assert model.classes == ("0", "1")
    x = result.job.federation.test.x[:5]
    seen = result.job.federation.views.plain(x)
    assert torch.allclose(model.logits(x), result.job.net.apply(result.params, seen), atol=1e-6)
    for form in ("pt2", "safetensors"):
        exported = export(model, tmp_path / f"model.{form}", form, x)  # opens the file and compares its answers
        assert exported.difference is not None
        assert exported.difference < 1e-5
    other: dict[str, Any] = {"method": "fedavg+fixmatch", "net.weights": str(tmp_path / "run")}
    again = tacit.run(**given, **settings | other | {"data.unknown_classes": 1})
    assert WEIGHT not in (again.params or {}), "another run may start from the classifier"


def test_pieces_add_up() -> None:
    cost = cost_of(
        samples([A, A, B], [0, -1, -1]), head(), threshold=0.5, ova_threshold=0.85, weight=2.0, consistency=1.0
    )
    m = {name: value.item() for name, value in cost.metrics.items()}
    expected = m["loss_supervised"] + 2 * m["loss_unlabeled"] + m["loss_consistency"] + m["loss_ova"]
    assert cost.total.item() == pytest.approx(expected, rel=1e-5)
