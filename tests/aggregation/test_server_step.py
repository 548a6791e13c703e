"""What the server makes of a mean: each optimizer over two rounds by hand, and the tuning of the last layer."""

from math import exp, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.aggregation import WeightsState, WeightsUp, merge_weights
from tacit.aggregation.server_step import HeadTuning, Optimizer, margin_of, parse, step, tuned_rows
from tacit.method import Training
from tacit.methods.fedavg import FedAvg
from tacit.nets import build
from tacit.objectives import Supervised
from tacit.params import Params
from tacit.runs import config as configs
from tests.refusals import refused
from tests.toys import apart, federation, images, job, labeled, normed, play_all, same, started


def number(value: float) -> Params:
    """A model of one number."""
    return {"p": torch.tensor([value], dtype=torch.float64)}


def two_rounds(text: str) -> tuple[float, float]:
    """From x = 1: a round whose mean is 1.5, then one whose mean is 0.25 below the model."""
    first, moments = step(parse(text), number(1.0), number(1.5), None)
    x = first["p"].item()
    second, _ = step(parse(text), first, number(x - 0.25), moments)
    return x, second["p"].item()


# Δ_1 = 0.5 and Δ_2 = -0.25 throughout.


def test_sgd_goes_a_share_of_the_way() -> None:
    # 1 + 0.5·0.5 = 1.25, then 1.25 - 0.5·0.25 = 1.125
    assert two_rounds("sgd:0.5") == (1.25, 1.125)


def test_momentum_repeats_a_share_of_the_last_way() -> None:
    # m = 0.5: 1 + 0.5·0.5 = 1.25; m = 0.8·0.5 - 0.25 = 0.15: 1.25 + 0.5·0.15 = 1.325
    assert two_rounds("momentum:0.5:0.8") == pytest.approx((1.25, 1.325), abs=1e-15)


def test_adam_divides_by_the_root_of_the_second_moment() -> None:
    # m = 0.2·0.5 = 0.1; v = 0.75·0.01 + 0.25·0.25 = 0.07
    m, v = 0.1, 0.07
    x = 1 + 0.5 * m / (sqrt(v) + 0.1)
    # m = 0.8·0.1 - 0.2·0.25 = 0.03; v = 0.75·0.07 + 0.25·0.0625 = 0.068125
    m, v = 0.03, 0.068125
    assert two_rounds("adam:0.5:0.8:0.75:0.1") == pytest.approx((x, x + 0.5 * m / (sqrt(v) + 0.1)), abs=1e-15)


def test_yogi_changes_the_second_moment_by_the_square_alone() -> None:
    # v = 0.01 - 0.25·0.25·sign(0.01 - 0.25) = 0.0725
    x = 1 + 0.5 * 0.1 / (sqrt(0.0725) + 0.1)
    # v = 0.0725 - 0.25·0.0625·sign(0.0725 - 0.0625) = 0.056875
    second = x + 0.5 * 0.03 / (sqrt(0.056875) + 0.1)
    assert two_rounds("yogi:0.5:0.8:0.75:0.1") == pytest.approx((x, second), abs=1e-15)


def test_numbers_that_are_left_out_have_their_defaults() -> None:
    assert parse("adam:0.3") == Optimizer("adam", 0.3, 0.9, 0.99, 1e-3)
    assert parse("momentum") == Optimizer("momentum", 1.0, 0.9)
    assert parse("none") == Optimizer()


@pytest.mark.parametrize(
    "text", ["", "adm", "adam:x", "adam:0", "adam:1:1", "adam:1:0.9:-0.1", "adam:1:0.9:0.9:0", "sgd:1:0.9", "sgd:nan"]
)
def test_another_text_is_refused(text: str) -> None:
    with refused("method.server-optimizer"):
        configs.from_options({"method": "fedavg", "method.server_optimizer": text})
    with refused("method.server-optimizer"):
        parse(text)


# In a method.


def models(*values: float) -> dict[int, WeightsUp]:
    """Uploads of one number each, the k-th of k + 1 samples."""
    return {k: WeightsUp(number(value), k + 1) for k, value in enumerate(values)}


def test_without_an_optimizer_the_mean_keeps_its_bits_and_there_is_no_state() -> None:
    plain, named = (play_all(labeled(FedAvg(Supervised(), server_optimizer=text))) for text in ("none", "sgd:1"))
    assert plain.state.moments is None
    assert named.state.moments is None
    server = labeled(FedAvg()).server(0, {})
    mean = server.combine([up.w for up in models(1.0, 2.5).values()], [1.0, 2.0])
    assert same(merge_weights(server, WeightsState(number(7.0)), models(1.0, 2.5), "samples").w, mean)
    # sgd with rate 1 is w + (mean - w)
    assert apart(plain.state.w, started(labeled(FedAvg())).w) > 0
    assert apart(plain.state.w, named.state.w) < 1e-5


def test_a_round_without_uploads_leaves_model_and_moments() -> None:
    server = labeled(FedAvg()).server(0, {})
    state = WeightsState(number(1.0), moments={"m": number(0.3)})
    assert merge_weights(server, state, {}, "samples", "momentum:1:0.9") is state


