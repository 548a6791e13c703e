"""What every method of the package guarantees; `registry.methods()` finds them all."""

import gc
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.data import sources
from tacit.data.federate import federate
from tacit.data.inputs import ImageInputs
from tacit.data.sources import Source
from tacit.data.split.config import DataConfig
from tacit.data.split.split import Split
from tacit.engines.job import Job
from tacit.engines.wire import finite
from tacit.federation import Federation, Samples
from tacit.method import ClientContext, Method, Reply, ServerContext, Training
from tacit.nets import Net
from tacit.params import equal
from tacit.runs import build as builds
from tacit.runs import config as configs
from tacit.runs import registry
from tests.engines import farm
from tests.refusals import refused
from tests.toys import Played, federation, hide, images, job, normed, play_all, resumed, started, text, visit

PLACES = ("client", "server", "some", "all")
NAMES = list(registry.methods())


def method(name: str, **settings: Any) -> Method[Any, Any, Any, Any]:
    """The method; if it takes an objective, with one that uses unlabeled data from the first round on."""
    if registry.method_kinds(name)[1] is None:
        return registry.build_method(name, settings, {})
    return registry.build_method(f"{name}+fixmatch", settings, {"threshold": 0.4})


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
    """The label placements that a method can work with."""
    needs = method(name).needs
    return [
        place
        for place in PLACES
        if not (needs.client_labels and place == "server") and not (needs.server_labels and place != "server")
    ]


def build_job(name: str, place: str, seed: int = 0, **settings: Any) -> Job:
    """Two of the four clients per round; momentum and buffers are carried between rounds if the method allows it."""
    keep = Training(batch=4, lr=0.05, optimizer="keep", buffers="keep")
    given = method(name, **settings)
    train = replace(keep, optimizer="reset") if given.needs.fresh_momentum else keep
    return job(given, placed(place), net(), cohort=2, seed=seed, train=train, server_train=keep)


@cache
def played(name: str, place: str, seed: int = 0, strict: bool = True) -> tuple[bytes, Played]:
    """A run of three rounds, its final state and memories as bytes."""
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
def test_a_method_runs(name: str, place: str) -> None:
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
def test_the_same_seed_gives_the_same_bits_with_and_without_encoding(name: str, place: str) -> None:
    wired, direct = played(name, place, strict=True), played(name, place, strict=False)
    assert wired[0] == direct[0]
    for one, two in zip(wired[1].records, direct[1].records, strict=True):
        assert replace(one, seconds=0) == replace(two, seconds=0)


@everywhere
def test_another_seed_gives_other_bits(name: str, place: str) -> None:
    assert played(name, place, seed=1)[0] != played(name, place)[0]


# What a run leaves behind, stored after two of three rounds and continued from the disk.


@everywhere
def test_resume_gives_the_same_bits(name: str, place: str, tmp_path: Path) -> None:
    given = build_job(name, place)
    assert given.codec.encode(resumed(given, tmp_path, stop=2)) == played(name, place)[0]


# Settings whose states or memories hold more than those of the defaults.
RICHER = [
    ("anchor", "server", {"precision": 0.3, "bootstrap": 30, "threshold": 0.4}),
    ("anchor", "some", {"share": 0.7, "threshold": 0.4, "least_steps": 9, "mu": 0.1}),
    ("cbafed", "some", {"warmup_epochs": 7, "base": 0.2, "every": 1, "labeled_epochs": 2}),
    ("fedavg", "client", {"server_optimizer": "adam:0.05", "tune_head": 2}),
    ("fedavg", "server", {"server_optimizer": "momentum:1:0.5", "server": "after"}),
    ("feddb", "client", {"over": "global", "threshold": 0.4}),
    ("feddb", "server", {"over": "global", "prior": "server", "threshold": 0.4}),
    ("fedmatch", "client", {"preset": "as-released", "threshold": 0.4, "refresh": 1}),
    ("fedmix", "client", {"group": 2, "server_optimizer": "yogi:0.05"}),
    ("fedseal", "server", {"bootstrap": 2, "theta": 0.3}),
    ("fedsem", "client", {"phase1_share": 0.3, "server_optimizer": "momentum"}),
    ("fedsiam-d", "client", {"phi_g": 1}),
    ("fl2", "server", {"preset": "as-released", "threshold": 0.9, "sure": 0.4, "pretrain": 2}),
    ("proxyfl", "client", {"preset": "as-released", "threshold": 0.4, "tune_head": 2, "server_optimizer": "adam"}),
    ("moon", "client", {"mu": 5.0, "tune_head": 1}),
    ("rscfed", "some", {"warmup": 1, "members": 2, "weight": 1.0, "beta": 10.0}),
    ("rscfed", "client", {"preset": "as-released", "warmup": 0, "boost_sizes": True}),
    ("sage", "client", {"preset": "as-released", "threshold": 0.4}),
    ("semifl", "server", {"alternate": False, "threshold": 0.4}),
    ("fedrgd", "server", {"preset": "as-released", "period": 3}),
]


