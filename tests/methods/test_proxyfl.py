"""ProxyFL: candidate sets, positives, negatives and the prior by hand, and what is left without its two parts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tacit.federation import Federation
from tacit.learn import Batch, BatchLoss, Forward, LocalLoss
from tacit.method import Holder, Needs, Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.proxyfl import (
    Maps,
    ProxyFl,
    ProxyFlUp,
    at_most,
    candidate_sets,
    contrastive_loss,
    positive_similarity,
)
from tacit.nets import Net, build
from tacit.objectives import FixMatch
from tacit.params import Params, channels_last, mean
from tacit.runs import registry
from tacit.updates import LabelCounts
from tests.toys import apart, federation, hide, job, play_all, points, same, started, visit

TRAIN = Training(epochs=2, batch=3, unlabeled_batch=4, lr=0.1)
NO_PARTS: dict[str, Any] = {"contrast": 0.0, "tune_head": 0}


def net() -> Net:
    """Small, with features and a linear last layer, without batch statistics."""
    return build("mlp", (4,), 3)


def data(shown: int = 3) -> Federation:
    """Two clients with nine points each, of which the first few have labels."""
    return federation([hide(points(k, 9), shown) for k in range(2)])


# The equations. Two features, three classes.


def test_a_sure_sample_has_its_label_and_an_unsure_one_all_classes_above_the_prior() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]])
    prior = torch.tensor([0.6, 0.25, 0.15])  # class 0 is frequent: 0.5 is less than one would expect of it
    sets = candidate_sets(q, torch.tensor([False, True, False]), prior)
    assert sets.tolist() == [[False, True, True], [True, False, False], [False, True, True]]


def test_the_positive_is_the_labels_proxy_or_the_weighted_sum_over_the_set() -> None:
    similar = torch.tensor([[0.5, -1.0, 0.25], [0.5, -1.0, 0.25]])
    shares = torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.5, 0.3]])
    sets = torch.tensor([[True, False, True], [False, True, False]])
    found = positive_similarity(similar, shares, sets, torch.tensor([False, True]), torch.tensor([1, 1]))
    # 0.2·0.5 + 0.3·0.25 = 0.175 for the unsure one; the similarity to class 1 for the sure one
    assert found.tolist() == pytest.approx([0.175, -1.0])


def test_the_contrastive_loss_by_hand() -> None:
    half = sqrt(0.5)
    # Sample 0 is labeled. 0 and 2 have cosine 0.6, 0 and 1 √½, 1 and 2 (0.6 + 0.8)·√½, and sample 3 is opposite to 0.
    f = torch.tensor([[1.0, 0.0], [half, half], [0.6, 0.8], [-1.0, 0.0]], dtype=torch.float64)
    proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    shares = torch.tensor([[1.0, 0, 0], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9]], dtype=torch.float64)
    sets = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]]).bool()
    sure = torch.tensor([True, False, True, True])
    labels = torch.tensor([0, 0, 1, 2])
    # Row 1: positive 0.9·√½. It shares a class with 0 and 2; with 3 its cosine is below 0: no negatives, loss 0.
    # Row 2: positive 0.8. It shares class 1 with 1; 0 is a negative with 0.6; 3 has cosine -0.6.
    # Row 3: positive 1. It shares no class with anyone, and no cosine with it is above 0: loss 0.
    expected = (0 + log(1 + exp(0.6 - 0.8)) + 0) / 3
    assert contrastive_loss(f, proxies, shares, sets, sure, labels, skip=1).item() == pytest.approx(expected, abs=1e-12)
    # As a row of its own, sample 0 has positive 1 and the negative 2.
    with_labeled = (3 * expected + log(1 + exp(0.6 - 1))) / 4
    assert contrastive_loss(f, proxies, shares, sets, sure, labels, skip=0).item() == pytest.approx(with_labeled)


def test_a_sample_is_no_negative_of_itself_even_without_candidates() -> None:
    f, proxies = torch.tensor([[1.0, 0.0]]), torch.eye(2)
    q = torch.tensor([[0.5, 0.5]])  # as likely as the prior: the set is empty, the positive 0
    sets = candidate_sets(q, torch.tensor([False]), torch.tensor([0.5, 0.5]))
    assert not sets.any()
    assert contrastive_loss(f, proxies, q, sets, torch.tensor([False]), torch.tensor([0]), skip=0).item() == 0


def test_the_prior_by_hand() -> None:
    before, counts = torch.tensor([0.5, 0.5]), [torch.tensor([1, 3]), torch.tensor([6, 0]), torch.tensor([0, 0])]
    # Eq. 5: the mean of (1/4, 3/4) and (1, 0); a client without labels says nothing
    assert ProxyFl().updated_prior(before, counts).tolist() == pytest.approx([0.625, 0.375])
    # As released: 0.99·½ + 0.01·7/10
    released = ProxyFl(prior="samples", prior_decay=0.99)
    assert released.updated_prior(before, counts).tolist() == pytest.approx([0.495 + 0.007, 0.495 + 0.003])
    assert ProxyFl().updated_prior(before, counts[2:]) is before


# The method.


def test_the_prior_counts_labels_and_confident_pseudo_labels_of_the_last_epoch() -> None:
    given = job(ProxyFl(threshold=0.0, **NO_PARTS), data(), net(), train=TRAIN)
    _, downs = given.method.send(given.server(0, {}), started(given))
    reply = visit(given, 0, downs[0])
    # Two steps make an epoch: six unlabeled samples in batches of four, three labeled ones twice. All twelve labels
    # count, in the shares of nine samples, rounded down by class.
    assert 9 - 3 < int(reply.up.counts.of.sum()) <= 9
    unsure = job(ProxyFl(threshold=1.0, **NO_PARTS), data(), net(), train=TRAIN)
    labels = torch.bincount(points(0, 9).y[:3], minlength=3)
    assert visit(unsure, 0, downs[0]).up.counts.of.tolist() == (2 * labels).tolist()


def test_a_uniform_prior_is_the_first() -> None:
    assert started(job(ProxyFl(), data(), net())).prior.tolist() == pytest.approx([1 / 3] * 3)


@dataclass(frozen=True)
class EitherConfident:
    """FixMatch with labels of the received model, accepted if it or the model in training is confident."""

    threshold: float

    labels_only = False
    needs = Needs()

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        fixed = channels_last(received)

        def cost(w: Params, batch: Batch, forward: Forward) -> BatchLoss:
            n, u = len(batch.x), len(batch.u)
            x = holder.views.plain(torch.cat([batch.x, batch.u, batch.u]))
            z = forward(x).logits
            with torch.no_grad():
                q = functional.softmax(holder.net.apply(fixed, x[: n + u]), dim=1)[n:]
            p = functional.softmax(z.detach()[n : n + u], dim=1)
            sure = (q.amax(1) >= self.threshold) | (p.amax(1) >= self.threshold)
            losses = functional.cross_entropy(z[n + u :], q.argmax(1), reduction="none")
            return BatchLoss(functional.cross_entropy(z[:n], batch.y) + torch.where(sure, losses, 0.0).sum() / u)

        return LocalLoss(cost)


def test_without_its_parts_it_is_fedavg_with_labels_of_the_received_model() -> None:
    either, reference = (
        play_all(job(method, data(), net(), train=TRAIN))
        for method in (ProxyFl(0.4, confident="either", **NO_PARTS), FedAvg(EitherConfident(0.4)))
    )
    assert same(either.state.common.w, reference.state.w)
    plain, fixmatch = (
        play_all(job(method, data(), net(), train=TRAIN))
        for method in (ProxyFl(0.4, **NO_PARTS), FedAvg(FixMatch(0.4, labeler="global")))
    )
    assert apart(plain.state.common.w, fixmatch.state.w) < 1e-4 < apart(plain.state.common.w, either.state.common.w)


def test_maps_learn_with_the_model_are_averaged_with_it_and_are_not_shipped() -> None:
    given = job(ProxyFl(), data(), net(), train=TRAIN)
    state = started(given)
    _, downs = given.method.send(given.server(0, {}), state)
    ups: dict[int, ProxyFlUp] = {k: visit(given, k, downs[k]).up for k in (0, 1)}
    merged = given.method.merge(given.server(0, {}), state, ups)
    for name in ("feature", "bias", "proxy"):
        assert not same({"": getattr(ups[0].maps, name)}, {"": getattr(state.maps, name)})
        both = mean([{"": getattr(up.maps, name)} for up in ups.values()], [9.0, 9.0])
        assert same({"": getattr(merged.maps, name)}, both)
    assert merged.common.w.keys() == set(given.net.names)
    assert given.method.model(merged) is merged.common.w


def test_without_the_contrastive_loss_maps_stay() -> None:
    given = job(ProxyFl(contrast=0.0), data(), net(), train=TRAIN)
    first, last = started(given).maps, play_all(given).state.maps
    assert same({"": first.feature}, {"": last.feature})
    assert same({"": first.proxy}, {"": last.proxy})


def test_local_or_global_probabilities_weight_the_candidates_from_the_second_step_on() -> None:
    def after(steps: int, whose: Any) -> Params:
        train = replace(TRAIN, epochs=1, steps=steps)
        given = job(ProxyFl(threshold=1.0, positive=whose), data(), net(), train=train)
        down = given.method.send(given.server(0, {}), started(given))[1][0]
        return visit(given, 0, down).up.w  # type: ignore[no-any-return]

    assert apart(after(1, "local"), after(1, "global")) < 1e-6  # the local model is the received one
    assert apart(after(4, "local"), after(4, "global")) > 1e-5


def test_the_server_tunes_only_the_weight_of_the_last_layer() -> None:
    given = job(ProxyFl(tune_head=2), data(), net(), train=TRAIN)
    server, state = given.server(0, {}), started(given)
    _, downs = given.method.send(server, state)
    ups = {k: visit(given, k, downs[k]).up for k in (0, 1)}
    tuned, plain = (ProxyFl(tune_head=q).merge(server, state, ups).common.w for q in (2, 0))
    assert given.net.head is not None
    assert {name for name in plain if not same({"": plain[name]}, {"": tuned[name]})} == {given.net.head.weight}


def test_a_client_without_labels_takes_part() -> None:
    played = play_all(job(ProxyFl(), federation([points(0, 9), hide(points(1, 9))]), net(), train=TRAIN))
    assert all(record.skipped == {} for record in played.records)


def test_the_release_differs_in_six_settings() -> None:
    released = registry.build_method("proxyfl", {"preset": "as-released"}, {})
    assert released == ProxyFl(
        confident="either",
        positive="global",
        prior="samples",
        prior_decay=0.99,
        tune_anchor="uploaded",
        tune_margin=100.0,
    )


def test_maps_and_counts_are_no_samples() -> None:
    square, vector = torch.zeros(4, 4), torch.zeros(4)
    assert Maps(square, vector, square).smallest_group is None
    assert LabelCounts(torch.zeros(4, dtype=torch.int64)).smallest_group is None


def test_counts_of_labels_keep_their_shares_within_the_samples_of_a_client() -> None:
    assert at_most(torch.tensor([6, 3, 0]), 20).tolist() == [6, 3, 0]
    assert at_most(torch.tensor([60, 30, 10]), 10).tolist() == [6, 3, 1]
