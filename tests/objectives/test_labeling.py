"""The options of every objective with pseudo-labels: each by hand, and without effect at its default."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tacit.learn import LocalState, fit, loss_of_batch
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.objectives import OBJECTIVES, FixMatch, FreeMatch, PseudoLabel
from tacit.objectives.labeling import AVERAGE, Labeling, Teacher, averaged, own_values, threshold_at
from tacit.params import Params, lerp
from tests.objectives.bench import EYE, FLIPPED, NOISY, Scaled, client, gradient, leaves, start, whole
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    apart,
    federation,
    hide,
    job,
    linear,
    play_all,
    points,
    resumed,
    rounds,
    same,
    samples,
)

WEAK_TO_STRONG = ["fixmatch", "uda", "flexmatch", "freematch", "softmatch"]
WITH_TEACHER = [*WEAK_TO_STRONG, "mixup"]
WITH_THRESHOLD = ["fixmatch", "uda", "flexmatch", "pseudo-label"]
EAGER: dict[str, Any] = {"fixmatch": {"threshold": 0.4}, "uda": {"threshold": 0.4}, "pseudo-label": {"threshold": 0.4}}

# Weak views double the logits: odds 9, 4 and 1.44. Strong ones halve them.
UNLABELED = samples([[log(3), 0.0], [0.0, log(2)], [log(1.2), 0.0]], [-1, -1, -1])


def make(name: str, **more: Any) -> Any:
    return OBJECTIVES[name](**EAGER.get(name, {}) | more)


def at(round: int, rounds: int = 5) -> Any:
    return client(UNLABELED, linear(2, 2), views=Scaled(), round=round, rounds=rounds)


def cost_of(objective: Any, holder: Any, received: Params = EYE, w: Params = EYE, carried: Any = None) -> Any:
    local = objective.local_loss(holder, received, carried or {})
    return loss_of_batch(local, holder.net, w, whole(holder))


def learnt(objective: Any, shown: int = 6, **more: Any) -> Params:
    holder = client(hide(points(0, 20), shown), linear(), TWO_EPOCHS, views=NOISY, **more)
    return fit(holder, start(linear()), objective).params


# No threshold.


@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_threshold_of_zero_takes_every_sample(name: str) -> None:
    found = cost_of(make(name, threshold=0.0), at(0))
    assert found.pseudo_labels.accepted.all()
    assert found.metrics["kept"].item() == 1


def test_without_a_threshold_all_samples_are_taught_by_hand() -> None:
    strong = [-log(odds**0.5 / (odds**0.5 + 1)) for odds in (3, 2, 1.2)]
    assert cost_of(FixMatch(threshold=0.0), at(0)).total.item() == pytest.approx(sum(strong) / 3, rel=1e-5)


# A threshold that rises.


def test_the_threshold_rises_from_the_first_round_to_the_last() -> None:
    # 0.9 - 0.2·(1 + cos(π·r/4)) for r = 0, 2, 4
    found = [threshold_at(at(round), 0.9, 0.5) for round in (0, 2, 4)]
    assert found == pytest.approx([0.5, 0.7, 0.9])
    assert threshold_at(at(2), 0.9, None) == 0.9


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_a_rising_threshold_takes_fewer_samples_in_later_rounds(name: str) -> None:
    """Confidences are 0.9, 0.8 and 0.59 on weak views: all in the first round, one in the last."""
    objective = make(name, threshold=0.85, threshold_from=0.5, teacher="weak")
    kept = [cost_of(objective, at(round)).pseudo_labels.accepted.tolist() for round in (0, 2, 4)]
    assert kept == [[True, True, True], [True, True, False], [True, False, False]]


@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_rising_threshold_ends_at_the_threshold(name: str) -> None:
    constant, rising = make(name), make(name, threshold_from=0.1)
    last = {"round": 4, "rounds": 5}
    assert same(learnt(rising, **last), learnt(constant, **last))
    assert rising.needs.planned_rounds
    if name != "uda":  # which is annealed over the rounds
        assert not constant.needs.planned_rounds


def test_flexmatch_and_self_training_heed_a_rising_threshold() -> None:
    for name in ("flexmatch", "pseudo-label"):
        early, late = (learnt(make(name, threshold=0.95, threshold_from=0.2), round=r, rounds=9) for r in (0, 8))
        fixed = [learnt(make(name, threshold=tau), round=r, rounds=9) for tau, r in ((0.2, 0), (0.95, 8))]
        assert same(early, fixed[0])
        assert same(late, fixed[1])


# A labeler that switches.


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_the_labeler_switches_to_the_model_in_training(name: str) -> None:
    switching = make(name, labeler="global", switch_round=2)
    for round, labeler in ((0, "global"), (1, "global"), (2, "local"), (4, "local")):
        expected = learnt(make(name, labeler=labeler), round=round, rounds=5)
        assert same(learnt(switching, round=round, rounds=5), expected)


def test_the_labeler_of_each_round() -> None:
    confident = Labeling(labeler="confident", switch_round=1)
    assert [confident.labeler_at(round) for round in (0, 1, 2)] == ["confident", "local", "local"]
    assert Labeling(labeler="global").labeler_at(99) == "global"
    assert Labeling(labeler="global", switch_round=0).labeler_at(0) == "local"


def test_a_switching_labeler_in_a_federation() -> None:
    data = federation([hide(points(k, 20), 6) for k in range(3)], test=points(8, 9), views=NOISY)
    unchanged, switched, local = (
        [moment.state.w for moment in rounds(job(FedAvg(objective), data, linear(), train=TWO_EPOCHS))]
        for objective in (
            FixMatch(0.4, labeler="global"),
            FixMatch(0.4, labeler="global", switch_round=2),
            FixMatch(0.4, labeler="local"),
        )
    )
    assert [same(a, b) for a, b in zip(unchanged, switched, strict=True)] == [True, True, False]
    assert not same(local[0], switched[0])


# An average of received models.


def test_the_average_by_hand() -> None:
    received, carried = {"a": torch.tensor([2.0])}, {f"{AVERAGE}a": torch.tensor([10.0])}
    assert averaged(received, carried, 0.75)["a"].item() == 8.0  # ¾·10 + ¼·2
    assert averaged(received, {}, 0.75) is received
    assert own_values({"mine": torch.ones(1), **carried}).keys() == {"mine"}


def average_in(carried: LocalState) -> Params:
    """The averaged model among what a client carries."""
    return {name.removeprefix(AVERAGE): v for name, v in carried.objective.items() if name.startswith(AVERAGE)}


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_the_average_of_received_models_labels(name: str) -> None:
    holder = client(hide(points(0, 20), 6), linear(), TWO_EPOCHS, views=NOISY)
    first, second = start(linear()), {key: value.roll(1, 0) for key, value in start(linear()).items()}
    objective = make(name, labeler="global", labeler_beta=0.6)
    carried = fit(holder, first, objective).carried
    assert carried is not None
    assert same(average_in(carried), first)
    trained = fit(replace(holder, round=1), second, objective, carried=carried)
    assert trained.carried is not None
    assert same(average_in(trained.carried), lerp(second, first, 0.6))
    forgetful = LocalState(objective=own_values(carried.objective))
    alone = fit(replace(holder, round=1), second, objective, carried=forgetful)
    assert apart(trained.params, alone.params) > 1e-5


def test_the_averaged_model_predicts() -> None:
    """EYE was received before and FLIPPED now: with β = 0.9 the average still answers as EYE."""
    holder = at(1)
    carried = {f"{AVERAGE}{name}": value for name, value in EYE.items()}
    teacher = Teacher(holder, FLIPPED, Labeling(labeler="global", labeler_beta=0.9), carried)
    q, logits = teacher(FLIPPED, whole(holder), None)
    assert logits is None
    assert q.argmax(dim=1).tolist() == [0, 1, 0]
    # 0.9·EYE + 0.1·FLIPPED = 0.8·EYE, on plain views
    assert torch.allclose(q, (0.8 * UNLABELED.x).softmax(dim=1), atol=1e-6)
    without = Teacher(holder, FLIPPED, Labeling(labeler="global"), carried)
    assert without(FLIPPED, whole(holder), None)[0].argmax(dim=1).tolist() == [1, 0, 1]


def test_only_a_labeler_that_needs_the_average_carries_it() -> None:
    holder = client(hide(points(0, 20), 6), linear(), TWO_EPOCHS)
    for options in ({"labeler": "local"}, {"labeler": "global", "switch_round": 0}):
        assert fit(holder, start(linear()), make("fixmatch", labeler_beta=0.5, **options)).carried is None
    labeled = client(points(0, 20), linear(), TWO_EPOCHS)
    assert fit(labeled, start(linear()), FixMatch(labeler="global", labeler_beta=0.5)).carried is None


def test_the_average_does_not_disturb_what_an_objective_carries() -> None:
    holder = client(hide(points(0, 20), 6), linear(), TWO_EPOCHS)
    trained = fit(holder, start(linear()), FreeMatch(labeler="global", labeler_beta=0.5))
    assert trained.carried is not None
    assert own_values(trained.carried.objective).keys() == {"confidence", "probability", "histogram"}
    again = fit(holder, start(linear()), FreeMatch(labeler="local"), carried=trained.carried)
    assert again.carried is not None
    assert again.carried.objective.keys() == {"confidence", "probability", "histogram"}  # no stale model


def test_the_average_costs_no_bytes_and_survives_a_resume(tmp_path: Any) -> None:
    data = federation([hide(points(k, 20), 6) for k in range(3)], test=points(8, 9), views=NOISY)
    tasks = [
        job(FedAvg(FixMatch(0.4, labeler="global", labeler_beta=beta)), data, linear(), train=TWO_EPOCHS, cohort=2)
        for beta in (0.0, 0.5)
    ]
    plain, average = (play_all(task) for task in tasks)
    assert [r.bytes_up + r.bytes_down for r in average.records] == [r.bytes_up + r.bytes_down for r in plain.records]
    assert not same(plain.state.w, average.state.w)
    assert tasks[1].codec.encode(resumed(tasks[1], tmp_path, stop=2)) == tasks[1].codec.encode(
        (average.state, dict(average.memories))
    )


# Debiasing.


def test_debiased_predictions_by_hand() -> None:
    holder = at(0)
    plain = UNLABELED.x.softmax(dim=1)  # what the received model says of plain views
    mean = plain.mean(dim=0)
    teacher = Teacher(holder, EYE, Labeling(labeler="global", debias=True), {})
    q, _ = teacher(EYE, whole(holder), None)
    scaled = plain / mean
    assert torch.allclose(q, scaled / scaled.sum(dim=1, keepdim=True), atol=1e-6)
    assert q.sum(dim=1).tolist() == pytest.approx([1.0] * 3)


def test_the_local_labeler_is_debiased_by_the_received_models_mean() -> None:
    holder = at(0)
    mean = (-UNLABELED.x).softmax(dim=1).mean(dim=0)  # FLIPPED on plain views
    teacher = Teacher(holder, FLIPPED, Labeling(debias=True), {})
    q, _ = teacher(EYE, whole(holder), 2 * UNLABELED.x)
    scaled = (2 * UNLABELED.x).softmax(dim=1) / mean
    assert torch.allclose(q, scaled / scaled.sum(dim=1, keepdim=True), atol=1e-6)


def test_debiasing_changes_which_samples_are_sure() -> None:
    """Most predictions name class 0, so class 1 gains and class 0 loses."""
    data = samples([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [-1] * 4)
    holder = client(data, linear(2, 2), views=Identity())
    both = [cost_of(FixMatch(0.85, labeler="global", debias=debias), holder) for debias in (False, True)]
    assert both[0].pseudo_labels.accepted.tolist() == [True, True, True, False]  # 0.88, and 0.73
    assert both[1].pseudo_labels.accepted.tolist() == [False, False, False, True]


def test_debiasing_a_client_of_one_class_forgets_what_it_holds() -> None:
    """Why uniform alignment is wrong for such a client: a sure and right model is told that it knows nothing."""
    data = samples([[4.0, 0.0]] * 5, [-1] * 5)
    holder = client(data, linear(2, 2), views=Identity())
    q, _ = Teacher(holder, EYE, Labeling(labeler="global", debias=True), {})(EYE, whole(holder), None)
    assert torch.allclose(q, torch.full((5, 2), 0.5), atol=1e-5)


def test_self_training_is_debiased_too() -> None:
    data = samples([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [-1] * 4)
    holder = client(data, linear(2, 2), views=Identity())
    found = cost_of(PseudoLabel(0.85, debias=True), holder)
    assert found.pseudo_labels.accepted.tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", [*WITH_TEACHER, "pseudo-label"])
def test_every_objective_learns_debiased(name: str) -> None:
    assert apart(learnt(make(name, debias=True)), learnt(make(name))) > 1e-6
    assert learnt(make(name, debias=True), shown=20).keys() == start(linear()).keys()  # also without unlabeled samples


# Consistency of logits.


def test_consistency_by_hand() -> None:
    """Weak views have logits 2x, strong ones x/2: a mean of (1.5·x)² over samples and classes."""
    plain = cost_of(FixMatch(0.85), at(0))
    found = cost_of(FixMatch(0.85, consistency=0.3), at(0))
    apart_by_hand = float((1.5 * UNLABELED.x).square().mean())
    assert found.metrics["loss_consistency"].item() == pytest.approx(apart_by_hand, rel=1e-5)
    assert found.total.item() == pytest.approx(plain.total.item() + 0.3 * apart_by_hand, rel=1e-5)
    assert "loss_consistency" not in plain.metrics


def test_the_weak_logits_are_targets_without_gradient() -> None:
    w = leaves(EYE)
    found = gradient(cost_of(FixMatch(1.0, consistency=1.0), at(0), w=w).total, w)
    strong, weak = 0.5 * UNLABELED.x, 2 * UNLABELED.x
    at_logits = 2 * (strong - weak) / strong.numel()  # of the mean of squares
    assert torch.allclose(found["fc.weight"], at_logits.T @ strong, atol=1e-6)
    assert torch.allclose(found["fc.bias"], at_logits.sum(dim=0), atol=1e-6)


def test_consistency_counts_all_samples_with_the_weight_of_the_unlabeled_term() -> None:
    nobody_is_sure = cost_of(FixMatch(1.0, consistency=0.3, weight=2.0), at(0))
    assert nobody_is_sure.total.item() == pytest.approx(2 * 0.3 * float((1.5 * UNLABELED.x).square().mean()), rel=1e-5)


@pytest.mark.parametrize("labeler", ["local", "global", "confident"])
def test_consistency_asks_the_model_in_training_whoever_labels(labeler: Any) -> None:
    seen: list[Tensor] = []
    holder = at(0)
    real: Callable[..., Tensor] = holder.net.apply

    def watched(params: Any, x: Tensor, train: bool = False) -> Tensor:
        if train and not torch.is_grad_enabled():
            seen.append(x)
        return real(params, x, train)

    holder.net.apply = watched
    found = cost_of(FixMatch(0.7, labeler=labeler, consistency=0.3), holder, received=FLIPPED)
    assert len(seen) == 1  # one pass for labels and for targets
    assert torch.allclose(seen[0], 2 * UNLABELED.x)
    expected = functional.mse_loss(0.5 * UNLABELED.x, 2 * UNLABELED.x)
    assert found.metrics["loss_consistency"].item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", WEAK_TO_STRONG)
def test_every_objective_has_consistency(name: str) -> None:
    assert apart(learnt(make(name, consistency=0.5)), learnt(make(name))) > 1e-4


# Defaults.


@pytest.mark.parametrize("name", [*WITH_TEACHER, "pseudo-label"])
def test_options_at_their_defaults_change_nothing(name: str) -> None:
    defaults = {"switch_round": None, "labeler_beta": 0.0, "debias": False, "consistency": 0.0, "threshold_from": None}
    own = {key: value for key, value in defaults.items() if hasattr(make(name), key)}
    assert make(name, **own) == make(name)
    assert {key: getattr(make(name), key) for key in own} == own


def test_options_can_be_combined() -> None:
    data = federation([hide(points(k, 20)) for k in range(3)], points(9, 12), points(8, 9), views=NOISY)
    options = FixMatch(
        0.6,
        threshold_from=0.3,
        labeler="confident",
        labeler_beta=0.5,
        switch_round=2,
        debias=True,
        consistency=0.2,
    )
    played = play_all(job(FedAvg(options), data, linear(), train=Training(epochs=2, batch=6, lr=0.05)))
    assert {"kept", "loss_consistency"} <= played.records[-1].metrics.keys()
    assert all(record.skipped == {} for record in played.records)
