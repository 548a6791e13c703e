"""FedMatch: Eq. 1 to 5 by hand, σ and ψ apart, helpers, sparse messages that both sides agree on, slower learning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist, log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit import params
from tacit.data.inputs import CharacterInputs, ImageInputs
from tacit.data.views.augment import TextViews
from tacit.engines.faults import Faults
from tacit.engines.job import Job
from tacit.engines.wire import finite
from tacit.federation import Samples
from tacit.learn import Plateau, loss_on
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmatch import (
    SERVER,
    Decomposed,
    FedMatch,
    FedMatchDown,
    FedMatchMemory,
    FedMatchState,
    FedMatchUp,
    theta,
)
from tacit.methods.server_only import ServerOnly
from tacit.nets import Net, build
from tacit.objectives import Supervised
from tacit.objectives.inter_client import Neighbours
from tacit.params import Params, patch, sparsify, zeros_like
from tacit.per_client import PerClient
from tacit.runs import registry
from tests.methods import by_hand
from tests.objectives.bench import EYE, FLIPPED, ONE_STEP, TILTED, Scaled
from tests.toys import (
    Moment,
    alone,
    apart,
    federation,
    hide,
    images,
    job,
    linear,
    normed,
    play_all,
    points,
    rounds,
    same,
    samples,
    started,
    visit,
)

NOTHING: Params = zeros_like(EYE)
UNLABELED = samples([[2.0, 0.0], [0.0, 1.0], [-1.0, 3.0]], [-1, -1, -1])
LABELED = samples([[2.0, 0.0], [0.0, 1.0], [-1.0, 3.0]], [1, 1, 0])
BARE = FedMatch(lambda_iccs=1.0, lambda_l1=0.0, lambda_l2=0.0, lambda_s=1.0, delta_up=0.0, delta_down=0.0)


def first_message(pair: Decomposed, helpers: Sequence[Params] = (), rate: float = 1.0) -> FedMatchDown:
    """What a client that has nothing yet gets."""
    sigma, psi = (sparsify(part, zeros_like(part)) for part in (pair.sigma, pair.psi))
    return FedMatchDown(sigma, psi, tuple(sparsify(helper, pair.psi) for helper in helpers), rate)


def learn(
    method: FedMatch,
    data: Samples,
    pair: Decomposed,
    helpers: Sequence[Params] = (),
    train: Training = ONE_STEP,
    net: Net | None = None,
    rate: float = 1.0,
) -> Any:
    """The reply of one client with views that differ: the strong one is half the plain one."""
    task = alone(method, data, net or linear(2, 2), Scaled(), train=train)
    return visit(task, 0, first_message(pair, helpers, rate))


def minus(after: Params, before: Params) -> Params:
    return params.sub(before, after)


# Eq. 1.


@pytest.mark.parametrize("helpers", [(TILTED,), (TILTED, FLIPPED), (FLIPPED, TILTED, NOTHING)])
def test_helpers_pull_by_the_mean_of_their_divergences(helpers: tuple[Params, ...]) -> None:
    pair = Decomposed(EYE, params.scale(TILTED, 0.5))
    reply = learn(replace(BARE, threshold=1.0), UNLABELED, pair, helpers)
    mine = by_hand.answers(theta(pair), UNLABELED.x)
    theirs = [by_hand.answers(params.add(EYE, helper), UNLABELED.x) for helper in helpers]  # θ_h = σ + ψ_h
    expected = by_hand.slope(theta(pair), UNLABELED.x, torch.stack(theirs).mean(dim=0))
    assert apart(minus(reply.memory.held.psi, pair.psi), expected) < 1e-6
    far = sum(by_hand.kl(q, mine) for q in theirs) / len(helpers)
    assert reply.metrics["loss_helpers"] == pytest.approx(far, rel=1e-5)
    assert reply.metrics["loss_unlabeled"] == reply.metrics["loss_helpers"]  # nothing is confident
    assert reply.metrics["kept"] == 0
    assert reply.metrics["helpers"] == len(helpers)


def test_helpers_are_not_trained_and_neither_is_sigma() -> None:
    pair = Decomposed(EYE, NOTHING)
    reply = learn(replace(BARE, threshold=0.0), UNLABELED, pair, (TILTED, FLIPPED))
    assert same(reply.memory.held.sigma, EYE)
    assert all(map(same, reply.memory.helpers, (TILTED, FLIPPED)))
    assert not same(reply.memory.held.psi, NOTHING)


def test_a_helper_that_answers_alike_does_not_pull() -> None:
    reply = learn(replace(BARE, threshold=1.0), UNLABELED, Decomposed(EYE, TILTED), (TILTED,))
    assert reply.metrics["loss_helpers"] == pytest.approx(0, abs=1e-6)
    assert apart(reply.memory.held.psi, TILTED) < 1e-6


# Eq. 2 and 3. Plain views (2, 0), (0, 1), (-1, 3): with θ = 1 the classes are 0, 1, 1 and the confidences
# σ(2) = 0.88, σ(1) = 0.73, σ(4) = 0.98.


def test_both_terms_together() -> None:
    pair = Decomposed(EYE, NOTHING)
    reply = learn(replace(BARE, threshold=0.0), UNLABELED, pair, (params.scale(TILTED, 0.1),))
    p_h = by_hand.answers(params.add(EYE, params.scale(TILTED, 0.1)), UNLABELED.x)
    pseudo = by_hand.slope(EYE, UNLABELED.x * 0.5, by_hand.one_hot([0, 1, 1]))  # on the strong view
    both = params.add(pseudo, by_hand.slope(EYE, UNLABELED.x, p_h))
    assert apart(minus(reply.memory.held.psi, NOTHING), both) < 1e-6
    strong = -(by_hand.answers(EYE, UNLABELED.x * 0.5) * by_hand.one_hot([0, 1, 1])).sum(dim=1).log().mean()
    expected = float(strong) + by_hand.kl(p_h, by_hand.answers(EYE, UNLABELED.x))
    assert reply.metrics["loss_unlabeled"] == pytest.approx(expected, rel=1e-5)


def test_labels_are_those_most_models_agree_on() -> None:
    flip = params.scale(EYE, -2.0)  # θ_h = σ + ψ_h answers the other class throughout
    outvoted = learn(replace(BARE, threshold=0.0, lambda_iccs=1.0), UNLABELED, Decomposed(EYE, NOTHING), (flip, flip))
    order = outvoted.pseudo_labels.index
    assert outvoted.pseudo_labels.label.tolist() == torch.tensor([1, 0, 0])[order].tolist()
    undecided = learn(replace(BARE, threshold=0.0), UNLABELED, Decomposed(EYE, NOTHING), (flip,))
    assert undecided.pseudo_labels.label.tolist() == torch.tensor([0, 1, 1])[order].tolist()
    lowest = learn(replace(BARE, threshold=0.0, ties="lowest"), UNLABELED, Decomposed(EYE, NOTHING), (flip,))
    assert lowest.pseudo_labels.label.tolist() == [0, 0, 0]


@pytest.mark.parametrize("threshold, accepted", [(0.85, [0, 2]), (0.95, [2]), (0.7, [0, 1, 2])])
def test_only_confident_samples_get_a_pseudo_label(threshold: float, accepted: list[int]) -> None:
    reply = learn(replace(BARE, threshold=threshold), UNLABELED, Decomposed(EYE, NOTHING))
    rows = torch.tensor(accepted)
    expected = by_hand.slope(EYE, UNLABELED.x[rows] * 0.5, by_hand.one_hot([[0, 1, 1][row] for row in accepted]))
    assert apart(minus(reply.memory.held.psi, NOTHING), expected) < 1e-6  # the mean over the accepted samples
    assert sorted(reply.pseudo_labels.index[reply.pseudo_labels.accepted].tolist()) == accepted
    assert reply.metrics["kept"] == pytest.approx(len(accepted) / 3)


def test_confidence_is_the_clients_own() -> None:
    certain = learn(replace(BARE, threshold=0.99), UNLABELED, Decomposed(EYE, NOTHING), (params.scale(EYE, 50.0),))
    assert certain.metrics["kept"] == 0


@pytest.mark.parametrize("among, rows", [("all", [0, 1, 2]), ("kept", [0, 2])])
def test_helpers_are_asked_about_all_samples_or_the_confident_ones(among: Any, rows: list[int]) -> None:
    reply = learn(replace(BARE, consistency_on=among), UNLABELED, Decomposed(EYE, NOTHING), (TILTED,))
    x = UNLABELED.x[torch.tensor(rows)]
    p_h = by_hand.answers(params.add(EYE, TILTED), x)
    assert reply.metrics["loss_helpers"] == pytest.approx(by_hand.kl(p_h, by_hand.answers(EYE, x)), rel=1e-5)


def test_helpers_answer_at_the_right_samples() -> None:
    """With labeled samples in between and batches of one in random order."""
    data = samples([[9.0, 9.0], [2.0, 0.0], [9.0, 0.0], [0.0, 1.0]], [0, -1, 1, -1])
    train = Training(epochs=1, batch=1, lr=1e-30, momentum=0.0)
    reply = learn(replace(BARE, threshold=1.0), data, Decomposed(EYE, NOTHING), (TILTED,), train)
    x = data.x[[1, 3]]
    expected = by_hand.kl(by_hand.answers(params.add(EYE, TILTED), x), by_hand.answers(EYE, x))
    assert reply.metrics["loss_helpers"] == pytest.approx(expected, rel=1e-5)


# Eq. 4 and 5.


@pytest.mark.parametrize("lambda_s", [1.0, 10.0, 0.0])
def test_sigma_learns_from_labels_with_its_weight(lambda_s: float) -> None:
    pair = Decomposed(EYE, TILTED)
    reply = learn(replace(BARE, lambda_s=lambda_s), LABELED, pair)
    expected = params.scale(by_hand.slope(theta(pair), LABELED.x, by_hand.one_hot([1, 1, 0])), lambda_s)
    assert apart(minus(reply.memory.held.sigma, EYE), expected) < 1e-5
    assert same(reply.memory.held.psi, TILTED)
    own = -(by_hand.answers(theta(pair), LABELED.x) * by_hand.one_hot([1, 1, 0])).sum(dim=1).log().mean()
    assert reply.metrics["loss_supervised"] == pytest.approx(float(own), rel=1e-5)


@pytest.mark.parametrize("norms, count", [("sum", 1), ("mean", 6)])
@pytest.mark.parametrize("l1, l2", [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25)])
def test_psi_is_pulled_to_sigma_and_to_zero(norms: Any, count: int, l1: float, l2: float) -> None:
    method = replace(BARE, lambda_iccs=0.0, lambda_l1=l1, lambda_l2=l2, norms=norms)
    reply = learn(method, UNLABELED, Decomposed(EYE, TILTED))
    expected = {name: (2 * l2 * (TILTED[name] - EYE[name]) + l1 * TILTED[name].sign()) / count for name in EYE}
    assert apart(minus(reply.memory.held.psi, TILTED), expected) < 1e-6
    assert same(reply.memory.held.sigma, EYE)


@pytest.mark.parametrize("data, weight", [(UNLABELED, 1e-5), (hide(LABELED, 1), 1e-4)])
def test_sparsity_weighs_less_at_clients_without_labels(data: Samples, weight: float) -> None:
    train = replace(ONE_STEP, lr=1e3)
    method = replace(BARE, lambda_iccs=0.0, lambda_s=0.0, lambda_l1=None)
    reply = learn(method, data, Decomposed(EYE, TILTED), train=train)
    expected = {name: 1e3 * weight * value.sign() for name, value in TILTED.items()}
    assert apart(minus(reply.memory.held.psi, TILTED), expected) < 1e-6


def test_lambda_iccs_weighs_both_terms() -> None:
    whole = learn(replace(BARE, threshold=0.0), UNLABELED, Decomposed(EYE, NOTHING), (TILTED,))
    tenth = learn(replace(BARE, threshold=0.0, lambda_iccs=0.1), UNLABELED, Decomposed(EYE, NOTHING), (TILTED,))
    assert apart(tenth.memory.held.psi, params.scale(whole.memory.held.psi, 0.1)) < 1e-6


def test_psi_learns_with_the_sigma_that_was_just_learned() -> None:
    """Lines 17 and 18, in this order: σ's step at ψ as it came, then ψ's at the new σ."""
    data = Samples(torch.cat([LABELED.x, UNLABELED.x]), torch.cat([LABELED.y, UNLABELED.y]))
    reply = learn(replace(BARE, threshold=0.0), data, Decomposed(EYE, TILTED))
    sigma = params.sub(EYE, by_hand.slope(params.add(EYE, TILTED), LABELED.x, by_hand.one_hot([1, 1, 0])))
    assert apart(reply.memory.held.sigma, sigma) < 1e-6
    now = params.add(sigma, TILTED)
    labels = by_hand.answers(now, UNLABELED.x).argmax(dim=1).tolist()
    psi = params.sub(TILTED, by_hand.slope(now, UNLABELED.x * 0.5, by_hand.one_hot(labels)))
    assert apart(reply.memory.held.psi, psi) < 1e-6


# Disjoint learning.

LIVELY = Training(epochs=3, batch=2, lr=0.1, momentum=0.9, weight_decay=0.01)
MIXED = Samples(torch.cat([LABELED.x, UNLABELED.x]), torch.cat([LABELED.y, UNLABELED.y]))


@pytest.mark.parametrize(
    "data, learns, moved",
    [
        (LABELED, "both", {"sigma"}),
        (UNLABELED, "both", {"psi"}),
        (MIXED, "both", {"sigma", "psi"}),
        (MIXED, "sigma", {"sigma"}),
        (MIXED, "psi", {"psi"}),
        (MIXED, "one", {"sigma"}),
        (UNLABELED, "one", {"sigma"}),
    ],
)
def test_what_learns_moves_and_what_does_not_keeps_its_bits(data: Samples, learns: Any, moved: set[str]) -> None:
    pair = Decomposed(EYE, TILTED)
    reply = learn(replace(BARE, threshold=0.0, learns=learns, lambda_l2=1.0), data, pair, (FLIPPED,), LIVELY)
    for name in ("sigma", "psi"):
        assert same(getattr(reply.memory.held, name), getattr(pair, name)) == (name not in moved)
    assert reply.metrics["steps"] == {3: 6, 6: 6}[len(data)]  # one per batch, though both learn


def test_undivided_one_set_learns_from_both_terms_at_once() -> None:
    method = replace(BARE, threshold=0.0, learns="one", lambda_l2=5.0, lambda_l1=5.0)
    reply = learn(method, MIXED, Decomposed(EYE, NOTHING))
    both = params.add(
        by_hand.slope(EYE, LABELED.x, by_hand.one_hot([1, 1, 0])),
        by_hand.slope(EYE, UNLABELED.x * 0.5, by_hand.one_hot([0, 1, 1])),
    )
    assert apart(minus(reply.memory.held.sigma, EYE), both) < 1e-5  # and no norms


def test_undivided_nothing_confident_is_no_step_and_no_error() -> None:
    reply = learn(replace(BARE, threshold=1.0, learns="one"), UNLABELED, Decomposed(EYE, NOTHING))
    assert same(reply.memory.held.sigma, EYE)
    assert reply.metrics["loss_unlabeled"] == 0


def test_undivided_helpers_answer_as_they_are() -> None:
    """θ_h is the helper's own model, with nothing of the client's added to it."""
    method = replace(BARE, threshold=1.0, learns="one")
    task = alone(method, UNLABELED, linear(2, 2), Scaled(), train=ONE_STEP)
    down = replace(first_message(Decomposed(EYE, NOTHING)), helpers=(sparsify(TILTED, EYE),))
    reply = visit(task, 0, down)
    p_h, mine = (by_hand.answers(model, UNLABELED.x) for model in (TILTED, EYE))
    assert reply.metrics["loss_helpers"] == pytest.approx(by_hand.kl(p_h, mine), rel=1e-5)


def test_undivided_a_helper_is_a_whole_model() -> None:
    data = [hide(points(k, 12), 4) for k in range(3)]
    task = job(replace(BARE, learns="one", helpers=2), federation(data), linear(), rounds=2)
    before, last = rounds(task)
    for k, memory in last.memories.items():
        others = [before.state.held[j].sigma for j in range(3) if j != k]
        assert len(memory.helpers) == 2
        assert all(any(same(helper, other) for other in others) for helper in memory.helpers)


@pytest.mark.parametrize("method", [FedMatch(), replace(BARE, learns="psi"), replace(BARE, learns="one")])
def test_batch_statistics_are_sigmas_and_are_not_doubled(method: FedMatch) -> None:
    net = normed()
    data = federation([hide(images(k, 9), 3) for k in range(2)], test=images(9, 9))
    last = list(rounds(job(method, data, net, train=Training(batch=4, lr=0.01))))[-1]
    begin = net.init(torch.Generator())
    assert net.buffers
    assert last.state.common.psi.keys() == set(net.trainable)
    model = method.model(last.state)
    assert model.keys() == set(net.names)
    for name in net.buffers:
        assert torch.equal(model[name], last.state.common.sigma[name])
        assert not torch.equal(model[name], begin[name])
    for k, memory in last.memories.items():
        assert same(memory.held.sigma, last.state.held[k].sigma)


# Helpers.


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=12),
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=80, deadline=None)
def test_neighbours_are_those_of_brute_force(found: list[tuple[int, ...]], count: int, order: Any) -> None:
    """Whole coordinates, so that distances are exact; equal ones may come in any order."""
    clients = order.sample(range(100), len(found))
    points_of = dict(zip(clients, found, strict=True))
    nearest = Neighbours({k: torch.tensor(point, dtype=torch.float32) for k, point in points_of.items()})
    for k in clients:
        others = nearest(k, count)
        far = sorted(dist(points_of[k], points_of[other]) for other in clients if other != k)
        assert k not in others
        assert len(set(others)) == len(others)
        assert [dist(points_of[k], points_of[other]) for other in others] == far[:count]


def test_without_clients_there_are_no_neighbours() -> None:
    assert Neighbours({})(3, 2) == []


def turns(
    task: Job, cohorts: Sequence[Sequence[int]], lost: Mapping[int, set[int]] | None = None
) -> Iterator[by_hand.Turn]:
    """Rounds with these clients; what they send in some rounds is lost."""
    state, memories = started(task), dict[int, Any]()
    for round, cohort in enumerate(cohorts):
        played = by_hand.turn(task, round, state, memories, cohort, (lost or {}).get(round, ()))
        state, memories = played.state, dict(played.memories)
        yield played


def lenders(turn: by_hand.Turn, k: int) -> list[int]:
    """Whose ψ the client learned with, by bits."""
    helpers = turn.replies[k].metrics["helpers"]
    held = turn.replies[k].memory.helpers
    assert helpers == len(held)
    return [next(j for j, pair in turn.sent.held.items() if same(pair.psi, helper)) for helper in held]


def crowd(method: FedMatch, clients: int = 5, shown: int = 4, **options: Any) -> Job:
    data = federation([hide(points(k, 12), shown) for k in range(clients)], test=points(99, 9))
    return job(method, data, linear(), train=Training(batch=4, lr=0.05), rounds=12, **options)


EVERYBODY = tuple(range(5))


def test_a_client_gets_the_last_psi_of_those_most_like_it() -> None:
    task = crowd(replace(BARE, helpers=2, threshold=0.4))
    first, second = turns(task, [EVERYBODY] * 2)
    noise = torch.randn(1, 4, generator=task.streams.at("noise"))
    seen = {k: task.net.apply(theta(pair), noise).softmax(dim=1)[0] for k, pair in first.state.held.items()}
    for k in EVERYBODY:
        assert torch.equal(first.state.embeddings[k], seen[k])
        assert first.downs[k].helpers == ()  # not seen before
        far = sorted((float((seen[k] - seen[j]).norm()), j) for j in EVERYBODY if j != k)
        assert lenders(second, k) == [j for _, j in far[:2]]


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_a_helper_like_the_client_before_the_round_arrives_whole(delta: float) -> None:
    """Its ψ is that of the client's last visit, and the common one is another by now: all of it must travel."""
    method = replace(BARE, helpers=1, delta_down=delta)
    task = job(method, federation([LABELED] * 2), linear(2, 2))
    held = dict.fromkeys((0, 1), Decomposed(EYE, TILTED))
    state = FedMatchState(Decomposed(EYE, FLIPPED), PerClient(held), dict.fromkeys((0, 1), torch.ones(2)))
    down = method.send(task.server(0, {}), state)[1][0]
    assert same(visit(task, 0, down, FedMatchMemory(held[0], ())).memory.helpers[0], TILTED)


