"""Networks as pure functions of their parameters, by name: `build("lenet", (1, 28, 28), 10)`."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tacit import own
from tacit.errors import TacitError, unknown
from tacit.nets.layers import Classifier, Norm
from tacit.nets.net import Net
from tacit.nets.plain import AlexNet, Cnn, EmnistCnn, FedMixVgg, FedSiamCnn, LeNet, Linear, MoonCnn
from tacit.nets.residual import MoonResNet50, ResNet9, ResNet18, WideResNet
from tacit.nets.text import Lstm
from tacit.random import seeded

__all__ = ["NETS", "Cnn", "LeNet", "Linear", "Net", "Norm", "build", "find"]

# Each is called with shape, classes, norm and width; its `norms` are those it can have, the first by default.
NETS: dict[str, type[Classifier] | type[Linear]] = {
    "cnn": Cnn,
    "fedsiam-cnn": FedSiamCnn,
    "lenet": LeNet,
    "resnet9": ResNet9,
    "resnet18": ResNet18,
    "alexnet": AlexNet,
    "moon-cnn": MoonCnn,
    "moon-resnet50": MoonResNet50,
    "fedmix-vgg": FedMixVgg,
    "emnist-cnn": EmnistCnn,
    "wrn28-2": WideResNet,
    "lstm": Lstm,
    "linear": Linear,
}


def find(name: str) -> Callable[..., nn.Module]:
    """What makes the module of this name: one of ours, or the user's own `module:callable(shape, classes)`.

    A module of the user's own has features when it has methods `features(x)` and `classify(z)`, such that
    `forward(x)` is `classify(features(x))`. Without them it serves all methods but those that need representations.
    """
    if ":" not in name:
        if name not in NETS:
            raise unknown("network", name, NETS)
        return NETS[name]
    factory: Callable[..., nn.Module] = own.load("network", name)
    return factory


def build(name: str, shape: tuple[int, ...], classes: int, norm: Norm | None = None, width: float = 1.0) -> Net:
    """The network of this name for inputs of `shape`; without `norm` it has the normalisation of its paper."""
    factory = find(name)
    if name in NETS:
        _refuse(name, shape, norm)
        factory = partial(factory, norm=norm or NETS[name].norms[0], width=width)
    elif (norm, width) != (None, 1.0):
        raise TacitError(f"net.norm and net.width are not for networks of your own: leave them out with {name}")
    try:
        net = Net(partial(factory, shape, classes))
        if name not in NETS:
            _try(name, net, shape, classes)
        return net
    except TacitError:
        raise
    except Exception as error:
        if name in NETS and not isinstance(error, (RuntimeError, ValueError, ZeroDivisionError)):
            raise  # a mistake of ours; a user's own callable may do whatever it does
        raise TacitError(f"the network '{name}' can not take inputs of shape {shape}: {error}") from error


def _try(name: str, net: Net, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network of the user's own that fails on its inputs, or gives anything but a logit for each class."""
    kind = torch.float32 if len(shape) == 3 else torch.int64  # images, or the characters of a text
    nothing = torch.zeros(1, *shape, dtype=kind)
    with torch.no_grad(), seeded(torch.Generator().manual_seed(0), torch.device("cpu")):
        logits: object = net.apply(net.init(torch.Generator().manual_seed(0)), nothing)
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise TacitError(
            f"the network '{name}' gives {found} for one input of shape {shape}: have it give a tensor of shape "
            f"{(1, classes)}, a logit for each class"
        )


def _refuse(name: str, shape: tuple[int, ...], norm: Norm | None) -> None:
    """One sentence where a network of ours can not have these inputs or this normalisation."""
    if name == "lstm" and len(shape) != 1:
        raise TacitError("the network 'lstm' reads text and these inputs are images: use --net lenet")
    if name not in ("lstm", "linear") and len(shape) != 3:
        raise TacitError(f"the network '{name}' reads images and these inputs are text: use --net lstm")
    if norm not in (None, *NETS[name].norms):
        raise TacitError(f"the network '{name}' has no place for normalisation: leave out net.norm with it")
