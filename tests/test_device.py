"""Every method and objective on a second device: nothing of the CPU meets its tensors, and no step waits for it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch

from tacit.data.views.augment import ImageViews
from tacit.engines.job import Job
from tacit.learn import Batch, batching, training
from tacit.method import Training, Variant
from tacit.methods import scaffold
from tacit.nets import Net, build
from tacit.objectives import OBJECTIVES
from tacit.runs import registry
from tests.second_device import DEVICE, MeetingError, SecondDevice
from tests.toys import federation, hide, images, job

VIEWS = ImageViews((0.5,), (0.25,), flip=True)
TRAIN = Training(batch=4, lr=0.05, steps=2, clip=5.0, weight_decay=1e-3)
# Settings that reach more code than the defaults: labels from the first round on, every term with a weight.
METHOD: dict[str, dict[str, Any]] = {
    "anchor": {"threshold": 0.4, "mu": 0.1, "bootstrap": 2},
    "cbafed": {"warmup_epochs": 1, "base": 0.2, "every": 1, "labeled_epochs": 1},
    "feddb": {"threshold": 0.4, "over": "global"},
    "fedmatch": {"threshold": 0.4, "refresh": 1},
    "fedmix": {"group": 2},
    "fedseal": {"bootstrap": 1, "theta": 0.3},
    "fl2": {"threshold": 0.3, "sure": 0.3, "pretrain": 1},
    "proxyfl": {"threshold": 0.4, "tune_head": 1},
    "rscfed": {"warmup": 0, "members": 2},
    "sage": {"threshold": 0.4},
    "semifl": {"threshold": 0.4},
    "ssfl": {"period": 2},
    "fedrgd": {"period": 2},
}
OBJECTIVE: dict[str, dict[str, Any]] = {
    "pseudo-label": {"threshold": 0.3, "class_weights": "balanced", "debias": True},
    "fixmatch": {"threshold": 0.3, "labeler": "confident", "labeler_beta": 0.5},
    "uda": {"threshold": 0.3},
    "flexmatch": {"threshold": 0.4, "consistency": 0.1},
    "freematch": {"debias": True},
    "openmatch": {"threshold": 0.3, "ova_threshold": 0.5},
}

# Objectives and methods whose steps wait, and for what: samples that a prediction leaves out cost no time in the next
# pass, so the CPU has to know how many are left.
WAITS = {
    "freematch": {"item", "mask as index"},
    "fedmatch": {"nonzero"},
    "fedseal": {"nonzero"},
    "fl2": {"item", "mask as index"},
}


def cases() -> Iterator[tuple[str, str]]:
    """Methods with each of their objectives, and where the labels are."""
    for name, kind in registry.methods().items():
        composed = any(item.name == "objective" for item in fields(Variant.of(kind).kind))
        needs = registry.build_method(f"{name}+fixmatch" if composed else name, {}, {}).needs
        if composed and not needs.server_labels:
            yield from ((f"{name}+{objective}", "client") for objective in OBJECTIVES)
            continue
        yield from (
            (f"{name}+fixmatch" if composed else name, place)
            for place, refused in (("client", needs.server_labels), ("server", needs.client_labels))
            if not refused
        )


@cache
def net(one_vs_all: bool) -> Net:
    """Small, with features and with batch statistics."""
    return build("lenet", (1, 16, 16), 3, "batch", width=0.5, one_vs_all=one_vs_all)


def prepared(name: str, place: str, device: torch.device) -> Job:
    """Clients with ten images each, on a device; one client if the method does not look at several."""
    first, _, second = name.partition("+")
    method = registry.build_method(name, METHOD.get(first, {}), OBJECTIVE.get(second, {}))
    clients = [hide(images(k, 10), 4 if place == "client" else 0) for k in range(1 if second else 2)]
    server = images(5, 6) if place == "server" else None
    data = federation(clients, server, validation=images(7, 6), views=VIEWS)
    given = job(method, data, net(second == "openmatch"), train=TRAIN, server_train=TRAIN, rounds=4, device=device)
    context = given.server(0, {})
    given.net.apply(context.initial(), torch.zeros(1, 1, 16, 16, device=device))  # moves the counters of BatchNorm
    return given


def outcome(given: Job, rounds: int) -> tuple[bytes, list[Any]]:
    """All states, memories and uploads as bytes, and what the clients logged."""
    method, memories, left = given.method, dict[int, Any](), list[Any]()
    state, metrics = method.start(given.server(0, {})), list[Any]()
    for round in range(rounds):
        server, ups = given.server(round, {}), {}
        state, downs = method.send(server, state)
        for client, down in downs.items():
            reply = method.client_update(given.client(round, client), memories.get(client), down)
            memories[client], ups[client] = reply.memory, reply.up
            metrics.append(dict(reply.metrics))
        left += [dict(memories), dict(ups)]
        state = method.merge(server, state, {client: up for client, up in ups.items() if up is not None})
        left.append(state)
    return given.codec.encode(left), metrics


@pytest.mark.parametrize("name, place", list(cases()))
def test_a_method_computes_on_its_device_and_no_step_waits_for_it(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, second = name.partition("+")
    rounds = 2 if first == "fedavg" or second in ("", "fixmatch") else 1  # a second visit has memories
    expected, logged = outcome(prepared(name, place, torch.device("cpu")), rounds)
    waits, real = Counter[str](), batching.batches
    with SecondDevice() as device:

        def counted(*args: Any, **options: Any) -> Iterator[Batch]:
            for batch in real(*args, **options):
                before = device.waits.copy()
                yield batch
                waits.update(device.waits - before)

        for module in (training, scaffold):
            monkeypatch.setattr(module, "batches", counted)
        given = prepared(name, place, DEVICE)
        found, found_logged = outcome(given, rounds)
    assert waits.keys() <= WAITS.get(first, set()) | WAITS.get(second, set())
    assert found == expected
    assert found_logged == logged


def test_a_tensor_of_the_cpu_may_not_meet_one_of_the_device() -> None:
    with SecondDevice():
        far = torch.ones(3, device=DEVICE)
        assert (far + torch.tensor(1.0)).device == DEVICE  # torch takes single numbers from the CPU
        meetings: list[Callable[[], torch.Tensor]] = [
            lambda: far + torch.ones(3),
            lambda: torch.cat([far, torch.ones(3)]),
            lambda: far[torch.arange(2)],
        ]
        for meet in meetings:
            with pytest.raises(MeetingError):
                meet()


def test_what_makes_the_cpu_wait_is_counted() -> None:
    with SecondDevice() as device:
        far = torch.arange(4.0).to(DEVICE)
        bool((far > 1).any()), far.sum().item(), far.tolist(), far.cpu(), far[far > 1]
    assert device.waits == {"to the device": 1, "item": 2, "cpu": 2, "mask as index": 1}


def test_samples_move_once_per_visit() -> None:
    given = prepared("fedavg+supervised", "client", DEVICE)
    many = replace(given, train=replace(TRAIN, batch=1, steps=9))
    with pytest.MonkeyPatch.context() as patch, SecondDevice() as device:
        patch.setattr(batching, "BLOCK_BYTES", 1)  # every batch is a block of its own
        for _ in batching.batches(many.client(0, 0), labels_only=True):
            pass
    assert device.waits == {"to the device": 2}  # inputs and labels