def test_a_client_not_seen_before_has_no_helpers_and_fewer_than_asked_for_are_taken() -> None:
    task = crowd(replace(BARE, helpers=4, threshold=0.4))
    _, second, third = turns(task, [(0, 1), (0, 2), (0, 1, 2)])
    assert second.downs[2].helpers == ()
    assert lenders(second, 0) == [1]
    assert sorted(lenders(third, 1)) == [0, 2]
    assert third.downs[0].helpers is None  # it has them


def test_helpers_are_sent_once_and_used_until_the_next_choice() -> None:
    task = crowd(replace(BARE, helpers=2, refresh=3, threshold=0.4))
    played = list(turns(task, [EVERYBODY] * 8))
    for k in EVERYBODY:
        sent = [turn.downs[k].helpers for turn in played]
        assert [None if each is None else len(each) for each in sent] == [0, 2, None, 2, None, None, 2, None]
        held = [turn.replies[k].memory.helpers for turn in played]
        for earlier, later in [(1, 2), (3, 4), (4, 5), (6, 7)]:
            assert all(map(same, held[earlier], held[later]))
        assert not same(held[2][0], held[3][0])
        assert all(turn.replies[k].metrics["helpers"] == 2 for turn in played[1:])


def test_helpers_whose_receipt_is_not_known_are_sent_again() -> None:
    task = crowd(replace(BARE, helpers=2))
    played = list(turns(task, [EVERYBODY] * 4, lost={1: {0}}))
    assert [len(turn.downs[0].helpers or "?") for turn in played[1:3]] == [2, 2]
    assert played[3].downs[0].helpers is None
    assert played[2].downs[1].helpers is None


