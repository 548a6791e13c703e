"""The gradient of a step that protects single samples: DP-SGD on the labeled and unlabeled samples of a batch."""

import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.learn.batching import Batch, Rates
from tacit.learn.forward import LocalLoss, Output
from tacit.method import Holder, SampleNoise
from tacit.params import Params
from tacit.protect import sample_dp


class PrivateGradient:
    """Clipped and noisy gradients at one holder; see `tacit.protect.sample_dp` for what they protect.

    With b labeled and b_u unlabeled samples expected in a batch, B = b + b_u, a labeled sample counts as B/b times its
    loss and an unlabeled one as B/b_u times its weighted loss. These are clipped to C each. The gradient is their sum
    with noise, divided by B: without clipping and noise, the mean over the labeled samples plus that over the others.
    """

    def __init__(self, holder: Holder, given: SampleNoise, local: LocalLoss, rates: Rates) -> None:
        """`rates` are those with which batches are drawn."""
        self._net, self._given, self._local, self._rates = holder.net, given, local, rates
        self._stream = given.stream(holder, "sample noise")

    def __call__(self, w: Params, batch: Batch) -> list[Tensor]:
        """The gradient by trainable tensor, in their order."""
        total = [torch.zeros_like(w[name]) for name in self._net.trainable]
        if len(batch.x) + len(batch.u):
            x, pulls = self._pulls(w, batch)
            total = sample_dp.clipped_sum(self._net, w, x, pulls, self._given.clip)
        sample_dp.add_noise(total, self._given, self._stream)
        torch._foreach_div_(total, self._rates.expected)
        return total

    def _pulls(self, w: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the network sees of each sample, and the gradient of the sample's share of the loss by its logits."""
        passes: list[tuple[Tensor, Tensor]] = []

        def forward(x: Tensor) -> Output:
            passes.append((x, sample_dp.logits_by_sample(self._net, w, x).requires_grad_()))
            return Output(passes[-1][1], None)

        cost = self._local.cost(w, batch, forward)
        known, unknown = len(batch.x), len(batch.u)
        if [len(x) for x, _ in passes] != [known + unknown]:
            problem = "the objective declares per_sample, but does not make one forward pass with a row per sample"
            raise TacitError(problem, "correct its declaration", code="learn.not-per-sample")
        x, logits = passes[0]
        (pulls,) = torch.autograd.grad(cost.total, [logits], materialize_grads=True)
        rates = self._rates
        # The loss is a mean over the samples that are there. A sample's own share must not depend on their number.
        pulls[:known] *= known * rates.expected / max(rates.expected_labeled, 1e-12)
        pulls[known:] *= unknown * rates.expected / max(rates.expected_unlabeled, 1e-12)
        return x, pulls
