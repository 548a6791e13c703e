"""Messages as bytes and back, without pickle: frozen dataclasses of tensors, arrays, scalars, strings, containers.

A message has parts: JSON that describes its tree, and the raw values of its tensors, named by their path in the tree.
The encoded form is a four-byte length, the JSON, then the values. Decoding builds only the dataclasses that the codec
was given: bytes from outside can choose among those in the method's module (its messages and what it imports) and
set the values of their fields; they can run no other code.
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
from tacit.per_client import PerClient

_TORCH_TYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}


class WireError(TacitError, ValueError):
    """Bytes that are not a message this codec knows, or a value that cannot be sent."""


@dataclass(frozen=True)
class Values:
    """One tensor, or one half of a sparse one: its type, shape and raw bytes."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Parts:
    """A message in parts: its tree as JSON, and its values by name, in the order of the tree."""

    tree: str
    values: Mapping[str, Values]

    def __len__(self) -> int:
        """The number of bytes of the encoded message, which counts as traffic."""
        return 4 + len(self.tree.encode()) + sum(len(value.data) for value in self.values.values())


@dataclass(frozen=True)
class Codec:
    """Encodes and decodes the dataclasses in `types`, by name."""

    types: Mapping[str, type]

    @classmethod
    def of(cls, method: object) -> "Codec":
        """The codec of a method: every dataclass that its module, or that of a base class, defines or imports.

        `Sparse` is left out, since it has its own encoding.
        """
        modules = [vars(sys.modules[kind.__module__]) for kind in reversed(type(method).__mro__)]
        things = [thing for module in modules for thing in module.values()]
        kinds = [thing for thing in things if isinstance(thing, type) and is_dataclass(thing)]
        return cls({kind.__name__: kind for kind in kinds if kind is not Sparse})

    def encode(self, message: object) -> bytes:
        """The message as bytes; their number counts as traffic."""
        parts = self.to_parts(message)
        header = parts.tree.encode()
        return b"".join([struct.pack("<I", len(header)), header, *(value.data for value in parts.values.values())])

    def decode(self, data: bytes | bytearray | memoryview, device: torch.device | None = None) -> Any:
        """The message that these bytes encode, with its tensors on `device`."""
        with _refusing():
            (size,) = struct.unpack_from("<I", data)
            if 4 + size > len(data):
                raise _not_a_message("it ends too early")
            return self._build(bytes(memoryview(data)[4 : 4 + size]), memoryview(data)[4 + size :], device)

    def to_parts(self, message: object) -> Parts:
        """The message in parts, for transports that send named arrays."""
        values: dict[str, Values] = {}
        try:
            tree = json.dumps(self._pack(message, "", values), separators=(",", ":"))
        except WireError:
            raise
        except (ValueError, RecursionError) as error:
            raise WireError(
                f"this message cannot be sent ({error})", "use fewer digits or fewer levels", code="wire.too-large"
            ) from error
        return Parts(tree, values)

    def from_parts(self, parts: Parts, device: torch.device | None = None) -> Any:
        """The message that these parts belong to, with its tensors on `device`."""
        with _refusing():
            return self._build(parts.tree, memoryview(b"".join(v.data for v in parts.values.values())), device)

    def _build(self, tree: str | bytes, data: memoryview, device: torch.device | None) -> Any:
        reader = _Reader(data, device)
        message = self._unpack(json.loads(tree), reader)
        reader.finish()
        return message

    def _pack(self, value: object, at: str, values: dict[str, Values]) -> object:
        """One node of the tree; the contents of tensors go to `values`. A list is a node that begins with a tag."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return ["t", *_add_tensor(value, at, values)]
        if isinstance(value, np.ndarray):
            return ["n", *_add_tensor(_from_numpy(value), at, values)]
        if isinstance(value, Sparse):
            return ["s", *_add_sparse(value, at, values)]
        if type(value) is dict or isinstance(value, PerClient):
            tag = "d" if type(value) is dict else "p"
            items = value.items()
            return [tag, [[self._pack(k, f"{at}key", values), self._pack(v, f"{at}/{k}", values)] for k, v in items]]
        if type(value) is tuple or type(value) is list:  # not a subclass: a NamedTuple would arrive as a plain tuple
            packed = [self._pack(item, f"{at}/{index}", values) for index, item in enumerate(value)]
            return ["l" if isinstance(value, list) else "u", packed]
        if self.types.get(type(value).__name__) is type(value):
            names = [item.name for item in fields(value)]  # type: ignore[arg-type]
            packed_fields = {name: self._pack(getattr(value, name), f"{at}/{name}", values) for name in names}
            return ["c", type(value).__name__, packed_fields]
        raise WireError(
            f"a {type(value).__name__} cannot be sent",
            "use tensors, numbers, strings, plain lists, tuples and dicts of these, or dataclasses that the method's "
            "module defines or imports",
            code="wire.unsupported-type",
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
            case ["p", items]:
                return PerClient({int(key): self._unpack(item, reader) for key, item in items})
            case ["l", items]:
                return [self._unpack(item, reader) for item in items]
            case ["u", items]:
                return tuple(self._unpack(item, reader) for item in items)
            case ["c", str(name), dict(values)] if name in self.types:
                return self.types[name](**{key: self._unpack(item, reader) for key, item in values.items()})
        raise _not_a_message(f"unknown node {str(node)[:60]}")


def _not_a_message(reason: object) -> WireError:
    return WireError(f"not a message: {reason}", code="wire.not-a-message")


@dataclass(frozen=True)
class Encoded:
    """A message as it arrived, decoded when it is needed: many large ones at once would not fit into memory."""

    content: bytes | Parts
    codec: Codec
    device: torch.device

    def __len__(self) -> int:
        """Number of bytes."""
        return len(self.content)

    def decode(self) -> Any:
        """The message; raises WireError if it is none."""
        if isinstance(self.content, Parts):
            return self.codec.from_parts(self.content, self.device)
        return self.codec.decode(self.content, self.device)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn any error that bytes from outside cause in json, numpy, torch or a message's own checks into a WireError."""
    try:
        yield
    except WireError:
        raise
    except Exception as error:
        raise _not_a_message(error) from error


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors and floating-point numbers in a message, for checks of every value."""
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
    """A copy that torch accepts: writable, and in this machine's byte order."""
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise WireError(
            f"an array of {array.dtype} cannot be sent",
            f"use one of {', '.join(_TORCH_TYPES)}",
            code="wire.unsupported-dtype",
        ) from None


