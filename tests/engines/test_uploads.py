"""A malformed upload costs its sender the round and nobody else, for every method."""

import math
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from tacit.aggregation import WeightsUp
from tacit.aggregation.heads import ClassMeans
from tacit.engines import failures, merging
from tacit.engines.events import round_records
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientNews, ClientOutcome, ClientResult, ClientTask, Job, RunState
from tacit.engines.memory import Memories
from tacit.engines.record import RoundRecord
from tacit.engines.rounds import run_rounds
from tacit.engines.upload_form import BadUploadError, UploadForm, check_metrics
from tacit.engines.uploads import Uploads
from tacit.engines.wire import WireError
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import FedMixUp, Means
from tacit.methods.moon import Moon
from tacit.objectives import FixMatch, FreeMatch
from tacit.params import Sparse
from tacit.updates import COMMON_METRICS, CountField, Shaped, known_metrics
from tests.test_contract import NAMES, build_job, placed, supported

BAD = 1  # the client that sends it, whenever it is in the cohort


@dataclass(frozen=True)
class Stranger:
    """A message class that no method declares."""

    w: int = 0


def every_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The message with its first tensor changed."""
    return _first(value, change)[0]


def _first(value: Any, change: Callable[[Tensor], Any]) -> tuple[Any, bool]:
    if isinstance(value, Tensor):
        return change(value), True
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Sparse):
        return replace(value, value=change(value.value)), True
    if isinstance(value, Mapping):
        items = list(value.items())
    elif is_dataclass(value):
        items = [(item.name, getattr(value, item.name)) for item in fields(value)]
    for key, item in items:
        changed, done = _first(item, change)
        if done:
            return ({**value, key: changed} if isinstance(value, Mapping) else replace(value, **{key: changed})), True
    return value, False


def in_dict(value: Any, change: Callable[[dict[Any, Any]], dict[Any, Any]]) -> Any:
    """The message with its first non-empty dictionary changed."""
    if isinstance(value, dict) and value:
        return change(value)
    if is_dataclass(value) and not isinstance(value, Sparse):
        for item in fields(value):
            before = getattr(value, item.name)
            after = in_dict(before, change)
            if after is not before:
                return replace(value, **{item.name: after})  # type: ignore[type-var]
    return value


def in_count(value: Any, change: Any) -> Any:
    """The message with its number of samples replaced."""
    if is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            inner = getattr(value, item.name)
            if item.name == "n":
                return replace(value, n=change)
            if in_count(inner, change) is not inner:
                return replace(value, **{item.name: in_count(inner, change)})
    return value


def in_field(value: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """The message with the fields of this name changed, at any depth."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    for item in fields(value):
        before = getattr(value, item.name)
        after = change(before) if item.name == name and before is not None else in_field(before, name, change)
        if after is not before:
            value = replace(value, **{item.name: after})
    return value


def far_outside(value: Any) -> Any:
    """A tensor of huge values; anything else as it is, such as a model by the same name."""
    return torch.full_like(value, 1e9) if isinstance(value, Tensor) else value


