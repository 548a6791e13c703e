"""Networks as pure functions of their parameters: `net.init(stream)` and `net.apply(params, x)`."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit import own
from tacit.errors import TacitError, unknown
from tacit.params import Params, channels_last, clone
from tacit.random import seeded

Norm = Literal["none", "batch", "group"]


class Net:
    """An architecture without weights; its weights are `Params` that are passed in.

    Parameters and float buffers (BatchNorm's running statistics) are both in `Params`. In training, layers update
    their buffers in place in the dict that was passed.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        """`build` makes a freshly initialised module; two skeletons spare switching between the modes."""
        self._build = build
        cpu = torch.device("cpu")
        with seeded(torch.Generator().manual_seed(0), cpu):
            self._training, self._evaluating = build().train(), build().eval()
        if any(_counts(layer) for layer in self._training.modules()):
            raise TacitError("BatchNorm with momentum=None depends on how often a process ran it: give it a momentum")
        self.trainable = tuple(name for name, p in self._training.named_parameters() if p.requires_grad)
        self.names = tuple(_tensors(self._training))
        self.buffers = tuple(name for name in self.names if name not in dict(self._training.named_parameters()))
        self.has_features = callable(getattr(self._training, "features", None))

    def init(self, stream: torch.Generator) -> Params:
        """Fresh weights; the same stream gives the same weights."""
        with seeded(stream, torch.device("cpu")):
            return {name: value.detach().clone() for name, value in _tensors(self._build()).items()}

    def apply(self, params: Mapping[str, Tensor], x: Tensor, train: bool = False) -> Tensor:
        """Logits (n, classes) of inputs (n, …)."""
        module = self._training if train else self._evaluating
        logits: Tensor = functional_call(module, dict(params), (x,))
        return logits

    def restate(self, params: Params, inputs: Iterable[Tensor]) -> Params:
        """`params` with BatchNorm statistics recomputed: their plain average over these batches."""
        module, restated = deepcopy(self._evaluating), channels_last(params)
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
        module.load_state_dict(module.state_dict() | params)
        return module

    def size(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self._training.parameters() if p.requires_grad)


def _tensors(module: nn.Module) -> Params:
    """Parameters and float buffers; integer buffers only count batches and stay in the skeleton."""
    named = dict(module.named_parameters())
    return named | {name: b for name, b in module.named_buffers() if b.is_floating_point()}


def _counts(layer: nn.Module) -> bool:
    """Whether a layer's result depends on a counter of batches, which is not in `Params`."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None


def _norm(kind: Norm, channels: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(next((g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels > g), 1), channels)


class Cnn(nn.Module):
    """The small CNN of FedSiam's MNIST experiments, 21,840 parameters on 1×28×28."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Two 5×5 convolutions, each pooled, and two dense layers, with dropout."""
        super().__init__()
        a, b, hidden = (max(1, round(n * width)) for n in (10, 20, 50))
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 5), _norm(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 5), _norm(norm, b)
        self.drop2 = nn.Dropout2d()
        self.fc1 = nn.Linear(b * _after(shape, 2), hidden)
        self.drop1 = nn.Dropout()
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(nn.functional.max_pool2d(self.norm1(self.conv1(x)), 2))
        x = torch.relu(nn.functional.max_pool2d(self.drop2(self.norm2(self.conv2(x))), 2))
        return self.fc2(self.drop1(torch.relu(self.fc1(x.flatten(1)))))  # type: ignore[no-any-return]


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling: 6 and 16 maps, 120, 84."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """Two 5×5 convolutions, each pooled, and three dense layers."""
        super().__init__()
        a, b, c, d = (max(1, round(n * width)) for n in (6, 16, 120, 84))
        self.conv1, self.norm1 = nn.Conv2d(shape[0], a, 5), _norm(norm, a)
        self.conv2, self.norm2 = nn.Conv2d(a, b, 5), _norm(norm, b)
        self.fc1 = nn.Linear(b * _after(shape, 2), c)
        self.fc2 = nn.Linear(c, d)
        self.fc3 = nn.Linear(d, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 84 activations below the classifier."""
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = nn.functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1)))))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc3(self.features(x))  # type: ignore[no-any-return]


class Linear(nn.Module):
    """Multinomial logistic regression: convex, so its optimum is known."""

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """One dense layer."""
        super().__init__()
        self.fc = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


NETS: dict[str, type[nn.Module]] = {"cnn": Cnn, "lenet": LeNet, "linear": Linear}


def find(name: str) -> Callable[..., nn.Module]:
    """What makes the module of this name: one of ours, or the user's own `module:callable(shape, classes)`."""
    if ":" not in name:
        if name not in NETS:
            raise unknown("network", name, NETS)
        return NETS[name]
    factory: Callable[..., nn.Module] = own.load("network", name)
    return factory


def build(name: str, shape: tuple[int, ...], classes: int, norm: Norm = "none", width: float = 1.0) -> Net:
    """The network of this name for inputs of `shape`."""
    factory = find(name)
    if name not in NETS and (norm, width) != ("none", 1.0):
        raise TacitError(f"net.norm and net.width are not for networks of your own: leave them out with {name}")
    choices = (norm, width) if name in NETS else ()
    try:
        return Net(partial(factory, shape, classes, *choices))
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        raise TacitError(f"the network '{name}' can not take inputs of shape {shape}: {error}") from error


def _after(shape: tuple[int, ...], blocks: int) -> int:
    """Area of the maps after that many 5×5 convolutions without padding, each halved by pooling."""
    height, width = shape[1:]
    for _ in range(blocks):
        height, width = (height - 4) // 2, (width - 4) // 2
    if min(height, width) < 1:
        raise ValueError("the images are too small for it; use larger ones or another network")
    return height * width