def test_as_released_helpers_are_there_in_every_tenth_round_only() -> None:
    task = crowd(replace(BARE, helpers=2, refresh=3, cached=False, threshold=0.4))
    played = list(turns(task, [EVERYBODY] * 7))
    for k in EVERYBODY:
        assert [len(turn.downs[k].helpers or ()) for turn in played] == [0, 0, 2, 0, 0, 2, 0]
        assert [turn.replies[k].metrics["helpers"] for turn in played] == [0, 0, 2, 0, 0, 2, 0]
        assert all(turn.replies[k].memory.helpers == () for turn in played)
    late = list(turns(crowd(replace(BARE, helpers=2, refresh=3, cached=False)), [(0,), (0,), (0, 1)]))
    assert late[2].downs[1].helpers == ()


def test_noise_may_be_pixels() -> None:
    asked: list[Tensor] = []

    @dataclass(frozen=True)
    class Noted(Scaled):
        def plain(self, x: Tensor) -> Tensor:
            asked.extend([x] if x.dtype == torch.uint8 else [])
            return x.float() / 255

    task = alone(replace(BARE, noise="pixels"), points(0, 8, features=4000), linear(4000), Noted())
    pixels = replace(task.federation, inputs=ImageInputs((1, 40, 100), (0.5,), (0.25,)))
    (turn,) = turns(replace(task, federation=pixels), [(0,)])
    (a,) = asked
    assert a.shape == (1, 1, 40, 100)
    # A normal distribution of mean and deviation 125, cut to what a pixel can be, has 56 % in this middle half.
    assert ((a >= 64) & (a < 191)).float().mean() == pytest.approx(0.56, abs=0.03)
    assert a.min() < 5
    assert a.max() > 250
    expected = task.net.apply(theta(turn.state.held[0]), a.float() / 255).softmax(dim=1)[0]
    assert torch.equal(turn.state.embeddings[0], expected)


