"""A network as a pure function of its parameters: `net.init(stream)` and `net.apply(params, x)`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.errors import TacitError
from tacit.params import Params, channels_last, clone
from tacit.random import seeded


class Net:
    """An architecture without weights; its weights are `Params` that are passed in.

    Parameters and float buffers (BatchNorm's running statistics) are both in `Params`. In training, layers update
    their buffers in place in the dict that was passed.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        """`build` makes a freshly initialised module; two skeletons of it spare switching between the modes."""
        self._build = build
        with seeded(torch.Generator().manual_seed(0), torch.device("cpu")):
            built = build()
        if any(_counts(layer) for layer in built.modules()):
            raise TacitError("BatchNorm with momentum=None depends on how often a process ran it: give it a momentum")
        self._training, self._evaluating = _skeleton(built).train(), _skeleton(built).eval()
        self._integers, self._device = list(_integers(self._training, self._evaluating)), torch.device("cpu")
        self.trainable = tuple(name for name, p in built.named_parameters() if p.requires_grad)
        self.names = tuple(_tensors(built))
        self.buffers = tuple(name for name in self.names if name not in dict(built.named_parameters()))
        # Tied weights have several names, and looking for them takes a large part of a small network's pass.
        self._tied = len(self.names) < len(_tensors(built, every_name=True))
        self.has_features = all(callable(getattr(built, step, None)) for step in ("features", "classify"))

    @property
    def layers(self) -> dict[str, list[str]]:
        """The names of each layer, weight, bias and statistics together; under "" those of no layer."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(name.rpartition(".")[0], []).append(name)
        return found

    def init(self, stream: torch.Generator) -> Params:
        """Fresh weights; the same stream gives the same weights."""
        with seeded(stream, torch.device("cpu")):
            return {name: value.detach().clone() for name, value in _tensors(self._build()).items()}

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of inputs (n, …)."""
        module = self._skeleton(train, x.device)
        logits: Tensor = functional_call(module, dict(params), (x,), tie_weights=self._tied)
        return logits

    def features(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Features (n, …) of inputs (n, …): what the last layer sees."""
        return self.features_and_logits(params, x, train)[0]

    def features_and_logits(
        self, params: Mapping[str, Tensor], x: Tensor, train: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Features (n, …) and logits (n, classes) of inputs (n, …), in one pass."""
        if not self.has_features:
            raise AttributeError("this network has no features: give its module `features(x)` and `classify(z)`")
        module = _Steps(self._skeleton(train, x.device))
        named = {f"net.{name}": p for name, p in params.items()}
        pair: tuple[Tensor, Tensor] = functional_call(module, named, (x,), tie_weights=self._tied)
        return pair

    def restate(self, params: Params, inputs: Iterable[Tensor]) -> Params:
        """`params` with BatchNorm statistics recomputed: their plain average over these batches."""
        device = next((value.device for value in params.values()), self._device)
        module, restated = deepcopy(self._skeleton(False, device)), channels_last(params)
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.train()
                layer.momentum = None  # torch's way to say: cumulative average
                layer.reset_running_stats()
        with torch.no_grad():
            for x in inputs:
                functional_call(module, restated, (x,))
        return clone(restated)

    def module(self, params: Params) -> nn.Module:
        """An ordinary torch module with these weights, in evaluation mode."""
        with seeded(torch.Generator(), torch.device("cpu")):
            module = self._build().eval()
        held = _tensors(module)  # a state_dict lacks buffers that are not persistent
        if {name: value.shape for name, value in held.items()} != {name: value.shape for name, value in params.items()}:
            raise ValueError("these weights are of another network")
        with torch.no_grad():
            for name, value in held.items():
                value.copy_(params[name])
        return module

    def _skeleton(self, train: bool, device: torch.device) -> nn.Module:
        """The skeleton of a mode, its integer buffers on the device that computes."""
        if device != self._device:
            for layer, name, buffer in self._integers:
                setattr(layer, name, buffer.to(device))
            self._device = device
        return self._training if train else self._evaluating

    def size(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self._training.parameters() if p.requires_grad)


class _Steps(nn.Module):
    """Both steps of a network at once: `functional_call` only knows `forward`."""

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


def _integers(*modules: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Layer, name and value of every buffer that is not in `Params`."""
    for layer in (layer for module in modules for layer in module.modules()):
        yield from ((layer, name, b) for name, b in layer.named_buffers(recurse=False) if not b.is_floating_point())


def _skeleton(module: nn.Module) -> nn.Module:
    """A copy without numbers of its own: every call brings them, and what it forgets is NaN."""
    return deepcopy(module, {id(value): _blank(value) for value in _tensors(module).values()})


def _blank(value: Tensor) -> Tensor:
    """One NaN, seen from every place of a tensor of the same shape."""
    blank = value.detach().new_full((), torch.nan).expand(value.shape)
    return nn.Parameter(blank, value.requires_grad) if isinstance(value, nn.Parameter) else blank


def _counts(layer: nn.Module) -> bool:
    """Whether a layer's result depends on a counter of batches, which is not in `Params`."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None
