"""Messages as bytes and back, without pickle: frozen dataclasses of tensors, arrays, scalars, strings, containers.

A message has parts: JSON that describes its tree, and the raw values of its tensors, named by their place in it.
Encoded, these follow each other after a four-byte length. Decoding builds only the dataclasses the codec was given:
a stranger's bytes can choose among those that the method's module knows, its messages and what it imports, and the
values of their fields; no other code is run.
"""

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.params import Sparse

_TORCH_TYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}


class WireError(TacitError, ValueError):
    """Bytes that are not a message this codec knows, or a value that can not travel."""


@dataclass(frozen=True)
class Values:
    """One tensor, or one half of a sparse one: its type, shape and raw bytes."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Parts:
    """A message taken apart: its tree as JSON, and its values by name, in the order the tree asks for them."""

    tree: str
    values: Mapping[str, Values]

    def __len__(self) -> int:
        """Number of bytes of the encoded message: what is counted as traffic."""
        return 4 + len(self.tree.encode()) + sum(len(value.data) for value in self.values.values())


@dataclass(frozen=True)
class Codec:
    """Encodes and decodes the dataclasses in `types`, by name."""

    types: Mapping[str, type]

    @classmethod
    def of(cls, method: object) -> "Codec":
        """The codec of a method: every dataclass its module, or that of a class it builds on, defines or imports.

        `Sparse` has a form of its own.
        """
        modules = [vars(sys.modules[kind.__module__]) for kind in reversed(type(method).__mro__)]
        things = [thing for module in modules for thing in module.values()]
        kinds = [thing for thing in things if isinstance(thing, type) and is_dataclass(thing)]
        return cls({kind.__name__: kind for kind in kinds if kind is not Sparse})

    def encode(self, message: object) -> bytes:
        """The message as bytes; `len` of it is what is counted as traffic."""
        parts = self.take_apart(message)
        header = parts.tree.encode()
        return b"".join([struct.pack("<I", len(header)), header, *(value.data for value in parts.values.values())])

    def decode(self, data: bytes | bytearray | memoryview, device: torch.device | None = None) -> Any:
        """The message these bytes encode, its tensors on `device`."""
        with _strangeness():
            (size,) = struct.unpack_from("<I", data)
            if 4 + size > len(data):
                raise WireError("not a message: it ends too early")
            return self._build(bytes(memoryview(data)[4 : 4 + size]), memoryview(data)[4 + size :], device)

    def take_apart(self, message: object) -> Parts:
        """The message in parts, for carriers that name what they carry."""
        values: dict[str, Values] = {}
        try:
            tree = json.dumps(self._pack(message, "", values), separators=(",", ":"))
        except WireError:
            raise
        except (ValueError, RecursionError) as error:
            raise WireError(f"this message can not travel: use fewer digits or fewer levels ({error})") from error
        return Parts(tree, values)

    def put_together(self, parts: Parts, device: torch.device | None = None) -> Any:
        """The message these parts are of, its tensors on `device`."""
        with _strangeness():
            return self._build(parts.tree, memoryview(b"".join(v.data for v in parts.values.values())), device)

    def _build(self, tree: str | bytes, data: memoryview, device: torch.device | None) -> Any:
        reader = _Reader(data, device)
        message = self._unpack(json.loads(tree), reader)
        reader.finish()
        return message

    def _pack(self, value: object, at: str, values: dict[str, Values]) -> object:
        """One node of the tree; what tensors hold goes to `values`. A list is a node with a tag in front."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return ["t", *_put(value, at, values)]
        if isinstance(value, np.ndarray):
            return ["n", *_put(_from_numpy(value), at, values)]
        if isinstance(value, Sparse):
            return ["s", *_put_sparse(value, at, values)]
        if type(value) is dict:
            items = value.items()
            return ["d", [[self._pack(k, f"{at}key", values), self._pack(v, f"{at}/{k}", values)] for k, v in items]]
        if type(value) is tuple or type(value) is list:  # exactly: a NamedTuple would arrive as something else
            packed = [self._pack(item, f"{at}/{place}", values) for place, item in enumerate(value)]
            return ["l" if isinstance(value, list) else "u", packed]
        if self.types.get(type(value).__name__) is type(value):
            names = [item.name for item in fields(value)]  # type: ignore[arg-type]
            packed_fields = {name: self._pack(getattr(value, name), f"{at}/{name}", values) for name in names}
            return ["c", type(value).__name__, packed_fields]
        raise WireError(
            f"a {type(value).__name__} can not travel: use tensors, numbers, strings, plain lists, tuples and dicts of "
            "these, or dataclasses of the method's own module"
        )

    def _unpack(self, node: Any, reader: "_Reader") -> Any:
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        match node:
            case ["t", kind, shape]:
                return reader.tensor(kind, shape)
            case ["n", kind, shape]:
                return reader.tensor(kind, shape).cpu().numpy()
            case ["s", kind, shape, how, count]:
                return reader.sparse(kind, shape, how, count)
            case ["d", items]:
                return {self._unpack(key, reader): self._unpack(item, reader) for key, item in items}
            case ["l", items]:
                return [self._unpack(item, reader) for item in items]
            case ["u", items]:
                return tuple(self._unpack(item, reader) for item in items)
            case ["c", str(name), dict(values)] if name in self.types:
                return self.types[name](**{key: self._unpack(item, reader) for key, item in values.items()})
        raise WireError(f"not a message: unknown node {str(node)[:60]}")


