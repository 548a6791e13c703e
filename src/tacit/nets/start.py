"""Where a network starts and which of its layers train: weights from a file, frozen layers, low-rank changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.errors import TacitError
from tacit.nets import weights
from tacit.nets.lora import add_lora

SECOND_HEAD = "one_vs_all"  # the name of that layer; it is added afterwards and always starts from random weights
NONE = "none"  # net.weights: random weights even where published ones exist
Factory = Callable[[], nn.Module]


@dataclass(frozen=True)
class Trains:
    """What trains: `all`, `head`, `last:N` blocks with the head, or `lora:R` with the head."""

    kind: str = "all"
    number: int = 0  # of blocks, or the rank

    @classmethod
    def parse(cls, text: str) -> "Trains":
        """From the setting `net.train`."""
        kind, colon, number = text.partition(":")
        plain = kind in ("all", "head") and not colon
        counted = kind in ("last", "lora") and number.isdecimal() and int(number) > 0
        if not plain and not counted:
            remedy = "write all, head, last:N or lora:R with a number above 0"
            raise TacitError(f"net.train cannot be '{text}'", remedy, code="nets.bad-train")
        return cls(kind, int(number or 0))

    @property
    def everything(self) -> bool:
        """Whether no layer is frozen."""
        return self.kind == "all"


@dataclass(frozen=True)
class Start:
    """Where a network starts, by the settings in [net]."""

    file: Path | None = None  # of weights; without it they are drawn
    sha256: str | None = None  # that the file must have
    new_head: bool = False  # the head of the file is for other classes, also if their number is the same
    trains: Trains = Trains()
    zero_head: bool = False  # the head starts at zero: equal probabilities for every input
    about: Mapping[str, str] | None = None  # name, source and licence of the weights


DRAWN = Start()  # all weights are drawn, and all train


def starting(factory: Factory, start: Start) -> Factory:
    """A factory of the same network that starts there; the file is read once."""
    tensors = None if start.file is None else weights.read(start.file, start.sha256)
    if tensors is None and start.trains.everything and not start.zero_head:
        return factory
    if tensors is not None:
        with torch.random.fork_rng(devices=[]):
            tensors = weights.translated(factory(), tensors)
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{SECOND_HEAD}.")}
    return _Starting(factory, start, tensors)


@dataclass(frozen=True)
class _Starting:
    """A factory; an object and not a closure, since networks are pickled for worker processes."""

    factory: Factory
    start: Start
    tensors: Mapping[str, Tensor] | None

    def __call__(self) -> nn.Module:
        module, start = self.factory(), self.start
        head = head_of(module)
        if self.tensors is not None:
            old = dict(module.get_submodule(head).state_dict()) if head and start.new_head else {}
            old = {name: value.clone() for name, value in old.items()}
            weights.fill(module, self.tensors, head, str(start.file))
            if head and old:
                module.get_submodule(head).load_state_dict(old)
        if start.about:
            module.pretrained = dict(start.about)  # type: ignore[assignment]
        restrict(module, start.trains)
        if start.zero_head:
            with torch.no_grad():
                for value in _head(module, "net.zero_head").parameters():
                    value.zero_()
        return module


def head_of(module: nn.Module) -> str | None:
    """The name of the head, the last linear layer; None if there is none."""
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


def blocks_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The blocks of a network in the order of their definition, without the head, each with its name.

    They are the modules in its lists and in its outermost sequences, and any other child with parameters.
    """
    head = head_of(module)
    return [(name, block) for name, block in _opened(module, "", outermost=True) if name != head]


def _opened(module: nn.Module, name: str, outermost: bool = False) -> list[tuple[str, nn.Module]]:
    found = []
    for key, child in module.named_children():
        inner = f"{name}.{key}".strip(".")
        if not any(True for _ in child.parameters()):
            continue
        is_list = isinstance(child, nn.ModuleList) or (outermost and isinstance(child, nn.Sequential))
        holds_list = any(isinstance(part, nn.ModuleList) for part in child.modules())
        found += _opened(child, inner) if is_list or holds_list else [(inner, child)]
    return found


def restrict(module: nn.Module, trains: Trains) -> None:
    """Freeze what does not train. Unless everything does, all BatchNorm is frozen and so keeps its statistics."""
    if trains.everything:
        return
    head = _head(module, "net.train")
    module.requires_grad_(False)
    if trains.kind == "last":
        blocks = blocks_of(module)
        if trains.number > len(blocks):
            problem = f"net.train asks for the last {trains.number} blocks, and the network has {len(blocks)}"
            raise TacitError(problem, "lower the number, or use all", code="nets.too-few-blocks")
        for _, block in blocks[-trains.number :]:
            block.requires_grad_(True)
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.requires_grad_(False)
    if trains.kind == "lora":
        add_lora(module, trains.number, but=head)
    head.requires_grad_(True)


def _head(module: nn.Module, setting: str) -> nn.Module:
    name = head_of(module)
    if name is None:
        problem = f"{setting} needs a network whose head is a linear layer, and this one has none"
        raise TacitError(problem, f"leave out {setting}", code="nets.no-head")
    return module.get_submodule(name)
