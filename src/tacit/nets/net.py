"""A network as a pure function of its parameters: `net.init(stream)` and `net.apply(params, x)`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.errors import TacitError
from tacit.nets.start import head_of
from tacit.params import Params, channels_last, clone
from tacit.random import seeded

Precision = Literal["fp32", "bf16", "fp16"]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Head(NamedTuple):
    """A last layer that is linear in the features: the names of its tensors, and its size."""

    weight: str
    bias: str | None
    features: int
    classes: int


class Net:
    """An architecture without its trainable weights, which are `Params` that are passed in.

    Trainable parameters and float buffers (BatchNorm's running statistics) are both in `Params`. In training, layers
    update their buffers in place in the dict that was passed. Frozen tensors, such as those of a pretrained backbone,
    are part of the network and in no `Params`: parameters without gradient when the module is built, and buffers of
    modules whose parameters are all frozen. Such modules stay in evaluation mode in training.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        """`build` returns a freshly initialised module; with a skeleton for each mode, modes need no switching."""
        self._build = build
        self._precision: torch.dtype | None = None  # None: that of the weights
        built = _seeded_build(build, 0)
        self._frozen_modules = _frozen_modules(built)
        if "" in self._frozen_modules:
            problem, remedy = "all parameters of this network are frozen", "leave requires_grad on those to train"
            raise TacitError(problem, remedy, code="nets.nothing-to-train")
        if any(_counts(layer) for name, layer in built.named_modules() if name not in self._frozen_modules):
            problem = "BatchNorm with momentum=None depends on how often a process ran it"
            raise TacitError(problem, "give it a momentum", code="nets.batchnorm-without-momentum")
        frozen = _frozen(built, self._frozen_modules)
        copies = channels_last(frozen)
        values = {id(value): _alike(value, copies[name]) for name, value in frozen.items()}
        self.frozen = tuple(frozen)
        self.names = tuple(name for name in _tensors(built) if name not in frozen)
        self.trainable = tuple(name for name, p in built.named_parameters() if p.requires_grad)
        self.buffers = tuple(name for name in self.names if name not in self.trainable)
        # Tied weights have several names; to search for them takes a large part of a small network's forward pass.
        every_name = _tensors(built, every_name=True).values()
        self._tied = len(self.names) < sum(id(value) not in values for value in every_name)
        self.has_features = all(callable(getattr(built, step, None)) for step in ("features", "classify"))
        self._start = _Start(build, built) if frozen else None
        self._training, self._evaluating = _skeleton(built, values).train(), _skeleton(built, values).eval()
        for name in self._frozen_modules:
            self._training.get_submodule(name).eval()
        self._steps = {True: _Steps(self._training), False: _Steps(self._evaluating)}  # to build one takes a while
        stay = {id(value) for value in values.values()}
        self._held, self._device = list(_held(stay, self._training, self._evaluating)), torch.device("cpu")

    @property
    def pretrained(self) -> dict[str, str]:
        """What the module says in an attribute `pretrained` about weights it loaded: name, source, licence."""
        about = getattr(self._evaluating, "pretrained", None)
        return {str(name): str(value) for name, value in about.items()} if isinstance(about, Mapping) else {}

    @property
    def random(self) -> bool:
        """Whether a layer draws random numbers in training."""
        return any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p for layer in self._training.modules())

    @property
    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of pixels from 0 to 1 that the module's weights expect, if it says so in `moments`."""
        found: tuple[tuple[float, ...], tuple[float, ...]] | None = getattr(self._evaluating, "moments", None)
        return found

    @cached_property
    def head(self) -> Head | None:
        """The last layer, if it trains and is a linear function of the features; else None."""
        name = head_of(self._evaluating)
        layer = None if name is None else self._evaluating.get_submodule(name)
        if not isinstance(layer, nn.Linear) or not self.has_features or f"{name}.weight" not in self.trainable:
            return None
        module = self.module(self.init(torch.Generator().manual_seed(0)))
        z = torch.randn(2, layer.in_features, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            if not torch.equal(module.classify(z), module.get_submodule(str(name))(z)):  # type: ignore[operator]
                return None
        bias = f"{name}.bias" if f"{name}.bias" in self.trainable else None
        return Head(f"{name}.weight", bias, layer.in_features, layer.out_features)

    @property
    def layers(self) -> dict[str, list[str]]:
        """The tensor names of each layer: weight, bias and statistics; under "" those outside any layer."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(name.rpartition(".")[0], []).append(name)
        return found

    def init(self, stream: torch.Generator) -> Params:
        """Initial weights; the same stream gives the same weights. Frozen parts are not built or loaded again."""
        with seeded(stream, torch.device("cpu")):
            tensors = _tensors(self._build()) if self._start is None else self._start.draw()
        return {name: tensors[name].detach().clone() for name in self.names}

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of inputs (n, …)."""
        logits: Tensor = self._called(self._skeleton(train, x.device), dict(params), x)
        return logits

    def features(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Features (n, …) of inputs (n, …): what the last layer sees."""
        return self.features_and_logits(params, x, train)[0]

    def features_and_logits(
        self, params: Mapping[str, Tensor], x: Tensor, train: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Features (n, …) and logits (n, classes) of inputs (n, …), in one forward pass."""
        if not self.has_features:
            raise AttributeError("this network has no features: give its module `features(x)` and `classify(z)`")
        self._skeleton(train, x.device)
        module = self._steps[train]
        named = {f"net.{name}": p for name, p in params.items()}
        pair: tuple[Tensor, Tensor] = self._called(module, named, x)
        return pair

    def with_precision(self, precision: Precision | None) -> "Net":
        """The same network, whose passes compute in this precision where that is safe; weights and results stay.

        Everything is shared with this one.
        """
        if precision is None or precision == "fp32":
            return self
        other = copy(self)
        other._precision = _TYPES[precision]
        return other

    def _called(self, module: nn.Module, named: Params, x: Tensor) -> Any:
        """What a module returns with these weights: one tensor or several."""
        if self._precision is None:
            return functional_call(module, named, (x,), tie_weights=self._tied)
        with torch.autocast(x.device.type, self._precision):
            found = functional_call(module, named, (x,), tie_weights=self._tied)
        return tuple(part.float() for part in found) if isinstance(found, tuple) else found.float()

    def recompute_batchnorm(self, params: Params, inputs: Iterable[Tensor]) -> Params:
        """`params` with BatchNorm statistics recomputed: their plain average over these batches."""
        device = next((value.device for value in params.values()), self._device)
        skeleton, restated = self._skeleton(False, device), channels_last(params)
        shared = {id(value): value for name, value in _tensors(skeleton).items() if name in self.frozen}
        module = deepcopy(skeleton, shared)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and name not in self._frozen_modules:
                layer.train()
                layer.momentum = None  # in torch this means a cumulative average
                layer.reset_running_stats()
        with torch.no_grad():
            for x in inputs:
                functional_call(module, restated, (x,))
        return clone(restated)

    def module(self, params: Params) -> nn.Module:
        """A complete torch module with these weights and the frozen ones, in evaluation mode."""
        blanks = {name: value for name, value in _tensors(self._evaluating).items() if name not in self.frozen}
        if {name: blank.shape for name, blank in blanks.items()} != {name: w.shape for name, w in params.items()}:
            raise ValueError("these weights belong to another network")
        values = clone({name: value.cpu() for name, value in params.items()})
        filled = {id(blank): _alike(blank, values[name]) for name, blank in blanks.items()}
        return deepcopy(self._evaluating, filled).cpu()

    def frozen_tensors(self) -> Params:
        """Copies of the frozen tensors."""
        tensors = _tensors(self._evaluating)
        return clone({name: tensors[name].cpu() for name in self.frozen})

    def load_frozen(self, values: Mapping[str, Tensor]) -> None:
        """Replace the frozen tensors, which came from the factory, by these."""
        tensors = _tensors(self._evaluating)
        with torch.no_grad():
            for name in self.frozen:
                tensors[name].copy_(values[name])

    def _skeleton(self, train: bool, device: torch.device) -> nn.Module:
        """The skeleton of a mode, with the tensors that are not in `Params` on this device."""
        if device != self._device:
            moved = {id(value): _alike(value, value.to(device)) for _, _, value in self._held}
            for layer, name, value in self._held:
                setattr(layer, name, moved[id(value)])
            self._device = device
        return self._training if train else self._evaluating

    def size(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self._training.parameters() if p.requires_grad)


class _Steps(nn.Module):
    """Both steps of a network in one `forward`, which is all that `functional_call` can call."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits."""
        z = self.net.features(x)  # type: ignore[operator]
        return z, self.net.classify(z)  # type: ignore[operator]


def _tensors(module: nn.Module, every_name: bool = False) -> Params:
    """Parameters and float buffers; integer buffers only count batches and stay in the skeleton."""
    named = dict(module.named_parameters(remove_duplicate=not every_name))
    buffers = module.named_buffers(remove_duplicate=not every_name)
    return named | {name: b for name, b in buffers if b.is_floating_point()}


def _seeded_build(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with seeded(torch.Generator().manual_seed(seed), torch.device("cpu")):
        return build()


def _frozen_modules(module: nn.Module) -> set[str]:
    """The names of all modules whose parameters are all frozen, and of all modules in these."""
    found = set[str]()
    for name, part in module.named_modules():
        if any(True for _ in part.parameters()) and not any(p.requires_grad for p in part.parameters()):
            found |= {f"{name}.{inner}".strip(".") for inner, _ in part.named_modules()}
    return found


def _frozen(module: nn.Module, frozen_modules: set[str]) -> Params:
    """Parameters without gradient, and float buffers of frozen modules."""
    return {
        name: value
        for name, value in _tensors(module).items()
        if (isinstance(value, nn.Parameter) and not value.requires_grad) or name.rpartition(".")[0] in frozen_modules
    }


def _held(frozen: set[int], *modules: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Layer, name and value of every tensor that is not in `Params`: frozen ones, by their ids, and integer buffers."""
    for layer in (layer for module in modules for layer in module.modules()):
        own = *layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)
        yield from ((layer, name, t) for name, t in own if id(t) in frozen or not t.is_floating_point())


def _skeleton(module: nn.Module, frozen: Mapping[int, Tensor]) -> nn.Module:
    """A copy with these frozen values by the ids of the originals, and no others.

    Every call supplies the others, and what it leaves out is NaN.
    """
    blanks = {id(value): _blank(value) for value in _tensors(module).values() if id(value) not in frozen}
    return deepcopy(module, {**blanks, **frozen})


def _blank(value: Tensor) -> Tensor:
    """A tensor of the same shape whose entries are all the same NaN in memory."""
    return _alike(value, value.detach().new_full((), torch.nan).expand(value.shape))


def _alike(like: Tensor, value: Tensor) -> Tensor:
    """The value as a parameter if `like` is one, with or without gradient as that."""
    return nn.Parameter(value, like.requires_grad) if isinstance(like, nn.Parameter) else value


class _Start:
    """Where the trainable parts of a network with frozen parts start, without building or loading it again.

    A tensor on which two builds with different seeds agree is loaded or constant, and starts from there. All others
    are drawn by `reset_parameters()` of their layer, which torch's own layers have; a layer without it starts as built.
    """

    def __init__(self, build: Callable[[], nn.Module], built: nn.Module) -> None:
        other = _tensors(_seeded_build(build, 1))
        self._built = {name: value.detach().clone() for name, value in _tensors(built).items() if value.requires_grad}
        self._built |= {name: value for name, value in _tensors(built).items() if not isinstance(value, nn.Parameter)}
        self._drawn = {name for name, value in self._built.items() if not torch.equal(value, other[name])}
        owners = {owner: built.get_submodule(owner) for owner in {name.rpartition(".")[0] for name in self._drawn}}
        self._layers = {owner: owners[owner] for owner in sorted(owners) if hasattr(owners[owner], "reset_parameters")}

    def draw(self) -> Params:
        """Initial values, from torch's global generator."""
        values = dict(self._built)
        for owner, original in self._layers.items():
            layer = deepcopy(original)
            layer.reset_parameters()  # type: ignore[operator]
            named = {f"{owner}.{name}".strip("."): p for name, p in layer.named_parameters(recurse=False)}
            values |= {name: p for name, p in named.items() if name in self._drawn}
        return values


def _counts(layer: nn.Module) -> bool:
    """Whether a layer's result depends on a counter of batches, which is not in `Params`."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None
