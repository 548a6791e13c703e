"""The form an upload must have, derived from the types its method declares; a client that sends another is left out."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tacit.method import Reply
from tacit.params import Sparse
from tacit.updates import MOST_SAMPLES, CountField, Facts, ModelField, Shaped, known_metrics

UNDECLARED = 8  # an upload with a field of unknown size may be this many times as large as the model …
SPARE = 1 << 20  # … plus this many bytes, which also holds the names and shapes of any message
METRICS = 64  # numbers that a client may log in a round
NAME = re.compile(r"\w[\w .:/+@%-]{0,63}", re.ASCII)  # of a metric
LARGEST = torch.finfo(torch.float32).max  # of a metric: it is computed from 32-bit numbers
SHARES = ("_accuracy", "_rate", "kept", "share", "_unknown")  # metrics with these endings lie between 0 and 1


class BadUploadError(ValueError):
    """An upload that does not have the declared form; the message says how it differs."""


@dataclass(frozen=True)
class UploadForm:
    """What the clients of a method may send."""

    facts: Facts

    @cached_property
    def declared(self) -> Any:
        """The declared type of an upload; `Any` where a method states none."""
        reply = _hints(type(self.facts.method).client_update).get("return", Any)
        return get_args(reply)[1] if get_origin(reply) is Reply else Any

    @cached_property
    def metrics(self) -> frozenset[str] | None:
        """The names that a client may log; None where a user's code declares none."""
        return known_metrics(self.facts.method)

    @cached_property
    def longest(self) -> int:
        """The largest number of bytes an upload can have."""
        declared = self._bytes(self.declared)
        model = sum(value.numel() * value.element_size() for value in self.example.values())
        return SPARE + (UNDECLARED * model if declared is None else declared)

    @cached_property
    def example(self) -> Mapping[str, Tensor]:
        """Some weights of the network, for names, shapes and types."""
        return self.facts.net.init(torch.Generator().manual_seed(0))

    def check(self, up: object, metrics: Mapping[str, float], held: int | None = None) -> None:
        """Raise BadUploadError unless an upload, or None, and its metrics have the declared form.

        `held` is the number of samples that the client holds, if it is known; an upload cannot stand for more.
        """
        if up is not None:
            self._check(up, self.declared, "")
        check_metrics(metrics, self.metrics)
        count = self.count(up)
        if held is not None and count is not None:
            _require(count <= held, "number of samples", f"is {count:,}, and the client holds {held:,}")

    def count(self, up: object) -> int | None:
        """How many samples an upload stands for; None if its form has no such field."""
        counts = [_sum(value) for _, value, note in self._noted(up, self.declared, "") if isinstance(note, CountField)]
        return max(counts) if counts else None

    def capped(self, up: Any, most: int) -> Any:
        """The upload, standing for at most this many samples."""
        if not is_dataclass(up) or isinstance(up, (type, Sparse)):
            return up
        changed = {}
        for item in fields(up):
            value = getattr(up, item.name)
            notes = _counts(_hints(type(up)).get(item.name))
            if notes:
                new = _lowered(value, most) if all(note.weight for note in notes) else value
            else:
                new = self.capped(value, most)
            if new is not value:
                changed[item.name] = new
        return replace(up, **changed) if changed else up

    def tensor_fields(self, up: object) -> Iterator[tuple[str, Any, Any]]:
        """Every field that holds a model or a tensor: its path, value and declaration."""
        for at, value, note in self._noted(up, self.declared, ""):
            if value is not None and not isinstance(note, CountField):
                yield at, value, note

    def _noted(self, value: object, hint: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
        """The fields of a checked upload whose declaration says what they are."""
        if get_origin(hint) in (Union, UnionType):
            for choice in get_args(hint):
                if type(value) is choice or (get_origin(choice) is Annotated and value is not None):
                    yield from self._noted(value, choice, at)
        elif get_origin(hint) is Annotated:
            yield from (
                (at, value, note) for note in get_args(hint)[1:] if isinstance(note, ModelField | Shaped | CountField)
            )
        elif isinstance(hint, type) and is_dataclass(hint) and type(value) is hint:
            for item in fields(hint):
                inner = getattr(value, item.name)
                yield from self._noted(inner, _hints(hint).get(item.name, Any), f"{at}.{item.name}".lstrip("."))

    def _check(self, value: object, hint: Any, at: str) -> None:
        if hint is Any or (isinstance(hint, type) and hint is object):
            return
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Annotated:
            self._check_annotated(value, hint, at)
        elif origin in (Union, UnionType):
            self._check_any_of(value, parts, at)
        elif origin is Literal:
            _require(value in parts, at, f"is not one of {', '.join(map(str, parts))}")
        elif origin is dict or hint is dict:
            _require(type(value) is dict, at, f"is a {type(value).__name__}, not a dict")
            key, item = parts or (Any, Any)
            for name, each in value.items():  # type: ignore[attr-defined]
                self._check(name, key, f"{at} key")
                self._check(each, item, f"{at}[{name!r}]"[:80])
        elif origin in (tuple, list):
            self._check_sequence(value, origin, parts, at)
        elif hint in (Tensor, Sparse):
            _require(isinstance(value, hint), at, f"is a {type(value).__name__}, not a {hint.__name__}")
        elif hint in (None, NoneType):
            _require(value is None, at, "is not None")
        elif isinstance(hint, type) and is_dataclass(hint):
            self._check_message(value, hint, at)
        elif isinstance(hint, type):
            _check_plain(value, hint, at)

    def _check_message(self, value: object, kind: type, at: str) -> None:
        _require(type(value) is kind, at, f"is a {type(value).__name__}, not a {kind.__name__}")
        hints = _hints(kind)
        for item in fields(kind):
            self._check(getattr(value, item.name), hints.get(item.name, Any), f"{at}.{item.name}".lstrip("."))
        for item in fields(kind):
            for other in (note.within for note in _counts(hints.get(item.name)) if note.within):
                part, whole = _sum(getattr(value, item.name)), _sum(getattr(value, other))
                _require(part <= whole, f"{at}.{item.name}".lstrip("."), f"is {part:,}, more than {other} = {whole:,}")

    def _check_any_of(self, value: object, choices: tuple[Any, ...], at: str) -> None:
        problems = []
        for choice in choices:
            try:
                return self._check(value, choice, at)
            except BadUploadError as error:
                problems.append(error)
        raise problems[0] if value is not None else problems[-1]

    def _check_sequence(self, value: object, origin: type, parts: tuple[Any, ...], at: str) -> None:
        _require(type(value) is origin, at, f"is a {type(value).__name__}, not a {origin.__name__}")
        items: tuple[Any, ...] = tuple(value)  # type: ignore[arg-type]
        endless = origin is list or parts[1:] == (...,)
        _require(endless or len(items) == len(parts), at, f"has {len(items)} items, not {len(parts)}")
        for place, item in enumerate(items):
            self._check(item, parts[0] if endless else parts[place], f"{at}[{place}]")

    def _check_annotated(self, value: object, hint: Any, at: str) -> None:
        kind, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, ModelField):
                return self._check_model(value, note, sparse=get_args(kind)[1:] == (Sparse,), at=at)
            if isinstance(note, Shaped):
                self._check_tensor(value, note, at)
                return _check_counts(value, at) if _counts(hint) else None
        try:
            _adapter(hint).validate_python(value, strict=True)
        except ValidationError as error:
            raise BadUploadError(f"{at or 'it'} is {_short(value)}: {error.errors()[0]['msg']}") from None

    def _check_model(self, value: object, note: ModelField, sparse: bool, at: str) -> None:
        net = self.facts.net
        _require(type(value) is dict, at, f"is a {type(value).__name__}, not a model")
        given: dict[Any, Any] = dict(value)  # type: ignore[call-overload]
        wanted = set(net.trainable if note.names == "trainable" else net.names)
        if strange := sorted(map(str, given.keys() - wanted)):
            raise BadUploadError(f"{at} has a tensor {strange[0][:60]!r}, which the network does not have")
        if note.names != "some" and (missing := sorted(wanted - given.keys())):
            raise BadUploadError(f"{at} lacks the tensor {missing[0]!r}")
        for name, each in given.items():
            like = self.example[name]
            where = f"{at}[{name!r}]"
            if sparse:
                _check_sparse(each, like, where)
            else:
                _require(isinstance(each, Tensor), where, f"is a {type(each).__name__}, not a tensor")
                _require(each.shape == like.shape, where, f"has shape {tuple(each.shape)}, not {tuple(like.shape)}")
                _require(each.dtype == like.dtype, where, f"has type {each.dtype}, not {like.dtype}")

    def _check_tensor(self, value: object, note: Shaped, at: str) -> None:
        _require(isinstance(value, Tensor), at, f"is a {type(value).__name__}, not a tensor")
        assert isinstance(value, Tensor)
        wanted = note.shape(self.facts)
        fits = value.dim() == len(wanted) and all(
            side <= note.longest if want is None else side == want
            for side, want in zip(value.shape, wanted, strict=True)
        )
        shown = tuple("any" if side is None else side for side in wanted)
        _require(fits, at, f"has shape {tuple(value.shape)}, not {shown}")
        _require(value.dtype == note.dtype, at, f"has type {value.dtype}, not {note.dtype}")
        least, most = note.bounds(self.facts)
        if value.numel() and (least, most) != (-math.inf, math.inf):
            low, high = value.min().item(), value.max().item()  # a NaN is not out of range: it is found later
            _require(not low < least, at, f"has a value of {low:g}, less than {least:g}")
            _require(not high > most, at, f"has a value of {high:g}, more than {most:g}")

    def _bytes(self, hint: Any) -> int | None:
        """The largest number of bytes that tensors of this type hold; None where nothing says."""
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._bytes_of_field(parts)
        if origin in (Union, UnionType):
            return _largest([self._bytes(part) for part in parts])
        if isinstance(hint, type) and is_dataclass(hint) and hint is not Sparse:
            return _total([self._bytes(_hints(hint).get(item.name, Any)) for item in fields(hint)])
        plain = hint in (None, NoneType, int, float, bool) or origin is Literal
        return 0 if plain else None

    def _bytes_of_field(self, parts: tuple[Any, ...]) -> int | None:
        for note in parts[1:]:
            if isinstance(note, ModelField):
                per_entry = 2 if get_args(parts[0])[1:] == (Sparse,) else 1  # a position of at most four bytes as well
                return per_entry * sum(value.numel() * value.element_size() for value in self.example.values())
            if isinstance(note, Shaped):
                sides = [note.longest if side is None else side for side in note.shape(self.facts)]
                return math.prod(sides) * note.dtype.itemsize
        return self._bytes(parts[0])


