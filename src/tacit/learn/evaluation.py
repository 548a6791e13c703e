"""Predictions of a model, and how good they are."""

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.federation import Samples, Views
from tacit.method import Holder
from tacit.nets import Net
from tacit.params import Params

EVALUATION_BATCH = 500
Z = 1.959964  # standard errors on each side of a 95 % interval


@torch.no_grad()
def predict(net: Net, model: Params, x: Tensor, views: Views) -> Tensor:
    """(n, …) as stored -> probabilities (n, c), without augmentation, on the model's device."""
    device = next(iter(model.values())).device
    parts = (views.plain(part.to(device)) for part in x.split(EVALUATION_BATCH))
    model = params.channels_last(model)
    return torch.cat([functional.softmax(net.apply(model, part), dim=1) for part in parts])


@dataclass(frozen=True)
class Score:
    """Correct predictions and summed loss on some samples; scores of parts add up to the score of the whole."""

    correct: int = 0
    loss: float = 0.0
    count: int = 0
    outputs: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)  # (n, c) of each part, if asked for

    def __add__(self, other: "Score") -> "Score":
        """The score on both."""
        return Score(
            self.correct + other.correct,
            self.loss + other.loss,
            self.count + other.count,
            self.outputs + other.outputs,
        )

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson): what so few samples leave open."""
        if not self.count:
            return 0.0, 1.0
        share, over = self.correct / self.count, Z * Z / self.count
        centre = (share + over / 2) / (1 + over)
        half = Z / (1 + over) * sqrt(share * (1 - share) / self.count + over / self.count / 4)
        return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def loss_on(holder: Holder, model: Params, samples: Samples) -> float:
    """Mean loss of a model on labeled samples."""
    rows = torch.arange(len(samples)).split(EVALUATION_BATCH)
    parts = (evaluate(holder.net, model, samples.take(row), holder.views, holder.device) for row in rows)
    score = sum(parts, Score())
    return score.loss / score.count


@torch.no_grad()
def evaluate(
    net: Net, model: Params, samples: Samples, views: Views, device: torch.device, *, outputs: bool = False
) -> Score:
    """The score on labeled samples, in one forward pass; with its outputs if asked for."""
    logits = net.apply(params.channels_last(model), views.plain(samples.x.to(device)))
    y = samples.y.to(device)
    loss = functional.cross_entropy(logits, y, reduction="sum")
    found = (logits.float().cpu(),) if outputs else ()
    return Score(int((logits.argmax(dim=1) == y).sum()), float(loss), len(samples), found)