@pytest.mark.parametrize("noise", ["gaussian", "pixels"])
def test_noise_for_text_is_its_strong_view(noise: Any) -> None:
    stream = torch.Generator().manual_seed(0)
    text = torch.randint(10, (16, 8), generator=stream).to(torch.uint8)
    texts = [hide(Samples(rows, rows[:, 0].long()), 4) for rows in text.split(8)]
    kind = CharacterInputs((8,), tuple("abcdefghij"))
    data = federation(texts, test=Samples(text, text[:, 0].long()), views=TextViews(10), inputs=kind)
    task = job(replace(BARE, noise=noise, threshold=0.0), data, build("lstm", (8,), 10, width=0.05))
    (turn,) = turns(task, [(0, 1)])
    a = TextViews(10).strong(torch.zeros(1, 8, dtype=torch.uint8), task.streams.at("noise"))
    for k, pair in turn.state.held.items():
        with torch.no_grad():
            assert torch.equal(turn.state.embeddings[k], task.net.apply(theta(pair), a).softmax(dim=1)[0])


def test_a_model_that_overflows_does_not_stop_the_search() -> None:
    task = crowd(BARE, clients=2)
    server = task.server(0, {})
    state, _ = task.method.send(server, task.method.start(server))
    huge = {name: torch.full_like(value, 3e38) for name, value in state.common.sigma.items()}
    up = FedMatchUp(sparsify(huge, zeros_like(huge)), sparsify(state.common.psi, state.common.psi))
    assert finite(up)
    _, downs = task.method.send(task.server(1, {}), task.method.merge(server, state, {0: up}))
    assert downs.keys() == {0, 1}


