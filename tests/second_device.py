"""A second device without hardware: tensors whose numbers are on the CPU, but which may not meet tensors of the CPU.

They pretend to be on the device `meta`, the only one besides the CPU for which autograd works on every build. A real
tensor of that device has no numbers; these have, so methods run on them as they would on a GPU, with the bits of the
CPU. The mode `SecondDevice` fails where both kinds meet, and counts what makes the CPU wait for a GPU.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
CPU = torch.device("cpu")

aten: Any = torch.ops.aten
# The CPU waits for what these return, or for the size of it.
WAITS = {
    aten._local_scalar_dense: "item",
    aten.equal: "equal",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.bincount: "bincount",
    aten._unique2: "unique",
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique",
    aten.repeat_interleave: "repeat_interleave",
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class MeetingError(RuntimeError):
    """A tensor of the CPU met one of the other device."""


class There(Tensor):
    """A tensor of the second device; `here` has its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls: type["There"], here: Tensor) -> "There":
        """Wrap a tensor of the CPU."""
        wrap: Any = torch.Tensor._make_wrapper_subclass
        made: There = wrap(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.here = here
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Its numbers."""
        return f"There({self.here!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute on the CPU, after a look at what meets."""
        return _computed(func, args, kwargs or {}, None)


class _Factories(TorchFunctionMode):
    """What the dispatcher does not hear of: `torch.tensor` makes an empty tensor for `meta`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch, but with the numbers."""
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(device)
        if func is Tensor.tolist and isinstance(args[0], There):
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor and isinstance(args[0], There):
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(DEVICE)
        return func(*args, **kwargs)


class SecondDevice(TorchDispatchMode):
    """While it is entered, the device `meta` has numbers; `waits` counts what made the CPU wait, by name."""

    def __init__(self) -> None:
        """Nothing has waited yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()
        self.copies = 0  # transfers to the device
        self._factories = _Factories()

    def __enter__(self) -> Any:
        """Begin to pretend."""
        self._factories.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Stop."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._factories.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU, and count."""
        return _computed(func, args, kwargs or {}, self)


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], mode: SecondDevice | None) -> Any:
    """The operation on the numbers, its results on the device where torch would put them."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, There)]
    name, target = func.overloadpacket, kwargs.get("device")
    moves = name in (aten._to_copy, aten.copy_)
    if far and not moves:
        _refuse_meetings(func, args, tensors)
    if mode is not None:
        mode.waits.update(_waits(name, args, kwargs, far))
        mode.copies += name is aten._to_copy and not far and target == DEVICE
    there = target == DEVICE if target is not None else bool(far)
    plain = {key: CPU if key == "device" and value is not None else value for key, value in kwargs.items()}
    result = func(*tree_map(_here, args), **tree_map(_here, plain))
    if _in_place(func):
        return args[0] if func._schema.returns else None
    if not there:
        return result
    return tree_map(lambda part: There(part) if isinstance(part, Tensor) else part, result)


def _refuse_meetings(func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """A tensor of the CPU with more than one number, which torch would refuse beside one of a GPU.

    Positions on the CPU are refused too: torch takes them, and copies them in every step.
    """
    near = [tensor for tensor in tensors if not isinstance(tensor, There) and tensor.dim()]
    if near:
        raise MeetingError(f"{func} gets a tensor {tuple(near[0].shape)} of the CPU and one of the other device")


def _waits(name: Any, args: Sequence[Any], kwargs: Mapping[str, Any], far: Sequence[Tensor]) -> Iterator[str]:
    """What a GPU would make the CPU wait for; a copy to the GPU waits unless it is told not to."""
    target = kwargs.get("device")
    if name is aten._to_copy and not far and target == DEVICE and not kwargs.get("non_blocking"):
        yield "to the device"
    if not far:
        return
    if name in WAITS:
        yield WAITS[name]
    if name is aten._to_copy and target is not None and target != DEVICE:
        yield "cpu"
    if name is aten.copy_ and not isinstance(args[0], There):
        yield "copy to the CPU"
    if name in INDEXED and any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        yield "mask as index"


def _in_place(func: Any) -> bool:
    """Whether an operation returns what it changes, or nothing."""
    return all(each.alias_info is not None and each.alias_info.is_write for each in func._schema.returns)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, There) else value
