"""FedDB: labels divided by the mean prediction, weights that should even out what is left, and do not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from tacit.engines.job import Job
from tacit.federation import Samples
from tacit.learn import fit, predict
from tacit.losses import confident
from tacit.method import ServerContext
from tacit.methods.anchor import OnKept
from tacit.methods.fedavg import FedAvg
from tacit.methods.feddb import (
    Debiased,
    FedDb,
    FedDbDown,
    FedDbState,
    FedDbUp,
    debiased_weights,
    label_prior,
    mixed_bias,
)
from tacit.objectives import FixMatch, Supervised
from tests.methods import by_hand
from tests.toys import (
    TWO_EPOCHS,
    Identity,
    Noisy,
    apart,
    federation,
    hide,
    job,
    linear,
    p,
    play_all,
    point,
    points,
    rounds,
    same,
    started,
    steps,
    unlabeled,
    visit,
    with_batchnorm,
)

EAGER = FedDb(threshold=0.4)  # a threshold that an untrained linear model reaches for some samples and not for all


def given(method: FedDb = EAGER, shown: int = 8, views: Any = None, **options: Any) -> Job:
    """Three clients with twenty points each, of which eight have a label."""
    data = federation([hide(points(k, 20), shown) for k in range(3)], test=points(8, 9), views=views)
    return job(method, data, linear(), **{"train": TWO_EPOCHS} | options)


# Labels.


def test_labels_are_divided_by_the_mean_prediction() -> None:
    task = given()
    w = started(task).w
    q = predict(linear(), w, points(1, 20).x, Identity())  # of all samples, labeled ones too
    q = q / q.mean(dim=0)
    labels, accepted = confident(q / q.sum(dim=1, keepdim=True), 0.4)
    reply = visit(task, 1, FedDbDown(w))
    assert 0 < accepted.sum() < 20
    assert reply.pseudo_labels.index.tolist() == list(range(8, 20))
    assert torch.equal(reply.pseudo_labels.label, labels[8:])
    assert torch.equal(reply.pseudo_labels.accepted, accepted[8:])
    assert reply.metrics["kept"] == pytest.approx(float(accepted.float().mean()))
    plain = confident(predict(linear(), w, points(1, 20).x, Identity()), 0.4)
    assert not torch.equal(plain[1], accepted)


def test_an_even_mean_changes_nothing() -> None:
    """The reduction: with p̄ uniform, the kept samples are the confident ones."""
    task = given(shown=0)
    w = started(task).w
    labels, accepted = confident(predict(linear(), w, points(0, 20).x, Identity()), 0.4)
    reply = visit(task, 0, FedDbDown(w, mean=torch.full((3,), 1 / 3)))
    assert torch.equal(reply.pseudo_labels.accepted, accepted)
    rows = accepted.nonzero().reshape(-1)
    client = task.client(0, 0)
    kept = replace(client, data=client.data.take(rows))
    assert apart(reply.up.w, fit(kept, w, OnKept(labels[rows])).params) < 1e-6


def test_the_prior_in_the_message_is_what_predictions_are_moved_to() -> None:
    task = given(shown=0)
    w = started(task).w
    p_own = predict(linear(), w, points(0, 20).x, Identity())
    mean, prior = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.6, 0.3, 0.1])
    q = p_own * prior / mean
    labels, accepted = confident(q / q.sum(dim=1, keepdim=True), 0.4)
    reply = visit(task, 0, FedDbDown(w, mean, prior))
    assert torch.equal(reply.pseudo_labels.label, labels)
    assert torch.equal(reply.pseudo_labels.accepted, accepted)


def test_a_mean_that_is_right_is_undone_by_the_same_prior() -> None:
    """With p̄ = prior nothing is divided out: the safe form where clients hold few classes."""
    task = given(shown=0)
    w, even = started(task).w, torch.tensor([0.7, 0.2, 0.1])
    plain = visit(task, 0, FedDbDown(w, torch.full((3,), 1 / 3)))
    assert torch.equal(visit(task, 0, FedDbDown(w, even, even)).pseudo_labels.accepted, plain.pseudo_labels.accepted)


def test_labels_stay_for_all_epochs_and_labeled_samples_are_taught_too() -> None:
    task = given()
    reply = visit(task, 0, FedDbDown(started(task).w))
    kept = round(reply.metrics["kept"] * 20)
    assert reply.metrics["steps"] == 2 * max(-(-8 // 6), -(-kept // 6))
    assert kept > int(reply.pseudo_labels.accepted.sum())  # some of the labeled ones are among them


def test_a_batch_as_large_as_the_data_is_one_step_an_epoch() -> None:
    """As released."""
    task = given(train=replace(TWO_EPOCHS, batch=1000, epochs=5))
    assert visit(task, 0, FedDbDown(started(task).w)).metrics["steps"] == 5


def test_the_loss_of_a_step_by_hand() -> None:
    """One step with rate 1 from a linear model: its change is the negative gradient of both terms."""
    task = given(FedDb(threshold=0.5, weight=0.25), train=steps(1, batch=20, lr=1.0))
    w, data = started(task).w, hide(points(0, 20), 8)
    q = by_hand.answers(w, data.x)
    q = q / q.mean(dim=0)
    labels, accepted = confident(q / q.sum(dim=1, keepdim=True), 0.5)
    first = by_hand.slope(w, data.x[:8], functional.one_hot(points(0, 20).y[:8], 3).float())
    second = by_hand.slope(w, data.x[accepted], functional.one_hot(labels[accepted], 3).float())
    expected = {name: w[name] - first[name] - 0.25 * second[name] for name in w}
    assert apart(visit(task, 0, FedDbDown(w)).up.w, expected) < 1e-5


def test_without_a_kept_sample_a_client_learns_from_its_labels() -> None:
    task = given(FedDb(threshold=1.0), views=Noisy())
    w = started(task).w
    reply = visit(task, 0, FedDbDown(w))
    client = task.client(0, 0)
    labeled = replace(client, data=client.data.take(client.data.labeled))
    assert same(reply.up.w, fit(labeled, w, Supervised()).params)
    q = predict_mean(w, task)
    assert torch.allclose(reply.up.mean, q, atol=0.05)


def predict_mean(w: Any, task: Job) -> torch.Tensor:
    return predict(linear(), w, task.client(0, 0).data.x, Identity()).mean(dim=0)


def test_a_client_with_nothing_to_learn_from_uploads_nothing() -> None:
    task: Any = given(FedDb(threshold=1.0), shown=0)
    w = started(task).w
    assert visit(task, 0, FedDbDown(w)).up is None
    empty = replace(task.client(0, 0), data=Samples(points(0, 0).x, points(0, 0).y))
    assert task.method.client_update(empty, None, FedDbDown(w)).up is None


# p̄.


def test_the_mean_prediction_follows_every_batch_by_hand() -> None:
    task = given(FedDb(threshold=0.0, follow=0.75), shown=0, train=steps(2, batch=20))
    w = started(task).w
    client = task.client(0, 0)
    objective = Debiased(task.method, torch.zeros(20).long(), 0, torch.tensor([0.5, 0.3, 0.2]))  # type: ignore[arg-type]
    first = fit(replace(client, train=steps(1, batch=20)), w, objective).params
    one = 0.75 * torch.tensor([0.5, 0.3, 0.2]) + 0.25 * by_hand.answers(w, client.data.x).mean(dim=0)
    assert torch.allclose(objective.mean, one, atol=1e-6)
    objective = Debiased(task.method, torch.zeros(20).long(), 0, torch.tensor([0.5, 0.3, 0.2]))  # type: ignore[arg-type]
    fit(client, w, objective)
    two = 0.75 * one + 0.25 * by_hand.answers(first, client.data.x).mean(dim=0)
    assert torch.allclose(objective.mean, two, atol=1e-6)


def test_the_uploaded_mean_is_a_distribution() -> None:
    reply = visit(given(), 0, FedDbDown(started(given()).w))
    assert reply.up.mean.shape == (3,)
    assert float(reply.up.mean.sum()) == pytest.approx(1.0, abs=1e-5)


# The solver.


def released_weights(means: torch.Tensor) -> torch.Tensor:
    """The authors' loop in words of torch: a new optimizer, one step and a softmax, a hundred times."""
    weight = torch.full((len(means), 1), 1 / len(means), dtype=torch.float64)
    for _ in range(100):
        weight.requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, weight_decay=0.9, nesterov=True)
        uniform = torch.full((means.shape[1],), 1 / means.shape[1], dtype=torch.float64)
        functional.mse_loss((means * weight).sum(0), uniform).backward()
        optimizer.step()
        weight = weight.detach().softmax(dim=0)
    return weight[:, 0]