# Messages.


def agree(moment: Moment) -> bool:
    """Every client's committed memory is what the server knows it to hold, to the last bit."""
    held, memories = moment.state.held, {k: memory for k, memory in moment.memories.items() if memory is not None}
    return held.keys() == memories.keys() and all(
        same(memories[k].held.sigma, pair.sigma) and same(memories[k].held.psi, pair.psi) for k, pair in held.items()
    )


@dataclass(frozen=True)
class OddRounds:
    """Some clients' samples are there in odd rounds only."""

    comes_and_goes: int

    def present(self, samples: Tensor, round: int) -> Tensor:
        """All or none."""
        return samples[:0] if len(samples) and int(samples[0]) < self.comes_and_goes and not round % 2 else samples


SETTINGS: dict[str, dict[str, Any]] = {
    "as-written": {},
    "everything": {"delta_up": 0.0, "delta_down": 0.0},
    "coarse": {"delta_up": 0.02, "delta_down": 0.05},
    "coarse-down": {"delta_up": 0.0, "delta_down": 0.05, "refresh": 2},
    "cut": {"zero": 0.05, "delta_up": 0.01, "delta_down": 0.01, "psi_start": 0.2},
    "unmasked": {"zero": 0.02, "delta_up": 0.02, "delta_down": 0.02, "mask_down": False, "cached": False, "refresh": 3},
    "sigma": {"learns": "sigma"},
    "psi": {"learns": "psi"},
    "one": {"learns": "one", "delta_up": 0.01, "delta_down": 0.01},
}


@pytest.mark.parametrize("place", ["client", "server", "some"])
@pytest.mark.parametrize("name", SETTINGS)
def test_client_and_server_agree_on_what_is_held(name: str, place: str) -> None:
    """With a random cohort, lost uploads, a client without any sample, and two whose samples come and go."""
    shown = {"client": [3] * 5, "server": [0] * 5, "some": [9, 0, 9, 0, 9]}[place]
    clients = [hide(points(k, 9 if k != 2 else 0), count) for k, count in enumerate(shown)]
    server = points(50, 6) if place == "server" else None
    data = replace(federation(clients, server, points(60, 9), points(70, 9)), arrivals=OddRounds(18))
    method = FedMatch(**{"threshold": 0.4, "refresh": 4} | SETTINGS[name])
    train = Training(batch=4, lr=0.02)
    task = job(method, data, linear(), cohort=3, rounds=14, train=train, faults=Faults(lost=0.5), min_clients=0)
    moments = list(rounds(task))
    assert all(agree(moment) for moment in moments)
    assert any(moment.record.skipped for moment in moments)
    part = {"sigma": "labeled", "psi": "unlabeled"}.get(name)
    able = {k for k, each in enumerate(clients) if len(each if part is None else getattr(each, part))}
    assert moments[-1].state.held.keys() == able - {2}


def test_agree_notices_a_stale_state() -> None:
    task = crowd(FedMatch(threshold=0.4), faults=Faults(lost=0.5), min_clients=0)
    moments = list(rounds(task))
    stale = replace(moments[-1], state=moments[-4].state)
    assert not agree(stale)


def test_all_uploads_may_be_lost() -> None:
    last = list(rounds(crowd(FedMatch(), faults=Faults(lost=1.0), min_clients=0)))[-1]
    begin = started(crowd(FedMatch()))
    assert same(last.state.common.sigma, begin.common.sigma)
    assert (last.state.held, last.state.embeddings, last.state.rates, last.memories) == ({}, {}, {}, {})


@pytest.mark.parametrize("method, delta", [(BARE, 0.0), (replace(BARE, delta_down=0.01), 0.01)])
def test_a_client_has_what_the_server_means(method: FedMatch, delta: float) -> None:
    """Exactly, or up to the threshold; what differs by more is exact."""
    memories: dict[int, FedMatchMemory] = {}
    for turn in turns(crowd(replace(method, threshold=0.4)), [(0, 1, 2), (1, 3), (0, 1, 4), (2, 3), EVERYBODY]):
        for k, down in turn.downs.items():
            for part in ("sigma", "psi"):
                meant = getattr(turn.sent.common, part)
                held = getattr(memories[k].held, part) if k in memories else zeros_like(meant)
                got = patch(held, getattr(down, part))
                assert apart(got, meant) <= delta
                assert same(got, meant) or (delta and k in memories)
                for name in got:
                    exact = got[name] == meant[name]
                    assert (exact | (held[name] == got[name])).all()
        memories |= {k: reply.memory for k, reply in turn.replies.items()}


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=6, max_size=6),
    st.lists(st.floats(-1, 1, width=32), min_size=6, max_size=6),
    st.sampled_from([0.0, 1e-5, 0.25]),
    st.sampled_from([0.0, 1e-5, 0.25]),
    st.sampled_from([0.0, 0.25]),
)
@settings(max_examples=60, deadline=None)
def test_any_numbers_go_down_and_up_again(
    old: list[float], new: list[float], down: float, up: float, zero: float
) -> None:
    method = replace(BARE, delta_down=down, delta_up=up, zero=zero)
    task = job(method, federation([LABELED, UNLABELED]), linear(2, 2), train=replace(ONE_STEP, lr=0.1))
    held, common = (Decomposed(shaped(numbers), shaped(numbers[::-1])) for numbers in (old, new))
    both = PerClient(dict.fromkeys((0, 1), held))
    state = FedMatchState(common, both, dict.fromkeys((0, 1), torch.ones(2)), {0: 0, 1: 0})
    played = by_hand.turn(task, 0, state, dict.fromkeys((0, 1), FedMatchMemory(held, ())))
    assert played.replies.keys() == {0, 1}
    for k, reply in played.replies.items():
        assert same(reply.memory.held.sigma, played.state.held[k].sigma)
        assert same(reply.memory.held.psi, played.state.held[k].psi)


