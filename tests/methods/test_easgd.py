"""EASGD: worker and centre pull at each other with the same force, so their sum is conserved."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from tacit.engines.faults import Faults
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import Job
from tacit.learn import fit
from tacit.method import Training
from tacit.methods.easgd import Easgd, EasgdDown, EasgdMemory, EasgdUp
from tacit.methods.local_only import LocalOnly
from tacit.objectives import Supervised
from tacit.params import add, lerp, mean, scale, sub
from tests.methods import by_hand
from tests.toys import (
    SIX,
    EagerTransport,
    Moment,
    Quadratic,
    apart,
    federation,
    images,
    job,
    labeled,
    normed,
    number,
    p,
    play_all,
    point,
    quadratics,
    rounds,
    same,
    started,
    steps,
    visit,
)


def given(method: Any = None, **options: Any) -> Job:
    return labeled(method or Easgd(), **options)


# Two workers with targets 0 and 3 and a = 1, all at 1; β = 0.9, so α = 0.45; one step of 0.1.
# x: 0.9 and 1.2; pulls 0.45·(-0.1) and 0.45·0.2; x: 0.945 and 1.11; centre: 1 + 0.045.


def two(**options: Any) -> list[Moment]:
    method = Easgd(Quadratic(), **options)
    return list(rounds(job(method, quadratics([[0.0, 1.0]], [[3.0, 1.0]]), point(1.0), train=steps(1), rounds=2)))


def test_a_round_by_hand() -> None:
    first = two()[0]
    assert number(first.memories[0].x) == pytest.approx(0.945, abs=1e-12)
    assert number(first.memories[1].x) == pytest.approx(1.11, abs=1e-12)
    assert number(first.state.w) == pytest.approx(1.045, abs=1e-12)
    assert number(first.state.w) == pytest.approx((1 - 0.9) * 1 + 0.9 * (0.9 + 1.2) / 2, abs=1e-12)  # the paper's form
    assert total(first) == pytest.approx(0.9 + 1.2 + 1, abs=1e-12)  # what one gains the other loses


def test_the_next_round_begins_at_the_workers_own_models() -> None:
    last = two()[1]
    after = [0.945 - 0.1 * 0.945, 1.11 - 0.1 * (1.11 - 3)]
    pulls = [0.45 * (x - 1.045) for x in after]
    assert [number(last.memories[k].x) for k in (0, 1)] == pytest.approx(
        [x - pull for x, pull in zip(after, pulls, strict=True)], abs=1e-12
    )
    assert number(last.state.w) == pytest.approx(1.045 + sum(pulls), abs=1e-12)


@pytest.mark.parametrize("cohort", [1, 2, 4])
def test_alpha_is_beta_over_the_workers_of_a_round(cohort: int) -> None:
    task = given(Easgd(beta=0.6), clients=4, cohort=cohort)
    server = task.server(0, {})
    _, downs = task.method.send(server, task.method.start(server))
    assert [down.alpha for down in downs.values()] == [0.6 / cohort] * cohort


def test_a_round_of_a_linear_model() -> None:
    task = given()
    server = task.server(0, {})
    state = task.method.start(server)
    moment = next(iter(rounds(task)))
    trained = [fit(task.client(0, k), state.w, Supervised()).params for k in range(3)]
    assert apart(moment.state.w, lerp(state.w, mean(trained), 0.9)) < 1e-6
    for k in range(3):
        assert apart(moment.memories[k].x, lerp(trained[k], state.w, 0.3)) < 1e-6


# Reductions.


def test_without_elasticity_workers_are_alone_and_the_centre_never_moves() -> None:
    still = play_all(given(Easgd(beta=0.0)))
    start = given().server(0, {}).initial()
    assert same(still.state.w, start)
    alone = play_all(given(LocalOnly(Supervised())))
    assert all(same(still.memories[k].x, alone.memories[k].w) for k in range(3))
    pulled = play_all(given())
    assert not any(same(pulled.memories[k].x, alone.memories[k].w) for k in range(3))


def test_one_worker_with_all_the_force_changes_places_with_the_centre() -> None:
    given = job(Easgd(Quadratic(), beta=1.0), quadratics([[0.0, 1.0]]), point(1.0), train=steps(1), rounds=2)
    first, second = rounds(given)
    assert (number(first.state.w), number(first.memories[0].x)) == pytest.approx((0.9, 1.0), abs=1e-12)
    assert (number(second.state.w), number(second.memories[0].x)) == pytest.approx((0.9, 0.9), abs=1e-12)


# The invariant: an exchange conserves Σ x^i + x̃. The cosine reaches 0 half way, and from there nobody learns.


def frozen(transport: type[InProcessTransport] = InProcessTransport, **options: Any) -> list[Moment]:
    train, data = steps(3, schedule="cosine:1"), quadratics(*[[row] for row in SIX])
    task = job(Easgd(Quadratic()), data, point(5.0), train=train, rounds=24, **options)
    return list(rounds(task, transport=transport))


def total(moment: Moment) -> float:
    return number(moment.state.w) + sum(number(memory.x) for memory in moment.memories.values())


LOSSES: dict[str, Any] = {"faults": Faults(lost=0.4), "min_clients": 0}


@pytest.mark.parametrize("options", [{}, {"cohort": 3}, LOSSES, LOSSES | {"cohort": 4}], ids=str)
def test_exchanges_conserve_the_sum_also_when_uploads_are_lost(options: dict[str, Any]) -> None:
    moments = frozen(**options)
    assert len(moments[11].memories) == 6
    sums = [total(moment) for moment in moments[12:]]
    assert sums == pytest.approx([sums[0]] * 12, abs=1e-12)
    centres = [number(moment.state.w) for moment in moments[11:]]
    assert abs(centres[1] - centres[0]) > 1e-4  # things do move


def test_remembering_a_lost_exchange_would_break_it() -> None:
    sums = [total(moment) for moment in frozen(EagerTransport, **LOSSES)[12:]]
    assert max(sums) - min(sums) > 1e-3


def test_a_worker_whose_upload_was_lost_stays_where_it_was() -> None:
    moments = frozen(**LOSSES)
    for before, after in pairwise(moments):
        for k in after.record.skipped:
            assert k not in before.memories or same(before.memories[k].x, after.memories[k].x)
        still = {k for k in before.memories if same(before.memories[k].x, after.memories[k].x)}
        assert after.record.round >= 12 or still == set(after.record.skipped) & before.memories.keys()


# Workers.


def test_what_goes_up_is_the_pull() -> None:
    task = given()
    centre = task.server(0, {}).initial()
    memory = EasgdMemory(add(centre, scale(centre, 0.5)), None)
    reply = visit(task, 0, EasgdDown(centre, 0.3), memory)
    trained = fit(task.client(0, 0), memory.x, Supervised()).params
    assert same(reply.up.pull, scale(sub(trained, centre), 0.3))
    assert same(reply.memory.x, sub(trained, reply.up.pull))
    assert same(reply.model, reply.memory.x)


def test_an_empty_merge_keeps_the_centre() -> None:
    task = given()
    state = started(task)
    assert same(task.method.merge(task.server(0, {}), state, {}).w, state.w)


def test_merge_by_hand() -> None:
    task = job(Easgd(Quadratic()), quadratics([[0.0, 1.0]]), point(1.0))
    server = task.server(0, {})
    merged = task.method.merge(server, task.method.start(server), {0: EasgdUp(p(0.25)), 3: EasgdUp(p(-0.5))})
    assert number(merged.w) == 0.75


def test_statistics_of_the_centre_stay_variances() -> None:
    net = normed()
    train = Training(steps=4, batch=4, lr=0.05)
    given = job(Easgd(beta=1.0), federation([images(0, 12), images(1, 12)]), net, train=train, rounds=4)
    for moment in rounds(given):
        assert all((moment.state.w[name] > 0).all() for name in net.buffers if name.endswith("running_var"))


@pytest.mark.parametrize("buffers", ["average", "keep", "recompute"])
def test_statistics_are_pulled_like_weights_and_the_centres_follow_the_server(buffers: Any) -> None:
    data, net = federation([images(0, 12), images(1, 12)], server=images(9, 12)), normed()
    task = job(Easgd(), data, net, train=Training(steps=2, batch=4, lr=0.05, buffers=buffers))
    turn = by_hand.turn(task)
    centre = turn.sent.w
    for k, reply in turn.replies.items():
        trained = fit(task.client(0, k), centre, Supervised()).params
        assert all(torch.equal(reply.memory.x[name], sub(trained, reply.up.pull)[name]) for name in net.buffers)
        assert all(torch.equal(reply.up.pull[name], 0.45 * (trained[name] - centre[name])) for name in net.buffers)
    pulled = add(add(centre, turn.replies[0].up.pull), turn.replies[1].up.pull)
    recomputed = net.recompute_batchnorm(pulled, [data.views.plain(images(9, 12).x)])
    own = {"average": pulled, "keep": centre, "recompute": recomputed}
    for name in net.buffers:
        assert torch.equal(turn.state.w[name], own[buffers][name])
        assert not torch.equal(own["keep"][name], own["average"][name])


@pytest.mark.parametrize("buffers", ["average", "keep", "recompute"])
def test_a_workers_statistics_continue_from_where_the_pull_left_them(buffers: Any) -> None:
    train = Training(steps=2, batch=4, lr=0.05, buffers=buffers)
    task = job(Easgd(), federation([images(0, 12)], server=images(9, 12)), normed(), train=train)
    first = by_hand.turn(task)
    second = by_hand.turn(task, 1, first.state, first.memories)
    trained = fit(task.client(1, 0), first.memories[0].x, Supervised()).params
    assert same(second.memories[0].x, sub(trained, scale(sub(trained, second.sent.w), 0.9)))
