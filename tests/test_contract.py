"""What every method in the catalog keeps, whoever wrote it: `catalog.methods()` finds it, and these tests run it."""

import gc
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit import catalog
from tacit.data.scenario import Scenario, Split
from tacit.data.scenario import federation as real_federation
from tacit.data.sources import Source
from tacit.engines.loop import Job
from tacit.engines.wire import finite
from tacit.federation import Federation, Samples
from tacit.method import ClientContext, Method, Reply, ServerContext, Training
from tacit.nets import Net
from tacit.params import equal
from tests.toys import Played, federation, hide, images, job, normed, play_all, started, visit

PLACES = ("client", "server", "some", "all")
NAMES = list(catalog.methods())


def method(name: str) -> Method[Any, Any, Any, Any]:
    """The method; where it can be composed, with an objective that uses unlabeled data from the first round on."""
    if catalog.method_kinds(name)[1] is None:
        return catalog.build_method(name, {}, {})
    return catalog.build_method(f"{name}+fixmatch", {}, {"threshold": 0.4})


@cache
def net() -> Net:
    """Small, with features and with batch statistics."""
    return normed()


def placed(place: str) -> Federation:
    """Four clients with nine images each, and labels in one of four places."""
    everyone = [images(k, 9) for k in range(4)]
    truth = torch.cat([each.y for each in everyone])
    shown = {"client": [3, 3, 3, 3], "server": [0, 0, 0, 0], "some": [9, 0, 0, 0], "all": [9, 9, 9, 9]}[place]
    clients = [hide(each, count) for each, count in zip(everyone, shown, strict=True)]
    server = images(50, 6) if place == "server" else None
    return federation(clients, server, images(60, 12), validation=images(70, 6), truth=truth)


def supported(name: str) -> list[str]:
    needs = method(name).needs
    return [
        place
        for place in PLACES
        if not (needs.client_labels and place == "server") and not (needs.server_labels and place != "server")
    ]


def build_job(name: str, place: str, seed: int = 0) -> Job:
    """Two of the four clients per round; whatever may be kept between rounds is kept."""
    keep = Training(batch=4, lr=0.05, optimizer="keep", buffers="keep")
    reset = method(name).needs.fresh_momentum
    train = replace(keep, optimizer="reset") if reset else keep
    return job(method(name), placed(place), net(), cohort=2, seed=seed, train=train, server_train=keep)


@cache
def played(name: str, place: str, seed: int = 0, strict: bool = True) -> tuple[bytes, Played]:
    """A run of three rounds, and everything it came to as bytes."""
    given = build_job(name, place, seed)
    result = play_all(given, strict)
    return given.codec.encode((result.state, dict(result.memories))), result


def frozen(thing: Any) -> bool:
    kind: Any = type(thing)
    return is_dataclass(thing) and bool(kind.__dataclass_params__.frozen)


everywhere = pytest.mark.parametrize("name, place", [(name, place) for name in NAMES for place in supported(name)])


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_frozen_dataclass_of_hyper_parameters(name: str) -> None:
    given: Any = method(name)
    assert frozen(given)
    assert vars(given).keys() == {item.name for item in fields(given)}
    with pytest.raises(FrozenInstanceError):
        given.something = 1
    assert supported(name)


@everywhere
def test_it_runs(name: str, place: str) -> None:
    given = build_job(name, place)
    _, result = played(name, place)
    assert len(result.records) == 3
    for record in result.records:
        assert record.skipped == {}
        accuracy = record.local_accuracy if record.accuracy is None else record.accuracy
        assert accuracy is not None
        assert 0 <= accuracy <= 1
        assert record.loss is None or math.isfinite(record.loss)
    model = given.method.model(result.state)
    assert (model is None) == (result.records[-1].accuracy is None)
    if model is not None:
        assert finite(model)
        assert model.keys() == set(given.net.names)
    begin = given.codec.encode((started(given), {}))
    assert played(name, place)[0] != begin  # something was learned


@everywhere
def test_the_same_seed_gives_the_same_bits_through_the_wire_or_not(name: str, place: str) -> None:
    wired, direct = played(name, place, strict=True), played(name, place, strict=False)
    assert wired[0] == direct[0]
    for one, two in zip(wired[1].records, direct[1].records, strict=True):
        assert replace(one, seconds=0) == replace(two, seconds=0)


