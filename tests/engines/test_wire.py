"""Messages: what is encoded decodes to the same bits, and bytes from outside do no harm."""

import json
import math
import struct
from collections import OrderedDict
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from tacit.engines.wire import Codec, WireError, finite
from tacit.methods.fedavg import FedAvg
from tacit.methods.scaffold import ScaffoldMemory, ScaffoldUp
from tacit.params import Params, Sparse, patch, sparsify
from tests.refusals import refused

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


UNSENDABLE = {"wire.unsupported-type", "wire.unsupported-dtype", "wire.malformed-sparse", "wire.too-large"}
ALIGNMENT = 64  # bytes, of every tensor torch itself makes


@dataclass(frozen=True)
class Leaf:
    value: Any


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any = None


@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True)
class Strict:
    """A message that checks what it holds."""

    value: Any

    def __post_init__(self) -> None:
        if self.value.ndim > 9:
            raise AssertionError("unreachable with honest bytes")


def examples(count: int) -> settings:
    """This many examples, however long they take on a busy machine."""
    return settings(deadline=None, max_examples=count, suppress_health_check=[HealthCheck.too_slow])


CODEC = Codec({kind.__name__: kind for kind in (Leaf, Pair, Empty, Strict)})


def same(a: Any, b: Any) -> bool:
    """The same types, shapes and bits at every level; all NaNs of Python count as one."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, item.name), getattr(b, item.name)) for item in fields(a))
    return bool(a == b)


def raw(tensor: Tensor) -> bytes:
    dense = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(dense.view(torch.uint8).tolist()) if dense.numel() else b""


def from_bytes(data: bytes, dtype: torch.dtype) -> Tensor:
    """Any bits, NaNs of every kind included; a bool is 0 or 1."""
    if dtype == torch.bool:
        return torch.tensor([byte % 2 for byte in data], dtype=torch.bool)
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


@st.composite
def dense(draw: st.DrawFn) -> Tensor:
    """Every dtype and layout: empty, 0-d, transposed, strided, expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    tensor = from_bytes(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    layout = draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "inner"]))
    if layout == "transposed":
        return tensor.permute(tuple(reversed(range(tensor.ndim))))
    if layout == "strided" and tensor.ndim:
        return tensor[::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(2, *shape)
    return torch.stack([tensor, tensor])[1] if layout == "inner" else tensor


@st.composite
def sparse(draw: st.DrawFn) -> Sparse:
    dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16, torch.int64)))
    shape = tuple(draw(st.lists(st.integers(0, 20), max_size=3)))
    index = sorted(draw(st.sets(st.integers(0, max(0, math.prod(shape) - 1)))) if math.prod(shape) else [])
    size = len(index) * dtype.itemsize
    value = from_bytes(draw(st.binary(min_size=size, max_size=size)), dtype)
    return Sparse(shape, torch.tensor(index, dtype=torch.int64), value)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    kinds = st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?"])
    array = draw(hnp.arrays(draw(kinds), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
    change = draw(st.sampled_from(["plain", "transposed", "reversed", "read-only"]))
    if change == "transposed":
        return array.T
    if change == "reversed" and array.ndim:
        return array[::-1]
    array.flags.writeable = change != "read-only"
    return array


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_subnormal=True),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324]),
    st.text(),
    st.text(st.characters(codec=None), max_size=3),  # lone surrogates too
)
keys = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))
messages = st.recursive(
    st.one_of(scalars, dense(), arrays(), sparse(), st.just(Empty())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Leaf, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


@examples(300)
@given(messages)
def test_decoding_gives_the_same_bits(message: Any) -> None:
    assert same(CODEC.decode(CODEC.encode(message)), message)


@examples(50)
@given(messages)
def test_encoding_is_deterministic(message: Any) -> None:
    encoded = CODEC.encode(message)
    assert CODEC.encode(CODEC.decode(encoded)) == encoded


def test_the_comparison_is_stricter_than_equality() -> None:
    assert not same(0.0, -0.0)
    assert not same(1, True)
    assert not same([1], (1,))
    assert not same({1: 2, 3: 4}, {3: 4, 1: 2})
    assert not same(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert same(math.nan, -math.nan)


def test_every_dtype_is_encoded_as_its_raw_bytes() -> None:
    for dtype in DTYPES:
        tensor = from_bytes(bytes(range(1, 1 + 6 * dtype.itemsize)), dtype).reshape(2, 3)
        encoded = CODEC.encode(tensor)
        assert encoded.endswith(raw(tensor))
        assert len(encoded) == 4 + header_size(encoded) + 6 * dtype.itemsize
        assert same(CODEC.decode(encoded), tensor)


def test_a_view_is_encoded_without_the_rest_of_its_storage() -> None:
    row = torch.zeros(1000, 4)[7]
    encoded = CODEC.encode(row)
    assert len(encoded) - header_size(encoded) == 4 + 4 * 4


def header_size(encoded: bytes) -> int:
    return int.from_bytes(encoded[:4], "little")


def header(encoded: bytes) -> Any:
    return json.loads(encoded[4 : 4 + header_size(encoded)])


def with_header(encoded: bytes, tree: Any) -> bytes:
    """The same values under another description."""
    text = json.dumps(tree).encode()
    return struct.pack("<I", len(text)) + text + encoded[4 + header_size(encoded) :]


# Positions of c entries out of n, by hand: ⌈n/8⌉ bytes as a bitmap, or c times the smallest integer that reaches n.
@pytest.mark.parametrize(
    "size, count, how, positions",
    [
        (256, 32, "<u1", 32),  # 32 · 1 byte, not more than 256/8 = 32
        (256, 33, "bitmap", 32),
        (257, 16, "<u2", 32),  # 257 needs two bytes: 16 · 2 = 32 < ⌈257/8⌉ = 33
        (257, 17, "bitmap", 33),
        (1000, 62, "<u2", 124),  # 124 < 125
        (1000, 63, "bitmap", 125),  # 126 > 125
        (65536, 4096, "<u2", 8192),
        (65537, 2048, "<u4", 8192),  # 8192 < ⌈65537/8⌉ = 8193
        (65537, 2049, "bitmap", 8193),
        (10, 10, "bitmap", 2),
        (10, 0, "<u1", 0),
    ],
)
def test_sparse_positions_are_encoded_in_the_smaller_form(size: int, count: int, how: str, positions: int) -> None:
    index = torch.linspace(0, size - 1, count).long() if count else torch.empty(0, dtype=torch.int64)
    message = Sparse((size,), index, torch.arange(count, dtype=torch.float32))
    encoded = CODEC.encode(message)
    assert header(encoded) == ["s", "float32", [size], how, count]
    assert len(encoded) == 4 + header_size(encoded) + positions + 4 * count
    assert same(CODEC.decode(encoded), message)


@examples(100)
@given(sparse())
def test_sparse_positions_are_never_larger_than_a_bitmap(message: Sparse) -> None:
    size, encoded = math.prod(message.shape), CODEC.encode(message)
    body = len(encoded) - 4 - header_size(encoded) - len(message.value) * message.value.element_size()
    width = 1 if size <= 2**8 else 2
    assert body == min((size + 7) // 8, width * len(message.index))


def test_a_sparse_patch_gives_exactly_the_same_model_on_the_other_side() -> None:
    before: Params = {"a": torch.randn(40, 50), "b": torch.zeros(3)}
    meant = {"a": before["a"].clone(), "b": torch.tensor([0.0, -0.0, math.pi])}
    meant["a"][::7, 3] += 1e-7
    received = patch(before, CODEC.decode(CODEC.encode(sparsify(meant, before))))
    assert same(received, meant)


@examples(150)
@given(messages, st.data())
def test_a_truncated_message_is_refused(message: Any, data: st.DataObject) -> None:
    encoded = CODEC.encode(message)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with refused("wire.not-a-message"):
        CODEC.decode(encoded[:cut])


def decode_or_refuse(data: bytes) -> None:
    """Decoding either refuses the bytes, or gives a message that holds only types the codec knows."""
    try:
        message = CODEC.decode(data)
    except WireError:
        return
    check_kinds(message)


def check_kinds(value: Any) -> None:
    if is_dataclass(value):
        assert type(value) in (Leaf, Pair, Empty, Strict, Sparse)
        for item in fields(value):
            check_kinds(getattr(value, item.name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_kinds(key)
            check_kinds(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            check_kinds(inner)
    else:
        assert value is None or type(value) in (bool, int, float, str, Tensor, np.ndarray)


@examples(300)
@given(messages, st.data())
def test_flipped_bits_do_no_harm(message: Any, data: st.DataObject) -> None:
    encoded = bytearray(CODEC.encode(message))
    for position in data.draw(st.lists(st.integers(0, len(encoded) * 8 - 1), min_size=1, max_size=4)):
        encoded[position // 8] ^= 1 << position % 8
    decode_or_refuse(bytes(encoded))


@examples(100)
@given(st.binary(max_size=60))
def test_random_bytes_do_no_harm(data: bytes) -> None:
    decode_or_refuse(data)
    decode_or_refuse(struct.pack("<I", len(data)) + data)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.sampled_from([2**31, 2**32, 2**62, 2**62 + 1, 2**63, 2**64, -(2**63), -1, 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["t", "n", "s", "d", "l", "u", "c", "bitmap", "<u1", "<u2"]),
    st.sampled_from(["float32", "bfloat16", "Leaf", "Strict", "Outsider"]),
    st.just([]),
    st.just({}),
)


@examples(500)
@given(messages, st.data())
def test_a_wrong_header_does_no_harm(message: Any, data: st.DataObject) -> None:
    encoded = CODEC.encode(message)
    tree = [header(encoded)]
    for _ in range(data.draw(st.integers(1, 3))):
        spots = list(paths(tree))
        container, key = data.draw(st.sampled_from(spots))
        container[key] = data.draw(odd)
    decode_or_refuse(with_header(encoded, tree[0]))


def paths(node: Any) -> Any:
    """Every spot of a JSON tree as (container, key)."""
    for key, value in enumerate(node) if isinstance(node, list) else node.items():
        yield node, key
        if isinstance(value, (list, dict)):
            yield from paths(value)


def message_of(tree: Any, values: bytes = b"") -> bytes:
    text = json.dumps(tree).encode()
    return struct.pack("<I", len(text)) + text + values


@pytest.mark.parametrize(
    "tree, values",
    [
        (["t", "float32", [10**30]], b""),  # larger than any integer of numpy
        (["t", "float32", [2**32, 2**32]], b""),  # whose product is 0 in 64 bits
        (["t", "float32", [0, 2**63]], b""),
        (["t", "float32", [-1]], bytes(4)),
        (["t", "float32", [-2, -2]], bytes(16)),
        (["t", "float33", [1]], bytes(4)),
        (["t", "float32", "x"], bytes(4)),
        (["n", "bfloat16", [1]], bytes(2)),  # numpy has no such type
        (["s", "float32", [4], "<u1", 1], bytes([4]) + bytes(4)),  # position 4 of 4
        (["s", "float32", [4], "<u2", 1], bytes(6)),  # not the type for this size
        (["s", "float32", [9], "bitmap", 1], b"\xff\xff" + bytes(4)),  # nine positions announced as one
        (["s", "float32", [2**62 + 1, 4], "<u1", 1], bytes(5)),  # 2⁶⁴ + 4 = 4 in 64 bits
        (["s", "float32", [4], "<u1", -1], bytes(8)),
        (["s", "float32", [4], "<u1", 2], bytes([3, 1]) + bytes(8)),  # positions ascend
        (["s", "float32", [4], "<u1", 2], bytes([3, 3]) + bytes(8)),
        (["s", "float32", [-4, -1], "<u1", 1], bytes(8)),
        (["c", "Strict", {"value": None}], b""),  # its own check fails with an AttributeError
        (["c", "Leaf", {"other": 1}], b""),
        (["c", "Leaf", {}], b""),
        (["c", "Leaf"], b""),
        (["d", [[["l", []], 1]]], b""),  # a list as a key
        (["d", [1]], b""),
        (["x", 1], b""),
        ([], b""),
        ({"name": "Leaf"}, b""),
    ],
)
def test_forged_messages_are_refused(tree: Any, values: bytes) -> None:
    with refused("wire.not-a-message"):
        CODEC.decode(message_of(tree, values))


def test_bytes_after_the_end_are_refused() -> None:
    with refused("wire.not-a-message"):
        CODEC.decode(CODEC.encode(Leaf(torch.ones(2))) + b"x")


def test_a_deeply_nested_message_is_refused() -> None:
    with refused("wire.not-a-message"):
        CODEC.decode(message_of(0)[:4].replace(b"\x01", b"\x00") + b"[" * 100_000)
    deep = b'["l",[' * 50_000
    with refused("wire.not-a-message"):
        CODEC.decode(struct.pack("<I", len(deep)) + deep)


built: list[object] = []


class NamedPair(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True)
class Outsider:
    """A dataclass that no codec was given."""

    value: int = 0

    def __post_init__(self) -> None:
        built.append(self)


def test_a_class_the_codec_does_not_know_is_never_built() -> None:
    insider = Codec({"Outsider": Outsider}).encode(Outsider(3))
    built.clear()
    for codec in (CODEC, Codec({}), Codec({"Leaf": Leaf})):
        with refused("wire.not-a-message"):
            codec.decode(insider)
    for name in ("tests.engines.test_wire.Outsider", "os.system", "dict", "Path"):
        with refused("wire.not-a-message"):
            CODEC.decode(message_of(["c", name, {}]))
    assert built == []


def test_another_class_of_the_same_name_cannot_be_sent() -> None:
    other = type("Leaf", (), {})()
    with refused("wire.unsupported-type"):
        CODEC.encode(other)


def test_a_methods_codec_knows_its_messages_and_no_others() -> None:
    codec = Codec.of(FedAvg())
    assert {"WeightsState", "WeightsDown", "WeightsUp", "LocalState"} <= codec.types.keys()
    assert "ScaffoldUp" not in codec.types
    with refused("wire.unsupported-type"):
        codec.encode(ScaffoldUp({}, {}))
    with refused("wire.unsupported-type"):
        codec.encode(ScaffoldMemory({}, None))


def test_a_subclass_of_a_method_can_send_its_messages() -> None:
    class Mine(FedAvg):
        pass

    assert {"WeightsUp", "Leaf"} <= Codec.of(Mine()).types.keys()


def test_sparse_has_no_second_unchecked_encoding() -> None:
    """Also for a method whose module imports Sparse."""

    class Importer:
        pass

    assert "Sparse" in globals()
    types = Codec.of(Importer()).types
    assert {"Leaf", "Outsider"} <= types.keys()
    assert "Sparse" not in types


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        object(),
        1j,
        np.int64(3),
        np.array(["text"]),
        np.array([object()]),
        np.array([1j]),
        np.zeros(2, dtype=[("a", "f4")]),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2).to_sparse(),
        Outsider(),
        10**5000,
        Sparse((4,), torch.tensor([2, 1]), torch.ones(2)),  # a bitmap would swap the two values
        Sparse((4,), torch.tensor([1, 4]), torch.ones(2)),
        Sparse((4,), torch.tensor([1]), torch.ones(2)),
        NamedPair(1, 2),  # these four would arrive as another type
        OrderedDict(a=1),
        MappingProxyType({"a": 1}),
        torch.Size([1]),
        lambda: None,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: Leaf([{"k": v}])], ids=["bare", "inside"])
def test_a_value_that_cannot_be_sent_is_refused_with_a_remedy(value: Any, wrap: Any) -> None:
    with pytest.raises(WireError) as caught:
        CODEC.encode(wrap(value))
    assert caught.value.code in UNSENDABLE
    assert caught.value.remedy.startswith("use ")
    assert "\n" not in str(caught.value)


def test_arrays_of_the_other_byte_order_have_the_same_values() -> None:
    array = np.arange(3, dtype=">f8")
    assert np.array_equal(CODEC.decode(CODEC.encode(array)), array)


@examples(100)
@given(st.lists(dense(), min_size=1, max_size=4), st.integers(0, 9))
@example([torch.ones(1, dtype=torch.uint8), torch.ones(3)], 1)
def test_decoded_tensors_own_aligned_memory(tensors: list[Tensor], shift: int) -> None:
    """Whatever precedes a tensor in a message, and wherever the message starts."""
    encoded = bytearray(shift) + CODEC.encode(tensors)
    decoded = CODEC.decode(memoryview(encoded)[shift:])
    encoded[:] = bytes(len(encoded))
    assert same(decoded, tensors)
    for tensor in decoded:
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    for position, tensor in enumerate(decoded):
        tensor.zero_()
        assert same(decoded[position + 1 :], tensors[position + 1 :])


def test_decoded_arrays_are_writable() -> None:
    array = np.ones(3)
    array.flags.writeable = False
    CODEC.decode(CODEC.encode(array))[0] = 2.0


@dataclass(frozen=True)
class Mixed:
    numbers: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_finds_a_non_finite_number_anywhere(bad: float) -> None:
    bad_tensor = torch.tensor([0.0, bad])
    sparse_bad = Sparse((9,), torch.tensor([1, 2]), bad_tensor)
    frozen = np.array([bad])
    frozen.flags.writeable = False
    everywhere = (bad, bad_tensor, bad_tensor.bfloat16(), np.array([1.0, bad]), frozen, sparse_bad)
    for value in everywhere:
        assert not finite(value)
        assert not finite(Mixed({"a": torch.ones(2), "b": value}))
        assert not finite(Mixed(parts=(1, "x", [value])))


def test_finite_accepts_everything_else() -> None:
    largest = 1.7976931348623157e308  # of a Python float; torch's default type would make it infinite
    fine = (None, 1, True, "nan", largest, 10**400, torch.empty(0), torch.ones(2, dtype=torch.int64), np.zeros(2))
    for value in fine:
        assert finite(value)
        assert finite(Mixed({"a": value}, (value,)))


@given(messages)
@examples(100)
def test_parts_give_the_message_back_and_count_as_many_bytes(message: Any) -> None:
    parts = CODEC.to_parts(message)
    assert same(CODEC.from_parts(parts), message)
    assert len(parts) == len(CODEC.encode(message))


def test_parts_are_named_by_their_path_in_the_message() -> None:
    sparse = Sparse((40,), torch.tensor([3]), torch.tensor([1.0]))
    message = Pair({"conv/weight": torch.zeros(2, 3), "conv": {"weight": torch.ones(1)}}, [sparse])
    parts = CODEC.to_parts(message)
    assert {name: (value.kind, value.shape) for name, value in parts.values.items()} == {
        "left/conv/weight": ("float32", (2, 3)),
        "left/conv/weight#1": ("float32", (1,)),
        "right/0/positions": ("<u1", (1,)),
        "right/0/values": ("float32", (1,)),
    }
    assert list(CODEC.to_parts(torch.zeros(1)).values) == ["value"]