def skewed(clients: int = 10, classes: int = 10, alpha: float = 0.1, seed: int = 0) -> torch.Tensor:
    """Mean predictions of clients with data by a Dirichlet distribution."""
    stream = torch.Generator().manual_seed(seed)
    drawn = torch._standard_gamma(torch.full((clients, classes), alpha, dtype=torch.float64), generator=stream)
    return drawn / drawn.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("clients, classes", [(10, 10), (3, 3), (2, 5), (1, 4)])
def test_the_solver_is_the_released_one(clients: int, classes: int) -> None:
    means = skewed(clients, classes)
    assert debiased_weights(means) == pytest.approx(released_weights(means).tolist(), abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_solver_stays_at_uniform_weights(seed: int) -> None:
    """The finding: ten clients with Dirichlet-0.1 mean predictions end within 0.01 of 0.1."""
    means = skewed(seed=seed)
    weights = debiased_weights(means)
    assert sum(weights) == pytest.approx(1.0)
    assert max(abs(weight - 0.1) for weight in weights) < 0.01
    before, after = mixed_bias(means, [0.1] * 10), mixed_bias(means, weights)
    assert 0.9 * before < after <= before  # less than a tenth of the bias is gone


def test_other_weights_would_remove_much_more_bias() -> None:
    """Least squares on the simplex by many small steps: it is the solver that does nothing, not the task."""
    for seed in range(5):
        means = skewed(seed=seed)
        logits = torch.zeros(10, dtype=torch.float64)
        for _ in range(5000):
            beta = logits.softmax(dim=0)
            slope = 2 * means @ (beta @ means - 0.1)
            logits -= 5 * beta * (slope - beta @ slope)
        best = mixed_bias(means, logits.softmax(dim=0).tolist())
        assert best < 0.85 * mixed_bias(means, debiased_weights(means))


def test_the_bias_of_a_mixture_by_hand() -> None:
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # 0.7·(1, 0) + 0.3·(0, 1) - (½, ½) = (0.2, -0.2)
    assert mixed_bias(means, [0.7, 0.3]) == pytest.approx(0.2 * 2**0.5)


# The server.


def resting(task: Job, log: dict[str, float] | None = None) -> ServerContext:
    """A server of one number without labels."""
    return replace(task.server(0, {} if log is None else log), net=point(0.0))


def test_the_average_and_momentum_by_hand() -> None:
    task, log = given(), dict[str, float]()
    ups = {0: FedDbUp(p(1.0), torch.tensor([1.0, 0.0])), 1: FedDbUp(p(3.0), torch.tensor([0.2, 0.8]))}
    beta = debiased_weights(torch.tensor([[1.0, 0.0], [0.2, 0.8]]))
    state = task.method.merge(resting(task, log), FedDbState(p(9.0), p(2.0)), ups)
    v = 0.5 * 2 + (beta[0] * 1 + beta[1] * 3 - 9)
    assert state.velocity["p"].item() == pytest.approx(v, abs=1e-12)
    assert state.w["p"].item() == pytest.approx(9 + v, abs=1e-12)
    assert state.mean.tolist() == pytest.approx([0.6, 0.4])
    assert log["largest_weight"] == max(beta)
    even = task.method.merge(resting(task), FedDbState(p(9.0)), ups)
    uniform = replace(task, method=FedDb(average="uniform")).method.merge(resting(task), FedDbState(p(9.0)), ups)
    assert uniform.w["p"].item() == 2.0 != even.w["p"].item()


def test_a_false_mean_cannot_spoil_the_average() -> None:
    task = given()
    ups = {0: FedDbUp(p(1.0), torch.tensor([1e30, -1e30])), 1: FedDbUp(p(3.0), torch.tensor([0.5, 0.5]))}
    state = task.method.merge(resting(task), FedDbState(p(2.0)), ups)
    assert 1.0 < state.w["p"].item() < 3.0
    assert state.mean.tolist() == [0.75, 0.25]


def test_a_round_without_uploads_changes_nothing() -> None:
    task = given()
    state = FedDbState(p(3.0), p(2.0))
    assert task.method.merge(resting(task), state, {}) is state


def test_momentum_leaves_batch_statistics_alone() -> None:
    task = with_batchnorm(FedDb(threshold=0.0, momentum=0.9), rounds=3)
    for moment in rounds(task):
        variances = [moment.state.w[name] for name in task.net.buffers if name.endswith("running_var")]
        assert variances
        assert all(bool((variance > 0).all()) for variance in variances)
        assert moment.state.velocity.keys() == set(task.net.trainable)


def test_the_global_mean_is_sent_from_the_second_round_on() -> None:
    task = given(replace(EAGER, over="global"))
    first = by_hand.turn(task, 0)
    assert all(down.mean is None for down in first.downs.values())
    second = by_hand.turn(task, 1, first.state)
    expected = torch.stack([reply.up.mean for reply in first.replies.values()]).mean(dim=0)
    assert all(torch.allclose(down.mean, expected) for down in second.downs.values())
    assert all(down.mean is None for down in by_hand.turn(given(), 1, first.state).downs.values())


def test_the_servers_labels_give_the_prior() -> None:
    task = unlabeled(replace(EAGER, prior="server"))
    server = task.server(0, {})
    counts = points(9, 12).y.bincount(minlength=3)
    assert label_prior(server, server.initial()).tolist() == pytest.approx((counts / 12).tolist())
    sent = by_hand.turn(task, 0)
    assert all(down.prior.tolist() == pytest.approx((counts / 12).tolist()) for down in sent.downs.values())
    assert FedDb(prior="server").needs.server_labels
    assert not FedDb().needs.server_labels


def test_a_server_with_labels_trains_before_it_sends() -> None:
    task = unlabeled(EAGER)
    server = task.server(0, {})
    state, downs = task.method.send(server, started(task))
    assert same(state.w, fit(server, server.initial(), Supervised()).params)
    assert all(same(down.w, state.w) for down in downs.values())


def test_with_labels_only_and_no_momentum_it_is_fedavg_with_uniform_weights() -> None:
    task = given(FedDb(threshold=1.0, momentum=0.0, average="uniform"), shown=20, views=Noisy())
    fedavg = replace(task, method=FedAvg(FixMatch(), weights="uniform"))
    assert apart(play_all(task).state.w, play_all(fedavg).state.w) < 1e-5


def test_a_client_keeps_its_momentum_if_set() -> None:
    task = given(train=replace(TWO_EPOCHS, optimizer="keep"))
    down = FedDbDown(started(task).w)
    memory = visit(task, 0, down).memory
    with_it, without = (visit(task, 0, down, each, round=1).up.w for each in (memory, None))
    assert not same(with_it, without)