def shaped(numbers: list[float]) -> Params:
    return {"fc.weight": torch.tensor(numbers[:4]).reshape(2, 2), "fc.bias": torch.tensor(numbers[4:])}


@pytest.mark.parametrize("shown, at_server", [(4, False), (0, True)])
def test_sparse_messages_without_thresholds_are_a_dense_exchange(shown: int, at_server: bool) -> None:
    """Here every client gets whole models, forgets everything, and returns whole models."""
    method = replace(BARE, threshold=0.4, refresh=3, lambda_l1=0.01, lambda_l2=0.1, psi_start=0.1)
    data = [hide(points(k, 12), shown) for k in range(5)]
    labels = points(50, 8) if at_server else None
    task = job(method, federation(data, labels, points(9, 9)), linear(), rounds=8, cohort=3)
    noise = torch.randn(1, 4, generator=task.streams.at("noise"))
    common = started(task).common
    last: dict[int, Decomposed] = {}
    seen: dict[int, Tensor] = {}
    helpers: dict[int, tuple[int, list[Params]]] = {}
    for round, moment in enumerate(rounds(task)):
        if at_server:
            fresh = FedMatchState(common)
            common = method.send(task.server(round, {}), fresh)[0].common
        new: dict[int, Decomposed] = {}
        for k in task.sample(round):
            if k in last and helpers.get(k, (-1, []))[0] != round // 3:
                far = sorted((float((seen[k] - seen[j]).double().norm()), j) for j in seen if j != k)
                helpers[k] = round // 3, [last[j].psi for _, j in far[:2]]
            down = first_message(common, helpers.get(k, (-1, []))[1])
            new[k] = visit(task, k, down, round=round).memory.held
        last |= new
        seen |= {k: task.net.apply(theta(pair), noise).softmax(dim=1)[0] for k, pair in new.items()}
        sigma = common.sigma if at_server else params.mean([pair.sigma for pair in new.values()])
        common = Decomposed(sigma, params.mean([pair.psi for pair in new.values()]))
        assert same(moment.state.common.sigma, common.sigma)
        assert same(moment.state.common.psi, common.psi)
    assert any(len(chosen) == 2 for _, chosen in helpers.values())


def test_the_means_are_over_those_that_have_something_to_say() -> None:
    """σ over clients with labels, ψ over all, each counted once whatever it holds (lines 10 and 11)."""
    clients = [points(0, 30), hide(points(1, 6)), hide(points(2, 12), 6)]
    (turn,) = turns(job(replace(BARE, threshold=0.0), federation(clients), linear()), [(0, 1, 2)])
    new = {k: reply.memory.held for k, reply in turn.replies.items()}
    assert turn.replies[1].up.sigma is None
    assert same(turn.state.common.sigma, params.mean([new[0].sigma, new[2].sigma]))
    assert same(turn.state.common.psi, params.mean([new[k].psi for k in range(3)]))


def test_a_client_with_nothing_to_learn_from_does_not_change_the_state() -> None:
    data = federation([points(0, 6), hide(points(1, 0))])
    (first, second) = turns(job(BARE, data, linear()), [(0, 1), (0, 1)])
    for turn in (first, second):
        assert (turn.replies[1].up, turn.replies[1].memory) == (None, None)
        assert turn.replies[1].metrics["steps"] == 0
        assert turn.state.held.keys() == turn.state.embeddings.keys() == {0}


# Costs: the linear net on two features has six numbers. Inputs (1, 0) and (0, 1) have no gradient for the weights of
# the other feature, so a labeled client changes four numbers of σ.


def duo(method: FedMatch, labels: int = 1) -> Job:
    clients = [samples([[1.0, 0.0]], [labels - 1]), samples([[0.0, 1.0]], [labels - 1])]
    return job(method, federation(clients, test=LABELED), linear(2, 2), rounds=4, train=ONE_STEP, seed=4)


def test_costs_by_hand() -> None:
    first, second = turns(duo(BARE), [(0, 1)] * 2)
    assert first.log == {"s2c": 1.0, "c2s": 4 / 6}  # σ as it is; no ψ, since it is 0
    assert second.log == {"s2c": 1.0, "c2s": 4 / 6}  # the mean is unlike both; helpers have the same ψ
    alone, again = turns(duo(BARE), [(0,)] * 2)
    assert (alone.log["s2c"], again.log["s2c"]) == (1.0, 0.0)  # the mean of one is what it holds
    only_one = list(turns(duo(BARE), [(0, 1), (0, 1)], lost={0: {1}}))
    # client 0 has the common σ already, client 1 is still new: (0 + 6) / 2
    assert only_one[1].log["s2c"] == pytest.approx(0.5)
    assert only_one[0].log["c2s"] == 4 / 6


def test_a_start_of_psi_travels_once() -> None:
    first, second = turns(duo(replace(BARE, psi_start=0.2, lambda_s=0.0)), [(0, 1)] * 2)
    assert first.log == {"s2c": 2.0, "c2s": 0.0}
    assert second.log == {"s2c": 0.0, "c2s": 0.0}


def test_without_labels_only_psi_travels_up_and_helpers_count() -> None:
    method = replace(BARE, threshold=0.0)
    first, second = turns(duo(method, labels=0), [(0, 1)] * 2)
    assert first.log == {"s2c": 1.0, "c2s": 4 / 6}
    # ψ: the mean is unlike each client's own in all six; a helper's is unlike the mean in all six
    assert second.log["s2c"] == 2.0
    assert second.log["c2s"] == 4 / 6


@pytest.mark.parametrize("labels", [0, 1])
def test_changes_up_to_the_threshold_cost_nothing(labels: int) -> None:
    task = duo(replace(BARE, delta_up=1e6, delta_down=1e6, threshold=0.0), labels)
    first, second = turns(task, [(0, 1)] * 2)
    assert (first.log, second.log) == ({"s2c": 1.0, "c2s": 0.0}, {"s2c": 0.0, "c2s": 0.0})
    begin = started(task).common
    assert same(second.state.common.sigma, begin.sigma)
    assert same(second.state.common.psi, begin.psi)
    down_only = duo(replace(BARE, delta_down=1e6, threshold=0.0), labels)
    assert [turn.log["s2c"] for turn in turns(down_only, [(0, 1)] * 3)] == [1.0, 0.0, 0.0]


