"""Patches: both sides agree on what the peer holds, message after message."""

from math import nan

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.aggregation.patches import changes, scalars, updated, without_small
from tacit.params import Params, equal


def model(*numbers: float) -> Params:
    return {"a": torch.tensor(numbers[:2]), "b": torch.tensor([numbers[2:]])}


def test_entries_that_changed_by_more_than_the_threshold_travel() -> None:
    held, new = model(1.0, 2.0, 3.0), model(1.0, 2.5, 3.25)
    patch = changes(new, held, 0.25)
    assert scalars([patch]) == 1
    assert equal(updated(held, patch), model(1.0, 2.5, 3.0))
    assert scalars([changes(new, held, 0.0), changes(new, new, 0.0)]) == 2


def test_a_peer_that_holds_nothing_gets_every_entry_but_zeros() -> None:
    new = model(1e-9, 0.0, 3.0)
    patch = changes(new, None, 0.5)
    assert scalars([patch]) == 2
    assert equal(updated(None, patch), new)


@given(
    st.lists(st.tuples(*[st.floats(-1, 1, width=32)] * 3), min_size=1, max_size=5),
    st.sampled_from([0.0, 1e-5, 0.25]),
)
@settings(max_examples=50, deadline=None)
def test_the_peer_is_never_further_away_than_the_threshold(sequence: list[tuple[float, ...]], threshold: float) -> None:
    at_sender: Params | None = None
    at_peer: Params | None = None
    for numbers in sequence:
        patch = changes(model(*numbers), at_sender, threshold)
        at_sender, at_peer = updated(at_sender, patch), updated(at_peer, patch)
        assert equal(at_sender, at_peer)
        assert all((at_peer[name] - value).abs().max() <= threshold for name, value in model(*numbers).items())


def test_small_entries_become_zero_and_nan_stays() -> None:
    small = without_small(model(0.1, -0.1, nan), 0.1)
    assert equal(small, model(0.0, 0.0, nan))
    same = model(0.1, 0.2, 0.3)
    assert without_small(same, 0.0) is same