@pytest.mark.parametrize("text", ["momentum:1:0.5", "adam:0.05", "yogi:0.05"])
def test_the_moments_are_carried_to_the_next_round_through_training_at_the_server(text: str) -> None:
    data = federation([images(k, 9) for k in range(2)], server=images(5, 6))
    given = job(FedAvg(Supervised(), server_optimizer=text), data, normed(), train=Training(batch=4, lr=0.05))
    server, state = given.server(0, {}), started(given)
    up = {0: WeightsUp({name: value + 1 for name, value in state.w.items()}, 3)}
    merged = given.method.merge(server, state, up)
    assert merged.moments is not None
    assert merged.moments["m"].keys() == set(given.net.trainable)  # batch statistics follow the mean
    assert all(bool((merged.w[name] == up[0].w[name]).all()) for name in given.net.buffers)
    sent, _ = given.method.send(server, merged)
    assert sent.moments is merged.moments
    assert not same(sent.w, merged.w)


# Tuning of the last layer. Two classes, two features; rows by hand.

ROWS = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
LOCAL = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)


def tuned(**options: Any) -> Tensor:
    """One step on all rows of one client."""
    tuning = HeadTuning(epochs=1, lr=0.5, batch=2, **options)
    return tuned_rows(ROWS, [LOCAL], tuning, torch.Generator().manual_seed(0))


def test_a_step_of_the_tuning_by_hand() -> None:
    # Row 0: distances 1 to its own and 2 to the other class. -log softmax: p = 1/(1 + e^{-1}) for its own.
    p = 1 / (1 + exp(-1))
    # The gradient of (1 - p)·φ_own - (1 - p)·φ_other by row 0, and half of it, as there are two rows:
    # that of its own distance is (0 - 0, 0 - 1)/1 = (0, -1), that of the other (0 - 2, 0)/2 = (-1, 0).
    first = [-0.5 * 0.5 * (1 - p) * 1, -0.5 * 0.5 * (1 - p) * -1]
    # Row 1: distances 0 to its own, √5 to the other. The gradient of a distance at 0 is 0.
    q = 1 / (1 + exp(-sqrt(5)))
    second = [2 + 0.25 * (1 - q) * 2 / sqrt(5), 0.25 * (1 - q) * -1 / sqrt(5)]
    assert tuned().tolist() == [pytest.approx(first, abs=1e-12), pytest.approx(second, abs=1e-12)]


def test_a_step_of_the_tuning_as_released_by_hand() -> None:
    # The margin is the distance of the two averaged rows, 2. Uploaded row 0: φ = 1 + 2 and √5 to the global rows.
    assert margin_of(ROWS, 100.0) == 2
    assert margin_of(ROWS, 0.5) == 0.5
    p = 1 / (1 + exp(3 - sqrt(5)))
    # Uploaded row 1: φ = 0 + 2 to its own, 2 to global row 0; its own distance has no gradient.
    q = 1 / (1 + 1)
    # Global row 0: own of the first: (0, -1), other of the second: (0 - 2)/2 = (-1, 0)
    first = [0.25 * (1 - q) * -1, -0.25 * (1 - p) * -1]
    # Global row 1: other of the first: (2, -1)/√5
    second = [2 + 0.25 * (1 - p) * 2 / sqrt(5), 0.25 * (1 - p) * -1 / sqrt(5)]
    found = tuned(anchor="uploaded", margin=100.0).tolist()
    assert found == [pytest.approx(first, abs=1e-12), pytest.approx(second, abs=1e-12)]


def test_the_nearest_other_row_makes_the_margin() -> None:
    rows = torch.tensor([[0.0], [1.0], [5.0]])  # nearest: 1, 1 and 4
    assert margin_of(rows, 100.0) == 4


@pytest.mark.parametrize("anchor", ["global", "uploaded"])
def test_tuning_lowers_its_loss(anchor: Any) -> None:
    stream = torch.Generator().manual_seed(1)
    local = torch.randn(3, 4, 6, generator=stream)
    rows = local.mean(dim=0)

    def loss(rows: Tensor) -> float:
        total = 0.0
        for m in range(3):
            for c in range(4):
                pairs = [(rows[c], local[m, d]) if anchor == "global" else (local[m, c], rows[d]) for d in range(4)]
                phi = [float((a - b).norm()) for a, b in pairs]
                total += phi[c] + log(sum(exp(-each) for each in phi))
        return total

    found = tuned_rows(rows, list(local), HeadTuning(20, lr=0.05, anchor=anchor), torch.Generator().manual_seed(0))
    assert loss(found) < loss(rows)


def test_a_method_tunes_the_weight_of_its_last_layer_only() -> None:
    data = federation([images(k, 9) for k in range(2)])
    train = Training(batch=4, lr=0.05)
    plain, tuned_one = (
        play_all(job(FedAvg(Supervised(), tune_head=epochs), data, normed(), train=train, rounds=1)).state.w
        for epochs in (0, 3)
    )
    head = normed().head
    assert head is not None
    assert {name for name in plain if not same({"": plain[name]}, {"": tuned_one[name]})} == {head.weight}


def test_tuning_needs_a_linear_last_layer() -> None:
    assert FedAvg(tune_head=1).needs.linear_head
    assert not FedAvg().needs.linear_head
    assert build("linear", (4,), 3).head is None