def test_without_a_mask_the_threshold_only_counts() -> None:
    first, second = turns(duo(replace(BARE, delta_down=1e6, mask_down=False)), [(0, 1)] * 2)
    assert second.log["s2c"] == 0.0
    assert sum(len(change.index) for change in second.downs[0].sigma.values()) == 6
    assert first.log["s2c"] == 1.0


def test_small_entries_of_psi_are_sent_as_zero() -> None:
    method = replace(BARE, zero=0.15, threshold=0.0)
    for turn in turns(duo(method, labels=0), [(0, 1)] * 3):
        for pair in turn.state.held.values():
            entries = torch.cat([value.reshape(-1) for value in pair.psi.values()])
            assert ((entries == 0) | (entries.abs() > 0.15)).all()
    assert any(value.abs().max() > 0 for value in turn.state.common.psi.values())


def test_a_nan_in_psi_is_not_sent_as_zero() -> None:
    wild = replace(BARE, lambda_l2=1e38, zero=1e-5)
    reply = learn(wild, UNLABELED, Decomposed(params.scale(EYE, 10.0), NOTHING), train=replace(ONE_STEP, steps=2))
    assert not finite(reply.up)


def test_fewer_bytes_travel_once_nothing_changes() -> None:
    still = FedMatch(lambda_s=0.0, lambda_iccs=0.0, lambda_l1=0.0, lambda_l2=0.0)
    net = build("lenet", (1, 16, 16), 3)
    data = federation([hide(images(k, 6), 3) for k in range(2)], test=images(9, 6))
    records = play_all(job(still, data, net)).records
    assert records[0].bytes_down > 2 * 4 * net.size()
    assert all(record.bytes_down < 0.05 * records[0].bytes_down for record in records[1:])
    assert all(record.bytes_up < 0.05 * records[0].bytes_down for record in records)
    assert [record.server for record in records] == [{"s2c": pytest.approx(1.0, rel=0.01), "c2s": 0.0}] + 2 * [
        {"s2c": 0.0, "c2s": 0.0}
    ]


# Reductions.

PLAIN = replace(BARE, helpers=0, lambda_iccs=0.0)
NETS = {"linear": lambda: linear(256), "batch": normed}


class Grey(Scaled):
    """Pixels from 0 to 1."""

    def plain(self, x: Tensor) -> Tensor:
        return x / 255

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        return x / 510


@pytest.mark.parametrize("kind", NETS)
def test_with_labels_only_sigma_is_uniform_fedavg_to_the_last_bit(kind: str) -> None:
    data = federation([images(0, 9), images(1, 6), images(2, 12)], test=images(9, 9), views=Grey())
    task = job(PLAIN, data, NETS[kind](), cohort=2, rounds=4, train=Training(epochs=2, batch=4, lr=0.01))
    fedavg = play_all(replace(task, method=FedAvg(Supervised("plain"), "uniform")))
    assert same(play_all(task).state.common.sigma, fedavg.state.w)
    assert all(not value.any() for value in play_all(task).state.common.psi.values())
    assert not same(play_all(replace(task, method=replace(PLAIN, lambda_s=10.0))).state.common.sigma, fedavg.state.w)


@pytest.mark.parametrize("kind", NETS)
def test_with_labels_at_the_server_sigma_is_the_servers_to_the_last_bit(kind: str) -> None:
    data = federation([hide(images(k, 9)) for k in range(3)], server=images(5, 9), test=images(9, 9), views=Grey())
    task = job(PLAIN, data, NETS[kind](), cohort=2, rounds=4, train=Training(epochs=2, batch=4, lr=0.01))
    alone = play_all(replace(task, method=ServerOnly(Supervised("plain"))))
    assert same(play_all(task).state.common.sigma, alone.state.w)
    disturbed = replace(task, method=replace(PLAIN, lambda_iccs=1.0, threshold=0.0))
    assert not same(play_all(disturbed).state.common.sigma, alone.state.w)  # ψ is in θ when σ learns


def test_another_seed_changes_everything_and_the_same_nothing() -> None:
    one, two, again = (play_all(crowd(FedMatch(threshold=0.4), seed=seed)).state for seed in (0, 1, 0))
    for part in ("sigma", "psi"):
        assert same(getattr(one.common, part), getattr(again.common, part))
        assert not any(map(torch.equal, getattr(one.common, part).values(), getattr(two.common, part).values()))
    assert all(torch.equal(one.embeddings[k], again.embeddings[k]) for k in one.embeddings)
    assert not any(torch.equal(one.embeddings[k], two.embeddings[k]) for k in one.embeddings)


def test_a_single_client_learns_without_help() -> None:
    last = list(rounds(crowd(FedMatch(threshold=0.0), clients=1)))[-1]
    assert last.memories[0].helpers == ()
    assert last.record.metrics["helpers"]["max"] == 0


# Learning more slowly (Serra et al.).


def nothing_new(state: FedMatchState) -> FedMatchUp:
    return FedMatchUp(*(sparsify(part, part) for part in (state.common.sigma, state.common.psi)))


def judged(method: FedMatch, validation: Samples | None = None) -> Job:
    data = federation([points(k, 6) for k in range(2)], validation=validation or points(7, 9))
    return job(method, data, linear())


def test_a_client_learns_more_slowly_after_five_visits_without_a_lower_loss() -> None:
    task, shares = judged(FedMatch()), {0: list[float](), 1: list[float]()}
    state = started(task)
    for round in range(12):
        server = task.server(round, {})
        state, downs = task.method.send(server, state)
        visited = (0, 1) if round < 7 else (0,)  # an entity counts its own visits
        for k in (0, 1):
            shares[k].append(downs[k].rate)
        state = task.method.merge(server, state, dict.fromkeys(visited, nothing_new(state)))
    # The first visit sets the loss to beat; the five that do not beat it are 2 to 6 and 7 to 11.
    assert shares[0] == [1.0] * 6 + [1 / 3] * 5 + [1 / 3 / 3]
    assert shares[1] == [1.0] * 6 + [1 / 3] * 6
    assert state.rates[1].waited == 1