@contextmanager
def _strangeness() -> Iterator[None]:
    """What strange bytes set off in json, numpy, torch or a message's own checks, in one kind of error."""
    try:
        yield
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"not a message: {error}") from error


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors and numbers in a message, for checks that concern every value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, np.ndarray):
        yield _from_numpy(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from tensors(getattr(value, item.name))


def finite(message: object) -> bool:
    """Whether every number in a message is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors(message))


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A copy in the form torch takes: writable, and in this machine's byte order."""
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise WireError(f"an array of {array.dtype} can not travel: use one of {', '.join(_TORCH_TYPES)}") from None


def _raw(tensor: Tensor) -> bytes:
    dense = tensor.detach().cpu().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # one element counts as contiguous whatever its stride
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _keep(at: str, value: Values, values: dict[str, Values]) -> None:
    """Under its place in the tree; keys may hold slashes, so that two places can have the same name."""
    name = at.removeprefix("/") or "value"
    values[name if name not in values else f"{name}#{len(values)}"] = value


def _put(tensor: Tensor, at: str, values: dict[str, Values]) -> tuple[str, list[int]]:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _TORCH_TYPES or tensor.layout != torch.strided:
        raise WireError(f"a {kind} tensor like this can not travel: use a dense one of {', '.join(_TORCH_TYPES)}")
    _keep(at, Values(kind, tuple(tensor.shape), _raw(tensor)), values)
    return kind, list(tensor.shape)


def _put_sparse(sparse: Sparse, at: str, values: dict[str, Values]) -> tuple[str, list[int], str, int]:
    """Positions as a bitmap or as numbers, whichever is smaller, then the values."""
    size, count = math.prod(sparse.shape), len(sparse.index)
    index = sparse.index.cpu().numpy()
    if not _ascending(index, size) or sparse.value.shape != (count,):
        raise WireError("a Sparse like this can not travel: use ascending positions inside its shape, a value for each")
    how = _index_type(size)
    if (size + 7) // 8 < count * np.dtype(how).itemsize:
        bits = np.zeros(size, dtype=bool)
        bits[index] = True
        how, positions = "bitmap", np.packbits(bits).tobytes()
    else:
        positions = index.astype(how).tobytes()
    _keep(f"{at}/positions", Values(how, (size if how == "bitmap" else count,), positions), values)
    kind, _ = _put(sparse.value, f"{at}/values", values)
    return kind, list(sparse.shape), how, count


def _index_type(size: int) -> str:
    """The smallest unsigned integer that can point anywhere in a tensor of this size."""
    return "<u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4" if size <= 1 << 32 else "<u8"


def _ascending(index: np.ndarray[Any, Any], size: int) -> bool:
    """Whether positions ascend within a tensor of this size: a bitmap could not hold others."""
    inside = not len(index) or (index[0] >= 0 and int(index[-1]) < size)
    return bool(inside and (index[1:] > index[:-1]).all())


def _size(shape: Any) -> int:
    """The number of entries, in integers that do not overflow."""
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise WireError(f"not a message: {str(shape)[:60]} is no shape")
    return math.prod(shape)


class _Reader:
    """Takes the raw values of a message one after the other."""

    def __init__(self, data: memoryview, device: torch.device | None) -> None:
        self._data, self._at, self._device = data, 0, device

    def take(self, size: int) -> bytearray:
        part = bytearray(self._data[self._at : self._at + size])
        if size < 0 or len(part) != size:
            raise WireError("not a message: it ends too early")
        self._at += size
        return part

    def finish(self) -> None:
        """Nothing may be left over."""
        if self._at != len(self._data):
            raise WireError("not a message: it goes on after its end")

    def tensor(self, kind: str, shape: list[int]) -> Tensor:
        """A tensor in memory of its own: unaligned views could take other code paths and give other bits."""
        dtype = _TORCH_TYPES[kind]
        count = _size(shape)
        if not count:
            return torch.empty(shape, dtype=dtype, device=self._device)
        flat = torch.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)
        return flat.clone().reshape(shape).to(self._device or "cpu")

    def sparse(self, kind: str, shape: list[int], how: str, count: int) -> Sparse:
        size = _size(shape)
        if how == "bitmap":
            bits = np.frombuffer(self.take((size + 7) // 8), dtype=np.uint8)
            index = np.flatnonzero(np.unpackbits(bits, count=size))
        elif how == _index_type(size):
            index = np.frombuffer(self.take(count * np.dtype(how).itemsize), dtype=how)
        else:
            raise WireError(f"not a message: positions of type {how}")
        if len(index) != count or not _ascending(index, size):
            raise WireError("not a message: sparse positions do not fit the shape")
        positions = torch.from_numpy(index.astype(np.int64)).to(self._device or "cpu")
        return Sparse(tuple(shape), positions, self.tensor(kind, [count]))