def in_whole_numbers(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The message with every tensor of whole numbers changed."""
    if isinstance(value, Tensor):
        return change(value) if value.dtype == torch.int64 and value.numel() else value
    if is_dataclass(value) and not isinstance(value, (type, Sparse)):
        for item in fields(value):
            before = getattr(value, item.name)
            after = in_whole_numbers(before, change)
            if after is not before:
                value = replace(value, **{item.name: after})
    return value


def out_of_range(value: Any) -> Any:
    """The message with a sparse position behind the end of its tensor."""
    if isinstance(value, Sparse):
        return replace(value, index=torch.tensor([10**9]), value=value.value.new_ones(1))
    if isinstance(value, Mapping) and value:
        name = next(iter(value))
        changed = out_of_range(value[name])
        return value if changed is value[name] else {**value, name: changed}
    if is_dataclass(value):
        for item in fields(value):
            before = getattr(value, item.name)
            if before is not None and out_of_range(before) is not before:
                return replace(value, **{item.name: out_of_range(before)})  # type: ignore[type-var]
    return value


KINDS: dict[str, Callable[[Any], Any]] = {
    "another class": lambda up: Stranger(),
    "a tensor of another shape": lambda up: every_tensor(up, lambda t: torch.cat([t.reshape(-1), t.new_zeros(1)])),
    "a tensor of another type": lambda up: every_tensor(up, lambda t: t.half()),
    "a number for a tensor": lambda up: every_tensor(up, lambda t: 3),
    "a missing tensor": lambda up: in_dict(up, lambda d: dict(list(d.items())[1:])),
    "an extra tensor": lambda up: in_dict(up, lambda d: {**d, "stranger": torch.zeros(2)}),
    "a list for a dictionary": lambda up: in_dict(up, lambda d: list(d.values())),  # type: ignore[arg-type, return-value]
    "a word for a count": lambda up: in_count(up, "many"),
    "a negative count": lambda up: in_count(up, -(10**6)),
    "a count beyond all samples": lambda up: in_count(up, 2**60),
    "a fraction for a count": lambda up: in_count(up, 1.5),
    "negative counts": lambda up: in_whole_numbers(up, lambda t: torch.full_like(t, -(10**6))),
    "counts of which one is negative": lambda up: in_whole_numbers(
        up, lambda t: torch.cat([t.new_tensor([-1]), t[1:] + 1])
    ),
    "counts beyond the client's samples": lambda up: in_whole_numbers(up, lambda t: t + 100),
    "counts whose sum overflows": lambda up: in_whole_numbers(up, lambda t: torch.full_like(t, 2**62)),
    "label shares below zero": lambda up: in_field(up, "y", lambda t: torch.full_like(t, -1e9)),
    "label shares above one": lambda up: in_field(up, "y", lambda t: t + 1.01),
    "means outside the range of pixels": lambda up: in_field(up, "x", far_outside),
    "more labels than samples": lambda up: in_field(up, "labeled", lambda n: up.n + 1),
    "a sparse position out of range": out_of_range,
    "deep nesting": lambda up: every_tensor(up, lambda t: [[[[t]]]]),
}


class BadClient(InProcessTransport):
    """One client's uploads are malformed, or the same uploads are lost."""

    def __init__(self, job: Job, change: Callable[[Any], Any], lost: bool) -> None:
        super().__init__(job, strict=True)
        self.change, self.lost, self.sent = change, lost, 0

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for news in super().run(round, tasks):
            yield (news[0], self._changed(*news)) if isinstance(news, tuple) else news

    def _changed(self, client: int, outcome: ClientOutcome) -> ClientOutcome:
        if client != BAD or not isinstance(outcome, ClientResult) or outcome.up is None:
            return outcome
        bad = self.change(outcome.up)
        if bad is outcome.up:
            return outcome
        self.sent += 1
        return failures.upload_lost() if self.lost else replace(outcome, up=bad)


def played(
    name: str, place: str, change: Callable[[Any], Any], lost: bool = False
) -> tuple[bytes, list[RoundRecord], BadClient]:
    """Three rounds with that client, and everything they came to as bytes."""
    job = build_job(name, place)
    transport = BadClient(job, change, lost)
    state = RunState(Memories(Path(), limit=sys.maxsize))
    records = list(round_records(run_rounds(job, transport, state)))
    memories = [state.memories.get(client) for client in range(job.federation.clients)]
    everything = b"|".join([job.codec.encode(state.state), *(memory or b"" for memory in memories)])
    return everything, records, transport


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_upload_counts_as_no_upload(name: str) -> None:
    place, tried = supported(name)[0], 0
    for kind, change in KINDS.items():
        bits, records, transport = played(name, place, change)
        if not transport.sent:  # this method's uploads have nothing of that kind
            continue
        tried += 1
        without, absent, _ = played(name, place, change, lost=True)
        assert bits == without, kind
        for one, other in zip(records, absent, strict=True):
            assert one.skipped.keys() == other.skipped.keys() <= {BAD}, kind
            assert (one.accuracy, one.loss, one.steps) == (other.accuracy, other.loss, other.steps), kind
        codes = {code for record in records for code in record.codes.values()}
        assert codes <= {"client.bad-upload"}, kind
    assert tried or not uploads_anything(name, place)


# The kinds that are about numbers of samples and ranges, and the methods whose uploads have such fields.
OUT_OF_BOUNDS = {
    "negative counts": {"fed3r", "fedcof", "fedncm", "fedmix", "naivemix", "globalmix"},
    "counts beyond the client's samples": {"fed3r", "fedcof", "fedncm", "fedmix", "naivemix", "globalmix"},
    "label shares below zero": {"fedmix", "naivemix", "globalmix"},
    "means outside the range of pixels": {"fedmix", "naivemix", "globalmix"},
    "more labels than samples": {"anchor"},
}


@pytest.mark.parametrize("kind, names", OUT_OF_BOUNDS.items())
def test_numbers_out_of_bounds_are_tried_with_every_method_that_has_them(kind: str, names: set[str]) -> None:
    for name in names:
        place = supported(name)[0]
        sent: list[Any] = []
        played(name, place, lambda up, sent=sent: sent.append(up) or up)  # type: ignore[misc]
        form, bad = build_job(name, place).upload_form, [(up, KINDS[kind](up)) for up in sent]
        changed = [new for up, new in bad if new is not up]
        assert changed, name
        for up in changed:
            with pytest.raises(BadUploadError):
                form.check(up, {}, len(placed(place).client(BAD, 0)))


def tensor_notes(hint: Any) -> Iterator[tuple[Any, ...]]:
    """The notes of every declared tensor in a type."""
    if get_origin(hint) is Annotated:
        yield get_args(hint)[1:]
    elif get_args(hint):
        yield from (notes for part in get_args(hint) for notes in tensor_notes(part))
    elif is_dataclass(hint):
        yield from (
            notes for part in get_type_hints(hint, include_extras=True).values() for notes in tensor_notes(part)
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_tensor_of_whole_numbers_has_bounds(name: str) -> None:
    form = build_job(name, supported(name)[0]).upload_form
    for notes in tensor_notes(form.declared):
        shaped = next((note for note in notes if isinstance(note, Shaped)), None)
        if shaped is not None and not shaped.dtype.is_floating_point:
            counted = any(isinstance(note, CountField) for note in notes)
            assert counted or all(map(math.isfinite, shaped.bounds(form.facts)))


def test_a_cap_lowers_the_counts_of_classes_by_their_shares() -> None:
    form = build_job("fedncm", "client").upload_form
    up = ClassMeans(torch.zeros(3, 2), torch.tensor([6, 3, 0]))
    assert form.count(up) == 9
    assert form.capped(up, 9) is up
    assert form.capped(up, 3).counts.tolist() == [2, 1, 0]


def test_a_cap_leaves_the_sizes_of_groups() -> None:
    form = build_job("fedmix", "client").upload_form
    means = Means(torch.zeros(1, 1, 2, 2), torch.zeros(1, 3), torch.tensor([6]))
    capped = form.capped(FedMixUp(WeightsUp({}, 6), means), 3)
    assert (capped.trained.n, capped.means.of.tolist()) == (3, [6])


# Their state holds what every client sent last.
REMEMBER = {"fedmatch", "fedmix", "naivemix", "globalmix", "fedcof", "fedncm"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REMEMBER])
def test_a_round_is_merged_with_few_uploads_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    class Counted(Uploads):
        def __getitem__(self, client: int) -> Any:
            nonlocal most
            up = deepcopy(super().__getitem__(client))
            every_tensor(up, alive.add)
            most = max(most, len(alive))
            return up

    monkeypatch.setattr(merging, "Uploads", Counted)
    job = replace(build_job(name, supported(name)[-1]), cohort=4)
    records = list(
        round_records(run_rounds(job, InProcessTransport(job), RunState(Memories(Path(), limit=sys.maxsize))))
    )
    assert all(not record.skipped for record in records)
    assert most <= 2  # the sum has one of them at hand while the next is decoded


def uploads_anything(name: str, place: str) -> bool:
    """Whether the clients of a method upload anything."""
    _, records, _ = played(name, place, lambda up: up)
    return any(record.bytes_up for record in records)


@pytest.mark.parametrize(
    "metrics",
    [
        {"steps": -1.0},
        {"steps": float("inf")},
        {"pseudo_kept": 1.5},
        {"local_accuracy": -0.1},
        {"a\nb": 1.0},
        {"x" * 65: 1.0},
        {f"m{k}": 0.0 for k in range(65)},
        {"loss_supervised": -1e300},
    ],
)
def test_impossible_metrics_are_refused(metrics: dict[str, float]) -> None:
    with pytest.raises(BadUploadError):
        check_metrics(metrics)


def test_a_loss_may_be_nan() -> None:
    check_metrics({"loss_supervised": float("nan"), "steps": 3.0, "pseudo_kept": 0.5})


@dataclass(frozen=True)
class Own:
    """An objective outside the package."""

    inner: FixMatch = FixMatch()


@dataclass(frozen=True)
class Declared(Own):
    logs = ("loss_own",)


def test_clients_log_only_names_that_their_method_declares() -> None:
    plain, adaptive = known_metrics(FedAvg(FixMatch())), known_metrics(Moon(FreeMatch()))
    assert plain == COMMON_METRICS
    assert adaptive == COMMON_METRICS | {"loss_contrast", "loss_l2", "threshold"}
    with pytest.raises(BadUploadError, match="metric 'threshold' is not one that its method logs"):
        check_metrics({"steps": 1.0, "threshold": 0.5}, plain)
    check_metrics({"steps": 1.0, "threshold": 0.5}, adaptive)


def test_a_users_code_logs_anything_until_it_declares_names() -> None:
    own: Any = Own()
    declared: Any = Declared()
    assert known_metrics(FedAvg(own)) is None
    assert known_metrics(FedAvg(declared)) == COMMON_METRICS | {"loss_own"}


def test_wire_errors_are_not_bad_uploads() -> None:
    assert not issubclass(WireError, BadUploadError)


def test_annotations_that_only_a_type_checker_can_read_declare_nothing() -> None:
    job = build_job("fedavg", "client")

    def update(self: object, client: object, memory: object, down: object) -> "Reply[None, Unimportable]":  # type: ignore[name-defined]  # noqa: F821
        raise AssertionError

    class Mine:
        client_update = update

    form = UploadForm(replace(job.upload_form.facts, method=Mine()))
    form.check(Stranger(), {"steps": 1.0})
    assert form.longest > 0
