"""Networks as pure functions of their parameters, by name: `build("lenet", (1, 28, 28), 10)`.

A module states in `NETS` which networks it offers under which names.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit import user_code
from tacit.discovery import offered
from tacit.errors import TacitError, unknown
from tacit.federation import Inputs
from tacit.nets.hugging_face import HuggingFace
from tacit.nets.layers import Classifier, Norm
from tacit.nets.net import Net, Precision
from tacit.nets.one_vs_all import WithOneVsAll
from tacit.nets.plain import Cnn, LeNet, Linear
from tacit.nets.start import DRAWN, Start, starting
from tacit.random import seeded

__all__ = ["NETS", "Cnn", "LeNet", "Linear", "Net", "Norm", "Precision", "Start", "build", "find"]

# Each is called with shape, classes, norm and width; its `norms` are those it can have, the first by default.
NETS: dict[str, type[Classifier] | type[Linear]] = offered(__name__, __path__, "NETS")

MOST_PARAMETERS = 2_000_000_000  # of a network of the package; 8 GB
WIDEST = 1e4  # a factor with which no network can be built


def find(name: str) -> Callable[..., nn.Module]:
    """The factory of the network of this name: one of the package, or the user's `module:callable(shape, classes, …)`.

    Its further parameters are the settings in `[net.options]`.

    A user's module has features if it has methods `features(x)` and `classify(z)` such that `forward(x)` is
    `classify(features(x))`. Without them it works with all methods but those that need representations.
    """
    if name == "hf":
        return HuggingFace
    if ":" not in name:
        if name not in NETS:
            raise unknown("network", name, NETS)
        return NETS[name]
    factory: Callable[..., nn.Module] = user_code.load("network", name)
    return factory


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    norm: Norm | None = None,
    width: float = 1.0,
    options: Mapping[str, Any] | None = None,
    inputs: Inputs | None = None,
    start: Start = DRAWN,
    one_vs_all: bool = False,
) -> Net:
    """The network of this name for inputs of `shape`; without `norm` it has the normalisation of its paper.

    `options` are further arguments of its factory. `inputs` says what the inputs are; without it no kind is refused,
    and they are floats. `start` says where its weights come from and which of them train; by default all are drawn.
    With `one_vs_all` it has a second head, see there.
    """
    factory = partial(find(name), **options or {})
    if name in NETS:
        _refuse(name, inputs, norm)
        _refuse_too_large(name, shape)
        factory = partial(factory, norm=norm or NETS[name].norms[0], width=width)
        _refuse_too_wide(name, width, partial(factory, shape, classes))
    elif (norm, width) != (None, 1.0):
        problem = f"net.norm and net.width do not work with your own network {name}"
        raise TacitError(problem, "leave them out", code="nets.settings-of-user-net")
    try:
        ready = starting(partial(factory, shape, classes), start)
        net = Net(WithOneVsAll(ready, classes) if one_vs_all else ready)
        if name not in NETS:
            _try(name, net, torch.zeros(1, *shape) if inputs is None else inputs.blank(), classes)
        return net
    except TacitError:
        raise
    except Exception as error:
        if name in NETS and not isinstance(error, (RuntimeError, ValueError, ArithmeticError, MemoryError)):
            raise  # a bug of the package; a user's callable may raise anything
        remedy = "use larger images or another network" if name in NETS else f"fix {name.partition(':')[0]}"
        problem = f"the network '{name}' cannot take inputs of shape {shape}: {error}"
        raise TacitError(problem, remedy, code="nets.inputs-do-not-fit") from error


def _refuse_too_large(name: str, shape: tuple[int, ...]) -> None:
    """Refuse images for which a network designed for small ones has hundreds of millions of parameters."""
    largest = getattr(NETS[name], "largest", None)
    if largest is not None and max(shape[1:], default=0) > largest:
        raise TacitError(
            f"the network '{name}' is for images up to {largest} pixels, and these have {max(shape[1:])}",
            "use --net efficientnet-lite0 or resnet18, or a smaller data.size",
            code="nets.images-too-large",
        )


def _refuse_too_wide(name: str, width: float, factory: Callable[[], nn.Module]) -> None:
    """Refuse a width with which the network has more parameters than any machine holds, before memory is taken."""
    if width <= 1:
        return
    try:
        with torch.device("meta"):
            size = sum(value.numel() for value in factory().parameters())
    except (ArithmeticError, RuntimeError, ValueError, TypeError):
        if width < WIDEST:
            return  # something else is wrong, which building it will tell
        size = MOST_PARAMETERS + 1
    if size > MOST_PARAMETERS:
        problem = f"with net.width = {width:g} the network '{name}' has more than {MOST_PARAMETERS:,} parameters"
        raise TacitError(problem, "use a smaller width", code="nets.too-wide")


def _try(name: str, net: Net, nothing: Tensor, classes: int) -> None:
    """Refuse a user's network that fails on its inputs, or that does not return a logit for each class."""
    with torch.no_grad(), seeded(torch.Generator().manual_seed(0), torch.device("cpu")):
        logits: object = net.apply(net.init(torch.Generator().manual_seed(0)), nothing)
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        problem = f"the network '{name}' returns {found} for one input of shape {tuple(nothing.shape[1:])}"
        remedy = f"let it return a tensor of shape {(1, classes)}, a logit for each class"
        raise TacitError(problem, remedy, code="nets.no-logits")


def _refuse(name: str, inputs: Inputs | None, norm: Norm | None) -> None:
    """Refuse inputs or a normalisation that a network of the package cannot have."""
    if inputs is not None and inputs.kind not in NETS[name].reads:
        raise TacitError(
            f"the network '{name}' reads {' and '.join(NETS[name].reads)}, and these inputs are {inputs.kind}",
            f"use --net {inputs.suggested_net}",
            code="nets.wrong-inputs",
        )
    if norm not in (None, *NETS[name].norms):
        problem = f"the network '{name}' has no place for normalisation"
        raise TacitError(problem, "leave out net.norm", code="nets.no-normalisation")
