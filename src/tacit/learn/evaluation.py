"""What a model says about samples, and how well it does."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.federation import Samples, Views
from tacit.method import Holder
from tacit.nets import Net
from tacit.params import Params

EVALUATION_BATCH = 500


@torch.no_grad()
def predict(net: Net, model: Params, x: Tensor, views: Views) -> Tensor:
    """(n, …) as stored -> probabilities (n, c), without augmentation, on the model's device."""
    device = next(iter(model.values())).device
    parts = (views.plain(part.to(device)) for part in x.split(EVALUATION_BATCH))
    model = params.channels_last(model)
    return torch.cat([functional.softmax(net.apply(model, part), dim=1) for part in parts])


@dataclass(frozen=True)
class Score:
    """How a model does on some samples; scores of parts add up to the score of the whole."""

    correct: int = 0
    loss: float = 0.0
    count: int = 0

    def __add__(self, other: "Score") -> "Score":
        """The score on both."""
        return Score(self.correct + other.correct, self.loss + other.loss, self.count + other.count)


def loss_on(holder: Holder, model: Params, samples: Samples) -> float:
    """Mean loss of a model on labeled samples."""
    rows = torch.arange(len(samples)).split(EVALUATION_BATCH)
    parts = (evaluate(holder.net, model, samples.take(row), holder.views, holder.device) for row in rows)
    score = sum(parts, Score())
    return score.loss / score.count


@torch.no_grad()
def evaluate(net: Net, model: Params, samples: Samples, views: Views, device: torch.device) -> Score:
    """Correct answers and summed loss on labeled samples, one forward pass."""
    logits = net.apply(params.channels_last(model), views.plain(samples.x.to(device)))
    y = samples.y.to(device)
    loss = functional.cross_entropy(logits, y, reduction="sum")
    return Score(int((logits.argmax(dim=1) == y).sum()), float(loss), len(samples))
