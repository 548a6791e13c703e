"""What the server makes of the clients' mean: a step of an optimizer towards it, and a last layer tuned to theirs.

The optimizers are those of Adaptive Federated Optimization (Reddi et al., ICLR 2021), Algorithm 2: the way Δ from the
server's model to the mean takes the place of a gradient. The tuning is ProxyFL's GPT (Chen and Wang, CVPR 2026).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional

from tacit.errors import TacitError
from tacit.params import Params, add, scale, sub

Kind = Literal["none", "sgd", "momentum", "adam", "yogi"]

# The numbers of each, in their order, and what they are unless given: η, β1, β2, τ.
ADAPTIVE = (0.01, 0.9, 0.99, 1e-3)
DEFAULTS: dict[Kind, tuple[float, ...]] = {
    "none": (),
    "sgd": (1.0,),
    "momentum": (1.0, 0.9),
    "adam": ADAPTIVE,
    "yogi": ADAPTIVE,
}


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of the server with its numbers; `none` takes the mean as it is."""

    kind: Kind = "none"
    lr: float = 1.0  # η
    beta1: float = 0.9  # β1: share of the last m that stays
    beta2: float = 0.99  # β2: share of the last v that stays
    tau: float = 1e-3  # τ: how adaptive; larger is closer to momentum

    @property
    def possible(self) -> bool:
        """Whether its numbers are in their ranges."""
        shares = all(0 <= share < 1 for share in (self.beta1, self.beta2))
        return shares and all(0 < number < inf for number in (self.lr, self.tau))


def parse(text: str) -> Optimizer:
    """`adam:0.01:0.9` -> its optimizer; numbers at the end may be left out."""
    name, *given = text.split(":")
    for kind, numbers in DEFAULTS.items():
        if kind == name and len(given) <= len(numbers):
            try:
                found = Optimizer(kind, *map(float, given), *numbers[len(given) :])
            except ValueError:
                break
            if found.possible:
                return found
    raise TacitError(
        f"method.server_optimizer = '{text}' is not possible",
        "choose none, sgd:1, momentum:1:0.9, adam:0.01:0.9:0.99:0.001 or yogi:0.01:0.9:0.99:0.001",
        code="method.server-optimizer",
    )


def _checked(text: str) -> str:
    """The text, if it names an optimizer."""
    parse(text)
    return text


# Settings that averaging methods have, with their documentation.
ServerOptimizer = Annotated[
    str,
    AfterValidator(_checked),
    Field(
        description="the server's step towards the mean: none (the mean itself), sgd:η, momentum:η:β1, "
        "adam:η:β1:β2:τ or yogi:η:β1:β2:τ; numbers may be left out"
    ),
]
TuneHead = Annotated[
    int,
    Field(
        ge=0, description="epochs in which the server tunes the mean's last layer to all uploaded ones (GPT of ProxyFL)"
    ),
]


# "m" and, with adam and yogi, "v": what an optimizer carries from one round to the next. A plain dict, so that the
# state of any method can hold it.
Moments = dict[str, Params]


def step(optimizer: Optimizer, w: Params, mean: Params, moments: Moments | None) -> tuple[Params, Moments | None]:
    """Algorithm 2: x_{t+1} = x_t + η·m_t/(√v_t + τ), with Δ_t the way from x_t to the mean, and the moments after it.

    m starts at 0 and v at τ², the least that Algorithm 2 allows; there is no bias correction.
    """
    eta, beta1, beta2, tau = optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.tau
    delta = sub(mean, w)
    if optimizer.kind == "sgd":
        return add(w, scale(delta, eta)), None
    if optimizer.kind == "momentum":
        m = delta if moments is None else add(scale(moments["m"], beta1), delta)
        return add(w, scale(m, eta)), {"m": m}
    m = scale(delta, 1 - beta1)
    m = m if moments is None else add(scale(moments["m"], beta1), m)
    old = None if moments is None else moments["v"]
    v = {}
    for name, value in delta.items():
        square = value.square()
        before = torch.full_like(square, tau**2) if old is None else old[name]
        if optimizer.kind == "adam":
            v[name] = beta2 * before + (1 - beta2) * square
        else:
            v[name] = before - (1 - beta2) * square * (before - square).sign()
    return {name: w[name] + eta * m[name] / (v[name].sqrt() + tau) for name in w}, {"m": m, "v": v}


@dataclass(frozen=True)
class HeadTuning:
    """How the server tunes the last layer of a mean: its rows are proxies of the classes."""

    epochs: int = 0  # Q: passes over all uploaded rows; 0: none
    lr: float = 0.005  # of plain SGD
    batch: int = 4  # rows in a step
    anchor: Literal["global", "uploaded"] = "global"  # compare a global row with a client's rows, or the reverse
    margin: float = 0.0  # the largest distance that is added to that of the true class


def tuned_rows(rows: Tensor, uploaded: Sequence[Tensor], tuning: HeadTuning, stream: torch.Generator) -> Tensor:
    """Averaged rows (c, d) and those of each client (c, d) -> (c, d): closer to their own class, apart from others.

    ProxyFL, Eq. 2: -log softmax(-φ)_c for each class c of each client m, with φ_{c'} = ‖Ω^c - ω_m^{c'}‖; as released
    φ_{c'} = ‖ω_m^c - Ω^{c'}‖, and for the true class a margin on top.
    """
    local = torch.stack([each.to(rows) for each in uploaded])  # (m, c, d)
    clients, classes = local.shape[:2]
    extra = margin_of(rows, tuning.margin)
    proxies = rows.detach().clone()
    for _ in range(tuning.epochs):
        for part in torch.randperm(clients * classes, generator=stream).to(rows.device).split(tuning.batch):
            m, c = part // classes, part % classes
            leaf = proxies.detach().requires_grad_()
            apart = leaf[c][:, None] - local[m] if tuning.anchor == "global" else local[m, c][:, None] - leaf
            phi = torch.linalg.vector_norm(apart, dim=2) + extra * functional.one_hot(c, classes)
            (gradient,) = torch.autograd.grad(functional.cross_entropy(-phi, c), leaf)
            proxies = leaf.detach() - tuning.lr * gradient
    return proxies


def margin_of(rows: Tensor, most: float) -> float:
    """The largest of the distances from each row (c, d) to its nearest other one, at most `most`."""
    if not most:
        return 0.0
    apart = torch.linalg.vector_norm(rows[:, None] - rows, dim=2).fill_diagonal_(inf)
    return min(float(apart.amin(dim=1).max()), most)