@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize("name, place, settings", RICHER)
def test_resume_gives_the_same_bits_with_other_settings(
    name: str, place: str, settings: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    given = build_job(name, place, **settings)
    whole = play_all(given)
    uninterrupted = given.codec.encode((whole.state, dict(whole.memories)))
    assert given.codec.encode(resumed(given, tmp_path, stop)) == uninterrupted


class Squashed(nn.Module):
    """A network with features whose answers are not linear in them."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(shape), classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, z: Tensor) -> Tensor:
        return torch.tanh(self.fc(z))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


# What a method needs, and the code of the refusal before anything is written.

FINE: dict[str, Any] = {
    "data.validation": 12,
    "clients": 3,
    "per_class": 2,
    "net": "lenet",
    "workers": 0,
}
STREAMING: dict[str, Any] = {"data.stream_steps": 2, "data.rounds_per_step": 2}
BATCHNORM: dict[str, Any] = {"net": "resnet9", "net.width": 0.1, "net.norm": "batch"}
SQUASHED = "tests.test_contract:Squashed"
FROM_LABELS = ["easgd", "fedavg", "fedprox", "local-only", "moon", "overlap-sgd", "scaffold"]
UNMET: list[tuple[str, dict[str, Any], str]] = [
    *((f"{name}+supervised", {"labels": "server"}, "method.needs-client-labels") for name in FROM_LABELS),
    *((name, {"labels": "server"}, "method.needs-client-labels") for name in ("fedmix", "globalmix", "localmix")),
    ("local-only+fixmatch", {"labels": "server"}, "method.needs-client-labels"),
    *(
        (name, {"labels": "client"}, "method.needs-server-labels")
        for name in ("fedrgd", "fedseal", "fl2", "semifl", "server-only", "ssfl")
    ),
    ("feddb", {"labels": "client", "method.prior": "server"}, "method.needs-server-labels"),
    ("fedseal", {"labels": "server", "data.validation": 0}, "method.needs-validation"),
    ("moon", {"labels": "client", "net": "linear"}, "method.needs-features"),
    *(
        (name, {"labels": "client", "train.optimizer": "keep"}, "method.needs-fresh-momentum")
        for name in ("fedmatch", "scaffold")
    ),
    *(
        (name, {"labels": "client", "train.buffers": "recompute"} | BATCHNORM, "method.needs-averaged-buffers")
        for name in ("fedmatch", "fedsiam-d", "fedsiam-mt", "fedsiam-pi")
    ),
    *((name, {"labels": "server"} | STREAMING, "method.needs-steady-data") for name in ("fedseal", "fedsem")),
    ("globalmix", {"labels": "client", "engine": "flower"}, "method.simulation-only"),
    *(
        (name, {"labels": "client", "net": SQUASHED}, "method.needs-linear-head")
        for name in ("fed3r", "fedcof", "fedncm")
    ),
    ("logreg", {"labels": "server", "net": SQUASHED}, "method.needs-linear-head"),
]


@pytest.mark.parametrize("name, options, code", UNMET)
def test_a_run_without_what_the_method_needs_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], code: str
) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    config = configs.from_options({**FINE, "data": data, "method": name, **options})
    with refused(code):
        builds.build_job(config)


MET: list[tuple[str, dict[str, Any]]] = [
    *((f"{name}+fixmatch", {"labels": "server"}) for name in FROM_LABELS if name != "local-only"),
    ("fedseal", {"labels": "server", "data.validation": 0, "method.threshold": 0.7}),
    ("fedmix", {"labels": "client", "engine": "flower"}),
]


@pytest.mark.parametrize("name, options", MET)
def test_a_run_with_what_the_method_needs_is_not_refused(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    data = str(farm.write_images(tmp_path / "images.npz"))
    builds.build_job(configs.from_options({**FINE, "data": data, "method": name, **options}))


@pytest.mark.parametrize("name", ["fedmix", "naivemix", "localmix", "globalmix", "semifl", "fedavg+mixup"])
def test_methods_and_objectives_that_mix_images_refuse_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "load", lambda *of: text())
    labels = {"labels": "server", "per_class": 2} if name == "semifl" else {"labels": "all"}
    options: dict[str, Any] = {"data": "shakespeare", "net": "lstm", "clients": 3, **labels}
    builds.build_job(configs.from_options(options | {"method": "ssfl" if name == "semifl" else "fedavg"}))
    with refused("method.needs-mixable-samples"):
        builds.build_job(configs.from_options(options | {"method": name}))


# Messages, one by one: a round as the engine plays it, with every argument and result.


@dataclass(frozen=True)
class Call:
    """A call of one of the five functions: its arguments, copies of them made before, and its result."""

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
def test_a_method_does_not_change_its_arguments(name: str, place: str) -> None:
    for call in calls(name, place):
        assert alike(call.given, call.before), call.function


@everywhere
def test_equal_messages_are_one_object(name: str, place: str) -> None:
    """The engine encodes an object once, however many clients it goes to."""
    codec = build_job(name, place).codec
    for call in calls(name, place):
        if call.function == "send":
            downs = call.result[1].values()
            assert len({id(down) for down in downs}) == len({codec.encode(down) for down in downs})


@everywhere
def test_the_engine_and_a_round_by_hand_agree(name: str, place: str) -> None:
    """So a method persists nothing but its results, and the tests above saw what the engine sees."""
    assert alike(calls(name, place)[-1].result, played(name, place)[1].state)


@everywhere
def test_the_order_of_clients_does_not_matter(name: str, place: str) -> None:
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
        if not subset and model is not None and place == "client":  # a server with labels may train alone
            assert alike(model, given.method.model(state))


# Hidden labels. The true label of every hidden sample is 77 and nothing else is, so a 77 is a leak.

SECRET = 77


def hiding_place(place: str) -> Federation:
    """A federation as the package builds it, four samples each for two clients, the hidden labels marked."""
    y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 1])
    shown = np.isin(np.arange(10), {"client": [0, 4], "server": []}[place])
    y[:8][~shown[:8]] = SECRET
    x = torch.zeros(10, 1, 16, 16, dtype=torch.uint8)
    classes = tuple(map(str, range(SECRET + 1)))
    inputs = ImageInputs((1, 16, 16), (0.5,), (0.5,))
    source = Source("hidden", x, torch.from_numpy(y), x[:2], torch.tensor([0, 1]), classes, inputs)
    server = np.array([8] if place == "server" else [], dtype=np.int64)
    return federate(source, Split([np.arange(4), np.arange(4, 8)], shown, server, np.array([9])), DataConfig())


def contexts(place: str) -> list[ClientContext | ServerContext]:
    given = job(method("fedavg"), hiding_place(place), net())
    return [given.server(0, {}), *(given.client(0, k) for k in (0, 1))]


def reachable(root: object) -> Iterator[Tensor]:
    """All numbers that can be reached from an object: attributes, items, closures, bound objects, whole storages.

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
def test_hidden_labels_cannot_be_reached_from_a_context(place: str) -> None:
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
def test_a_leak_by_any_route_is_found(route: str) -> None:
    way: Any = ROUTES[route]
    for context in contexts("client"):
        assert leaks(replace(context, views=way))


def test_a_client_gets_copies_of_its_own_samples_only() -> None:
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