def _raw(tensor: Tensor) -> bytes:
    dense = tensor.detach().cpu().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # a single element is contiguous with any stride
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _add(at: str, value: Values, values: dict[str, Values]) -> None:
    """Add a value under its path in the tree; keys may contain slashes, so two paths can have the same name."""
    name = at.removeprefix("/") or "value"
    values[name if name not in values else f"{name}#{len(values)}"] = value


def _add_tensor(tensor: Tensor, at: str, values: dict[str, Values]) -> tuple[str, list[int]]:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _TORCH_TYPES or tensor.layout != torch.strided:
        raise WireError(
            f"a {kind} tensor like this cannot be sent",
            f"use a dense one of {', '.join(_TORCH_TYPES)}",
            code="wire.unsupported-dtype",
        )
    _add(at, Values(kind, tuple(tensor.shape), _raw(tensor)), values)
    return kind, list(tensor.shape)


def _add_sparse(sparse: Sparse, at: str, values: dict[str, Values]) -> tuple[str, list[int], str, int]:
    """Add the positions, as a bitmap or as numbers, whichever is smaller, then the values."""
    size, count = math.prod(sparse.shape), len(sparse.index)
    index = sparse.index.cpu().numpy()
    if not _ascending(index, size) or sparse.value.shape != (count,):
        raise WireError(
            "a Sparse like this cannot be sent",
            "use ascending positions inside its shape and one value for each",
            code="wire.malformed-sparse",
        )
    how = _index_type(size)
    if (size + 7) // 8 < count * np.dtype(how).itemsize:
        bits = np.zeros(size, dtype=bool)
        bits[index] = True
        how, positions = "bitmap", np.packbits(bits).tobytes()
    else:
        positions = index.astype(how).tobytes()
    _add(f"{at}/positions", Values(how, (size if how == "bitmap" else count,), positions), values)
    kind, _ = _add_tensor(sparse.value, f"{at}/values", values)
    return kind, list(sparse.shape), how, count


def _index_type(size: int) -> str:
    """The smallest unsigned integer type that can index a tensor of this size."""
    return "<u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4" if size <= 1 << 32 else "<u8"


def _ascending(index: np.ndarray[Any, Any], size: int) -> bool:
    """Whether positions ascend within a tensor of this size; a bitmap cannot hold others."""
    inside = not len(index) or (index[0] >= 0 and int(index[-1]) < size)
    return bool(inside and (index[1:] > index[:-1]).all())


def _size(shape: Any) -> int:
    """The number of entries, computed in integers that do not overflow."""
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise _not_a_message(f"{str(shape)[:60]} is not a shape")
    return math.prod(shape)


class _Reader:
    """Reads the raw values of a message one after the other."""

    def __init__(self, data: memoryview, device: torch.device | None) -> None:
        self._data, self._at, self._device = data, 0, device

    def take(self, size: int) -> bytearray:
        part = bytearray(self._data[self._at : self._at + size])
        if size < 0 or len(part) != size:
            raise _not_a_message("it ends too early")
        self._at += size
        return part

    def finish(self) -> None:
        """Refuse a message with bytes left over."""
        if self._at != len(self._data):
            raise _not_a_message("it has bytes after its end")

    def tensor(self, kind: str, shape: list[int]) -> Tensor:
        """A tensor with its own memory: unaligned views can take other code paths and give other bits."""
        dtype = _TORCH_TYPES[kind]
        count = _size(shape)
        if not count:
            return torch.empty(shape, dtype=dtype, device=self._device)
        flat = torch.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)
        return flat.clone().reshape(shape).to(self._device or "cpu")

    def sparse(self, kind: str, shape: list[int], how: str, count: int) -> Sparse:
        size = _size(shape)
        if type(count) is not int or not 0 <= count <= min(size, len(self._data) - self._at):
            raise _not_a_message(f"{str(count)[:60]} positions in a tensor of {size}")
        if how == "bitmap":
            bits = np.frombuffer(self.take((size + 7) // 8), dtype=np.uint8)
            if int(np.bitwise_count(bits).sum()) != count:  # before it grows to a byte and more per bit
                raise _not_a_message("sparse positions do not fit the shape")
            index = np.flatnonzero(np.unpackbits(bits, count=size))
        elif how == _index_type(size):
            index = np.frombuffer(self.take(count * np.dtype(how).itemsize), dtype=how)
        else:
            raise _not_a_message(f"positions of type {how}")
        if len(index) != count or not _ascending(index, size):
            raise _not_a_message("sparse positions do not fit the shape")
        positions = torch.from_numpy(index.astype(np.int64)).to(self._device or "cpu")
        return Sparse(tuple(shape), positions, self.tensor(kind, [count]))
