"""RandAugment in torch gives the pixels of the NumPy version."""

import numpy as np
import pytest
import torch

from tacit.data.views import torch_randaugment
from tacit.data.views.augment import VARIANTS, ImageViews
from tacit.data.views.randaugment import KINDS, RandAugment, Range
from tests.second_device import DEVICE, SecondDevice

SHAPES = [(40, 1, 16, 16), (40, 3, 32, 32), (17, 3, 9, 23), (5, 4, 64, 64), (9, 2, 12, 12)]
AMOUNTS = {"posterize": Range(0, 8.5), "solarize": Range(256, 0), "rotate": Range(-180, 180), "noise": Range(0, 40)}


def pictures(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Noise, with one image of a single value."""
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    x[0] = 77
    return x


def same_pixels(recipe: RandAugment, shape: tuple[int, ...], seed: int) -> bool:
    x, stream = pictures(shape, seed), torch.Generator().manual_seed(seed)
    mean = np.arange(90, 90 + shape[1], dtype=np.uint8)[:, None, None]
    drawn = recipe.draw_all(shape, stream)
    expected = recipe.apply(x.numpy().copy(), mean, drawn)
    return torch.equal(torch_randaugment.apply(recipe, x, mean, drawn), torch.from_numpy(expected))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_policy_gives_the_same_pixels(name: str, shape: tuple[int, ...]) -> None:
    assert torch_randaugment.can_apply(shape)
    assert all(same_pixels(VARIANTS[name], shape, seed) for seed in range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_gives_the_same_pixels(kind: str) -> None:
    recipe = RandAugment({kind: AMOUNTS.get(kind, Range(-0.9, 1.9))}, count=1, cutout=(0, 0))
    assert all(same_pixels(recipe, (60, 3, 20, 20), seed) for seed in range(5))


def test_images_whose_sums_are_rounded_stay_with_numpy() -> None:
    assert not torch_randaugment.can_apply((1, 5, 16, 16))
    assert not torch_randaugment.can_apply((1, 3, 300, 300))


def test_views_on_a_device_have_the_same_bits_and_wait_for_nothing() -> None:
    x, views = pictures((12, 3, 16, 16), 0), ImageViews((0.5, 0.4, 0.3), (0.2, 0.3, 0.25), flip=True)
    expected = views.of_batches(x, [5, 7], ["weak", "strong"], torch.Generator().manual_seed(1))
    with SecondDevice() as device:
        far = x.to(DEVICE, non_blocking=True)
        found = views.of_batches(far, [5, 7], ["weak", "strong"], torch.Generator().manual_seed(1))
        assert not device.waits
        here = [view.cpu() for view in found]
    assert all(torch.equal(one, two) for one, two in zip(here, expected, strict=True))