@cache
def _hints(thing: Any) -> dict[str, Any]:
    """The annotations of a class or function, read once: every upload needs them.

    A user's annotation may name what is imported for type checkers only; then nothing is declared.
    """
    try:
        return get_type_hints(thing, include_extras=True)
    except NameError:
        return {}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """The validator of an annotated type, built once."""
    return TypeAdapter(hint)


def check_metrics(metrics: Mapping[str, float], known: frozenset[str] | None = None) -> None:
    """Raise BadUploadError unless these are numbers that a client can have logged, under known names if there are some.

    A loss may be NaN or infinite.
    """
    _require(len(metrics) <= METRICS, "metrics", f"are {len(metrics)}, more than {METRICS}")
    for name, value in metrics.items():
        _require(NAME.fullmatch(name) is not None, "a metric", "has no plain name")
        _require(known is None or name in known, f"metric {name!r}", "is not one that its method logs")
        _require(type(value) is float, name, f"is a {type(value).__name__}, not a number")
        if name == "steps":
            _require(math.isfinite(value) and 0 <= value <= 1e12, name, f"is {value}, not a number of steps")
        elif name.endswith(SHARES) and not math.isnan(value):
            _require(0 <= value <= 1, name, f"is {value}, not a share")
        else:
            _require(not LARGEST < abs(value) < math.inf, name, f"is {value}, larger than any 32-bit number")


