"""Folds of the labels, and labels that clients hold out: nothing is lost, and nobody learns from what judges it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data import sources
from tacit.data.folds import with_all_labels, without_fold
from tacit.data.held_out import with_hold_out
from tacit.federation import Federation, Samples
from tacit.random import Streams
from tests import toys
from tests.engines.farm import write_images
from tests.refusals import refused

FOLDS = 5


def at_server(count: int = 20, group: bool = False) -> Federation:
    """Labels at the server, and clients without any; with groups, client samples belong to the server's groups."""
    found = toys.federation([toys.hide(toys.points(k, 8)) for k in range(3)], numbered(count))
    if not group:
        return found
    server = replace(found.server, labeled=replace(found.server.labeled, group=torch.arange(count) // 2))
    return replace(found, server=server, pool=replace(found.pool, group=torch.arange(24) % (count // 2)))


def numbered(count: int, start: int = 0) -> Samples:
    """Samples that can be told apart, of three classes."""
    x = torch.zeros(count, 4)
    x[:, 0] = torch.arange(start, start + count)
    return Samples(x, torch.arange(count) % 3)


def at_clients(group: bool = False) -> Federation:
    """Three clients with 10 labels and 5 other samples each."""
    parts = [toys.hide(numbered(15, 15 * k), 10) for k in range(3)]
    found = toys.federation(parts)
    return replace(found, pool=replace(found.pool, group=torch.arange(45) // 3)) if group else found


def held(federation: Federation) -> set[float]:
    """What clients and server train on, by the first number of a sample."""
    rows = federation.pool.x[federation.order][:, 0].tolist()
    return {*rows, *federation.server.labeled.x[:, 0].tolist()}


@pytest.mark.parametrize("make", [at_server, at_clients])
def test_every_label_is_held_out_once_and_trained_on_otherwise(make: object) -> None:
    whole = make()  # type: ignore[operator]
    tested: list[float] = []
    for fold in range(FOLDS):
        found = without_fold(whole, FOLDS, fold, Streams(0))
        own = found.test.x[:, 0].tolist()
        assert not held(found) & set(own) or make is at_server
        assert len(found.server.labeled) + len(found.test) == 20 or make is at_clients
        tested += own
    labels = whole.server.labeled if len(whole.server.labeled) else whole.pool.take(whole.pool.labeled)
    assert sorted(tested) == sorted(labels.x[:, 0].tolist())


def test_folds_have_the_classes_of_all_labels() -> None:
    for fold in range(FOLDS):
        counts = without_fold(at_server(30), FOLDS, fold, Streams(0)).test.y.bincount(minlength=3)
        assert counts.tolist() == [2, 2, 2]


def test_the_samples_of_a_group_are_on_one_side() -> None:
    whole = at_server(20, group=True)
    for fold in range(FOLDS):
        found = without_fold(whole, FOLDS, fold, Streams(0))
        assert found.test.group is not None
        assert found.server.labeled.group is not None
        assert found.pool.group is not None
        out = set(found.test.group.tolist())
        assert out
        assert not out & set(found.server.labeled.group.tolist())
        assert not out & set(found.pool.group[found.order].tolist())


def test_more_folds_than_labels_are_refused() -> None:
    with refused("data.too-many-folds"):
        without_fold(at_server(3), 5, 4, Streams(0))


def test_labels_that_a_reader_held_out_come_back(tmp_path: Path) -> None:
    write_images(tmp_path / "images.npz")
    with np.load(tmp_path / "images.npz") as file:
        x, y = file["x"], file["y"]
    np.savez(tmp_path / "alone.npz", x=x, y=y)
    found = sources.load(str(tmp_path / "alone.npz"))
    whole = with_all_labels(found)
    assert found.held_out
    assert (len(found.y_test), len(whole.y_test)) == (len(y) // 5, 0)
    assert sorted(whole.y.tolist()) == sorted(y.tolist())
    known = sources.load(str(tmp_path / "images.npz"))
    assert with_all_labels(known) is known


def test_groups_of_labels_that_come_back_stay_apart(tmp_path: Path) -> None:
    write_images(tmp_path / "images.npz")
    with np.load(tmp_path / "images.npz") as file:
        x, y = file["x"], file["y"]
    np.savez(tmp_path / "alone.npz", x=x, y=y, group=np.arange(len(y)) // 4)
    whole = with_all_labels(sources.load(str(tmp_path / "alone.npz")))
    assert whole.groups is not None
    assert whole.groups.bincount().tolist() == [4] * (len(y) // 4)


def test_clients_hold_out_a_share_of_their_labels() -> None:
    whole = at_clients()
    found = with_hold_out(whole, 0.2, Streams(0))
    for client in range(3):
        own = found.held_out_by(client)
        assert len(own) == 2
        assert (own.y >= 0).all()
        trains_on = found.client(client, 0)
        assert len(trains_on) == 13
        assert not set(own.x[:, 0].tolist()) & set(trains_on.x[:, 0].tolist())
    assert held(whole) == held(found) | {float(x) for k in range(3) for x in found.held_out_by(k).x[:, 0]}


def test_clients_hold_out_whole_groups_and_never_all_labels() -> None:
    found = with_hold_out(at_clients(group=True), 0.2, Streams(0))
    assert found.pool.group is not None
    assert found.held_out is not None
    out = set(found.pool.group[found.held_out.order].tolist())
    assert out
    assert not out & set(found.pool.group[found.order].tolist())
    alone = toys.federation([toys.hide(numbered(6), 1), toys.hide(numbered(6, 6), 0)])
    none = with_hold_out(alone, 0.9, Streams(0))
    assert [len(none.held_out_by(k)) for k in range(2)] == [0, 0]
    assert held(none) == held(alone)