def test_a_lower_loss_resets_the_count() -> None:
    task = judged(FedMatch(patience=3, decay=2.0))
    method, server = task.method, task.server(0, {})
    begin = method.start(server)
    scaled = [params.scale(begin.common.sigma, factor) for factor in (0.0, 1.0, 2.0, 4.0)]
    best, good, fair, bad = sorted(scaled, key=lambda model: loss_on(server, model, points(7, 9)))
    state, found = begin, []
    for model in [bad, fair, fair, fair, bad, good, bad, bad, good, best]:
        up = replace(nothing_new(begin), sigma=sparsify(model, begin.common.sigma))
        sent, _ = method.send(server, replace(begin, rates=state.rates))
        state = method.merge(server, sent, {0: up})
        found.append((state.rates[0].share, state.rates[0].waited))
    assert found[:6] == [(1.0, 0), (1.0, 0), (1.0, 1), (1.0, 2), (0.5, 0), (0.5, 0)]  # as low as before is not lower
    assert found[6:] == [(0.5, 1), (0.5, 2), (0.25, 0), (0.25, 0)]  # and a rate once lowered stays so


def test_the_loss_is_that_of_the_clients_model_on_the_validation_samples() -> None:
    task = judged(FedMatch())
    (turn,) = turns(task, [(0, 1)])
    for k, pair in turn.state.held.items():
        assert turn.state.rates[k].best == loss_on(task.server(0, {}), theta(pair), points(7, 9))
    assert turn.state.rates[0] != turn.state.rates[1]


def test_without_validation_samples_rates_do_not_fall() -> None:
    data = federation([points(k, 6) for k in range(2)], server=points(3, 6))
    played = list(turns(job(FedMatch(patience=1, lambda_s=0.0), data, linear()), [(0, 1)] * 4))
    assert set(played[-1].state.rates.values()) == {Plateau()}
    assert all(down.rate == 1 for turn in played for down in turn.downs.values())


def test_the_server_slows_down_too() -> None:
    clients = [hide(points(0, 6))]
    data = federation(clients, server=points(3, 6), validation=points(7, 9))
    still = job(FedMatch(patience=2, lambda_s=0.0), data, linear())
    shares = [turn.sent.rates[SERVER].share for turn in turns(still, [()] * 5)]
    assert shares == [1, 1, 1 / 3, 1 / 3, 1 / 9]


def test_the_server_takes_steps_at_its_own_rate() -> None:
    data = federation([hide(points(0, 6))], server=points(3, 6))
    task = job(FedMatch(lambda_s=1.0), data, linear(), train=replace(ONE_STEP, lr=0.3))
    server = task.server(0, {})
    begin = task.method.start(server)
    full, third = (
        task.method.send(server, replace(begin, rates={SERVER: Plateau(share)}))[0].common for share in (1.0, 1 / 3)
    )
    assert same(full.psi, begin.common.psi)
    step = params.scale(params.sub(full.sigma, begin.common.sigma), 1 / 3)
    assert apart(params.sub(third.sigma, begin.common.sigma), step) < 1e-6
    assert max(float(value.abs().max()) for value in step.values()) > 1e-3


@pytest.mark.parametrize("data", [LABELED, UNLABELED])
def test_a_clients_step_follows_its_rate(data: Samples) -> None:
    pair = Decomposed(EYE, TILTED)
    full, third = (learn(replace(BARE, threshold=0.0), data, pair, rate=rate).memory.held for rate in (1.0, 1 / 3))
    for before, one, two in ((EYE, full.sigma, third.sigma), (TILTED, full.psi, third.psi)):
        assert apart(params.scale(params.sub(one, before), 1 / 3), params.sub(two, before)) < 1e-6
    assert not same(theta(full), theta(pair))


# Settings.


def test_defaults_are_the_papers() -> None:
    paper = FedMatch()
    assert (paper.helpers, paper.refresh, paper.threshold) == (2, 10, 0.85)
    assert (paper.lambda_s, paper.lambda_iccs, paper.lambda_l2, paper.lambda_l1) == (10, 0.01, 10, None)
    assert (paper.patience, paper.decay) == (5, 3)
    assert registry.build_method("fedmatch", {"preset": "as-written"}, {}) == paper


RELEASED = {
    "cached": False,  # helpers in every tenth round only
    "refresh": 10,
    "helpers": 2,
    "threshold": 0.75,
    "ties": "lowest",
    "consistency_on": "kept",
    "lambda_s": 10,
    "lambda_iccs": 0.01,
    "lambda_l2": 10,
    "norms": "sum",
    "psi_start": 0.2,
    "mask_down": False,
    "noise": "pixels",
    "decay": 3,
    "view": "plain",
    "learns": "both",
}
PLACES = {
    "as-released": {"lambda_l1": 1e-4, "delta_down": 5e-5, "delta_up": 5e-5, "zero": 5e-6, "patience": 5},
    "as-released-server": {"lambda_l1": 1e-5, "delta_down": 1e-5, "delta_up": 1e-5, "zero": 1e-5, "patience": 20},
}


@pytest.mark.parametrize("preset", PLACES)
def test_presets_set_what_the_release_does_differently(preset: str) -> None:
    built: Any = registry.build_method("fedmatch", {"preset": preset}, {})
    assert vars(built) == RELEASED | PLACES[preset]
    chosen: Any = registry.build_method("fedmatch", {"preset": preset, "threshold": 0.6, "zero": 0}, {})
    assert vars(chosen) == RELEASED | PLACES[preset] | {"threshold": 0.6, "zero": 0}


@pytest.mark.parametrize("preset", ["as-written", *PLACES])
def test_every_preset_runs(preset: str) -> None:
    method: Any = registry.build_method("fedmatch", {"preset": preset, "refresh": 2, "threshold": 0.4}, {})
    moments = list(rounds(crowd(method)))
    assert all(agree(moment) for moment in moments)
    assert max(moment.record.metrics["helpers"]["max"] for moment in moments) == 2


def test_a_confidence_of_one_half_is_log_two() -> None:
    """θ = 0 answers one half everywhere: nothing reaches τ, and all that is left is the norms."""
    reply = learn(FedMatch(), UNLABELED, Decomposed(NOTHING, NOTHING), (NOTHING,))
    assert reply.metrics["kept"] == 0
    labeled = learn(FedMatch(), LABELED, Decomposed(NOTHING, NOTHING))
    assert labeled.metrics["loss_supervised"] == pytest.approx(log(2))