def _check_sparse(value: object, like: Tensor, at: str) -> None:
    _require(isinstance(value, Sparse), at, f"is a {type(value).__name__}, not sparse changes")
    assert isinstance(value, Sparse)
    index, given = value.index, value.value
    _require(all(isinstance(part, Tensor) for part in (index, given)), at, "holds no tensors")
    _require(tuple(value.shape) == tuple(like.shape), at, f"has shape {_short(value.shape)}")
    _require(index.dtype == torch.int64 and given.dtype == like.dtype, at, f"has type {given.dtype}, not {like.dtype}")
    _require(index.dim() == 1 and index.shape == given.shape, at, "does not have one value per position")
    if len(index):
        inside = int(index[0]) >= 0 and int(index[-1]) < like.numel() and bool((index[1:] > index[:-1]).all())
        _require(inside, at, "has positions outside the tensor or out of order")


def _counts(hint: Any) -> list[CountField]:
    """What a declaration says about a number of samples; nothing if it is for something else."""
    return [note for note in get_args(hint)[1:] if isinstance(note, CountField)]


def _sum(count: int | Tensor) -> int:
    """How many samples a checked field stands for."""
    return int(count.sum()) if isinstance(count, Tensor) else count


def _lowered(count: int | Tensor, most: int) -> int | Tensor:
    """The field, standing for at most this many samples; the parts of a tensor keep their shares, rounded down."""
    if _sum(count) <= most:
        return count
    return (count.double() * (most / _sum(count))).floor().to(count.dtype) if isinstance(count, Tensor) else most


def _check_counts(value: object, at: str) -> None:
    """Numbers of samples in a tensor; the sum of doubles does not overflow."""
    assert isinstance(value, Tensor)
    _require(not (value < 0).any(), at, "has a negative number of samples")
    total = float(value.double().sum())
    _require(total <= MOST_SAMPLES, at, f"stands for {total:.3g} samples, more than anyone has")


def _check_plain(value: object, kind: type, at: str) -> None:
    right = type(value) is kind or (kind is float and type(value) is int)
    _require(right, at, f"is a {type(value).__name__}, not a {kind.__name__}")


def _require(condition: bool, at: str, problem: str) -> None:
    if not condition:
        raise BadUploadError(f"{at or 'it'} {problem}")


def _largest(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _total(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
