"""Views of feature vectors: standardised, with a little noise, with more noise and missing features."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class VectorViews:
    """The three views (`tacit.federation.Views`) of rows (n, d) whose training rows have this mean and deviation.

    Random numbers come from the given stream on the CPU, so they depend neither on the device nor on the process.
    """

    mean: tuple[float, ...] = field(repr=False)
    std: tuple[float, ...] = field(repr=False)
    little: float = 0.1  # deviation of the weak view's noise, in deviations of a feature
    much: float = 0.3  # deviation of the strong view's noise
    mask: float = 0.2  # share of features that the strong view replaces by their mean

    def plain(self, x: Tensor) -> Tensor:
        """Standardised only."""
        mean, std = torch.tensor([self.mean, self.std]).to(x.device, non_blocking=True).unbind()
        return (x - mean).div_(std)

    def weak(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """With a little noise."""
        noise = torch.randn(x.shape, generator=stream)
        return self.plain(x) + self.little * noise.to(x.device, non_blocking=True)

    def strong(self, x: Tensor, stream: torch.Generator) -> Tensor:
        """With more noise, and some features at their mean."""
        noise = torch.randn(x.shape, generator=stream)
        hidden = torch.rand(x.shape, generator=stream) < self.mask
        noisy = self.plain(x) + self.much * noise.to(x.device, non_blocking=True)
        return noisy.masked_fill(hidden.to(x.device, non_blocking=True), 0.0)
