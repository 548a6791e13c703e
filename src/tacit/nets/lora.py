"""LoRA: Low-Rank Adaptation of Large Language Models (Hu et al., ICLR 2022), for linear and pointwise layers."""

from torch import Tensor, nn

from tacit.errors import TacitError


class Lora(nn.Module):
    """A frozen layer W and a change of rank r: h = W x + B A x. B starts at zero, so the network starts unchanged.

    The paper's factor α/r is 1.
    """

    def __init__(self, frozen: nn.Linear | nn.Conv2d, rank: int) -> None:
        """A has the initial weights that torch gives a layer, as in the authors' release."""
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        if isinstance(frozen, nn.Linear):
            self.a: nn.Module = nn.Linear(frozen.in_features, rank, bias=False)
            self.b: nn.Module = nn.Linear(rank, frozen.out_features, bias=False)
        else:
            self.a = nn.Conv2d(frozen.in_channels, rank, 1, bias=False)
            self.b = nn.Conv2d(rank, frozen.out_channels, 1, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        """W x + B A x."""
        return self.frozen(x) + self.b(self.a(x))  # type: ignore[no-any-return]


def add_lora(module: nn.Module, rank: int, but: nn.Module | None = None) -> None:
    """Give every linear and every pointwise convolution a change of this rank, except one layer."""
    found = [(parent, name, layer) for parent in module.modules() for name, layer in parent.named_children()]
    places = [(parent, name, layer) for parent, name, layer in found if layer is not but and _fits(layer)]
    if not places:
        problem = "net.train = lora needs linear or 1×1 convolution layers, and this network has none but its head"
        raise TacitError(problem, "use last:N", code="nets.nothing-for-lora")
    for parent, name, layer in places:
        setattr(parent, name, Lora(layer, rank))  # type: ignore[arg-type]


def _fits(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1
    return type(layer) is nn.Linear  # nn.MultiheadAttention reads the weight of its own kind of linear layer directly