@everywhere
def test_another_seed_gives_other_bits(name: str, place: str) -> None:
    assert played(name, place, seed=1)[0] != played(name, place)[0]


# Messages, one by one: a round as the engine plays it, every argument and result at hand.


@dataclass(frozen=True)
class Call:
    """One of the five functions, what it was given, copies made before, and what it gave."""

    function: str
    given: tuple[Any, ...]
    before: tuple[Any, ...]
    result: Any


@cache
def calls(name: str, place: str) -> list[Call]:
    given = build_job(name, place)
    made: list[Call] = []

    def call(function: str, context: Any, *arguments: Any) -> Any:
        before = deepcopy(arguments)
        result = getattr(given.method, function)(context, *arguments)
        made.append(Call(function, arguments, before, result))
        return result

    state, memories = call("start", given.server(0, {})), dict[int, Any]()
    for round in range(3):
        server = given.server(round, {})
        state, downs = call("send", server, state)
        ups: dict[int, Any] = {}
        for k, down in sorted(downs.items()):
            reply = call("client_update", given.client(round, k), memories.get(k), down)
            memories[k] = reply.memory
            ups |= {} if reply.up is None else {k: reply.up}
        state = call("merge", server, state, ups)
    return made


def alike(a: Any, b: Any) -> bool:
    """Same types, same structure, same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return equal({"": a}, {"": b})
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if is_dataclass(a):
        return all(alike(getattr(a, item.name), getattr(b, item.name)) for item in fields(a))
    return bool(a == b)


def messages(made: list[Call]) -> Iterator[Any]:
    """Every state, memory, down and up."""
    for call in made:
        match call.result:
            case Reply(memory=memory, up=up):
                yield from (message for message in (memory, up) if message is not None)
            case (state, Mapping() as downs):
                yield from (state, *downs.values())
            case state:
                yield state


@everywhere
def test_messages_are_frozen_dataclasses_and_survive_the_codec(name: str, place: str) -> None:
    codec = build_job(name, place).codec
    for message in messages(calls(name, place)):
        assert frozen(message)
        assert alike(codec.decode(codec.encode(message)), message)


@everywhere
def test_arguments_are_left_alone(name: str, place: str) -> None:
    for call in calls(name, place):
        assert alike(call.given, call.before), call.function


@everywhere
def test_clients_that_are_told_the_same_get_the_same_message(name: str, place: str) -> None:
    """Couriers encode an object once, however many clients it goes to."""
    codec = build_job(name, place).codec
    for call in calls(name, place):
        if call.function == "send":
            downs = call.result[1].values()
            assert len({id(down) for down in downs}) == len({codec.encode(down) for down in downs})


@everywhere
def test_the_engine_and_a_round_by_hand_agree(name: str, place: str) -> None:
    """So nothing but arguments and results carries over, and the tests above saw what the engine sees."""
    assert alike(calls(name, place)[-1].result, played(name, place)[1].state)


@everywhere
def test_clients_do_not_hear_each_other(name: str, place: str) -> None:
    given = build_job(name, place)
    server = given.server(0, {})
    _, downs = given.method.send(server, given.method.start(server))
    forth, back = ({k: visit(given, k, downs[k]) for k in order} for order in (sorted(downs), sorted(downs)[::-1]))
    for k in downs:
        assert alike((forth[k].up, forth[k].memory), (back[k].up, back[k].memory))


@everywhere
def test_any_subset_may_arrive(name: str, place: str) -> None:
    given = build_job(name, place)
    server = given.server(0, {})
    state, downs = given.method.send(server, given.method.start(server))
    ups = {k: visit(given, k, down).up for k, down in sorted(downs.items())}
    for subset in ({}, *({k: up} for k, up in ups.items() if up is not None)):
        model = given.method.model(given.method.merge(server, state, subset))
        assert model is None or finite(model)
        if not subset and model is not None and place == "client":  # a server with labels may train on alone
            assert alike(model, given.method.model(state))


# Hidden labels. The true label of every hidden sample is 77 here and nothing else is, so finding it is finding 77.

SECRET = 77


def hiding_place(place: str) -> Federation:
    """A federation as the package itself builds it, four samples each for two clients, hidden ones marked."""
    y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 1])
    shown = np.isin(np.arange(10), {"client": [0, 4], "server": []}[place])
    y[:8][~shown[:8]] = SECRET
    x = torch.zeros(10, 1, 16, 16, dtype=torch.uint8)
    classes = tuple(map(str, range(SECRET + 1)))
    source = Source("hidden", x, torch.from_numpy(y), x[:2], torch.tensor([0, 1]), classes, (0.5,), (0.5,), flip=False)
    server = np.array([8] if place == "server" else [], dtype=np.int64)
    return real_federation(source, Split([np.arange(4), np.arange(4, 8)], shown, server, np.array([9])), Scenario())


def contexts(place: str) -> list[ClientContext | ServerContext]:
    given = job(method("fedavg"), hiding_place(place), net())
    return [given.server(0, {}), *(given.client(0, k) for k in (0, 1))]


def reachable(root: object) -> Iterator[Tensor]:
    """All numbers one can get to from an object: attributes, items, closures, bound objects, whole storages.

    Not through modules and the globals of functions: from there every object of the process can be reached.
    """
    globals_of_modules = {id(vars(module)) for module in list(sys.modules.values())}
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        foreign = isinstance(item, type) and not item.__module__.startswith(("tacit", "tests"))
        if id(item) in seen or id(item) in globals_of_modules or foreign or isinstance(item, (ModuleType, FrameType)):
            continue
        seen[id(item)] = item
        if isinstance(item, Tensor):
            yield torch.empty(0, dtype=item.dtype).set_(item.untyped_storage())
        elif isinstance(item, np.ndarray) and item.dtype != object:
            yield torch.from_numpy(item)
        waiting.extend(gc.get_referents(item))


def leaks(root: object) -> bool:
    return any(bool((numbers == SECRET).any()) for numbers in reachable(root))


@pytest.mark.parametrize("place", ["client", "server"])
def test_hidden_labels_can_not_be_reached_from_a_context(place: str) -> None:
    assert leaks(hiding_place(place))  # the simulator knows them
    for context in contexts(place):
        assert not leaks(context)
        assert any(True for _ in reachable(context))


@dataclass(frozen=True)
class Holds:
    """Anything, as an attribute."""

    thing: object

    def method(self, name: str, value: float) -> None:
        """Something to be bound."""


def closing_over(secret: object) -> Callable[[], object]:
    return lambda: secret


TRUTH = torch.full((4,), SECRET)

ROUTES: dict[str, object] = {
    "attribute": Holds(TRUTH),
    "containers": {"a": [({1: TRUTH},)]},
    "key": {("a", closing_over(TRUTH)): 1},
    "closure": closing_over(TRUTH),
    "closure over a federation": closing_over(hiding_place("client")),
    "default": lambda secret=TRUTH: secret,
    "bound method": Holds(TRUTH).method,
    "bound builtin": {"a": TRUTH}.__setitem__,
    "partial": partial(print, TRUTH),
    "array": TRUTH.numpy(),
    "a slice of a longer tensor": torch.cat([torch.zeros(4, dtype=torch.int64), TRUTH])[:4],
    "an iterator": iter([TRUTH]),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_way_to_a_hidden_label_would_be_found(route: str) -> None:
    way: Any = ROUTES[route]
    for context in contexts("client"):
        assert leaks(replace(context, views=way))


def test_a_clients_samples_are_copies_of_its_own_alone() -> None:
    given = job(method("fedavg"), hiding_place("client"), net())
    client = given.client(0, 0)
    assert isinstance(client.data, Samples)
    assert client.data.y.tolist() == [0, -1, -1, -1]
    for tensor in (client.data.x, client.data.y):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    client.data.y.fill_(2)
    assert given.client(0, 0).data.y.tolist() == [0, -1, -1, -1]


def test_contexts_are_read_only() -> None:
    for context in contexts("client"):
        with pytest.raises(FrozenInstanceError):
            context.round = 5  # type: ignore[misc]
