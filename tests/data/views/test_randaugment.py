"""RandAugment: every operation compared with Pillow's, and what is drawn, in which order and how often."""

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from tacit.data.sources import load
from tacit.data.views.augment import FIXMATCH, VARIANTS
from tacit.data.views.randaugment import KINDS, Pixels, RandAugment, Range
from tests.data.real import cifar10_folder
from tests.refusals import refused

FILL = (120, 60, 200)
BARE = RandAugment({}, count=0, cutout=(0, 0))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def grey() -> Pixels:
    """(40, 1, 28, 28): clothes."""
    pixels: Pixels = load("fashion-small").x[:40].numpy()
    return pixels


@cache
def colour() -> Pixels:
    """(40, 3, 28, 28): every channel a different garment, dim, with a bright background."""
    x = load("fashion-small").x[:120].numpy().reshape(40, 3, 28, 28)
    scale = np.array([0.9, -0.6, 0.5])[:, None, None]
    pixels: Pixels = np.clip(x * scale + np.array([10, 200, 90])[:, None, None], 0, 255).astype(np.uint8)
    return pixels


def cifar() -> Pixels:
    """(40, 3, 32, 32): the first images of CIFAR-10, on machines that have it."""
    path = cifar10_folder() / "cifar-10-batches-bin" / "data_batch_1.bin"
    pixels: Pixels = np.fromfile(path, np.uint8, 40 * 3073).reshape(40, 3073)[:, 1:].reshape(40, 3, 32, 32)
    return pixels


def ours(x: Pixels, name: str, amount: float, fill: tuple[int, ...] = FILL) -> Pixels:
    """All images after one operation of one amount."""
    variant = replace(BARE, operations={name: Range(amount, amount)}, count=1, pixels=True)
    return variant(x, np.array(fill[: x.shape[1]], np.uint8)[:, None, None], stream())


def pillow(x: Pixels, operation: Callable[[Image.Image], Image.Image]) -> Pixels:
    """The same, one image after the other."""
    if x.shape[1] == 1:
        return np.stack([np.asarray(operation(Image.fromarray(image[0])))[None] for image in x])
    return np.stack(
        [np.asarray(operation(Image.fromarray(image.transpose(1, 2, 0)))).transpose(2, 0, 1) for image in x]
    )


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    fill = FILL if image.mode == "RGB" else FILL[0]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)


def rotated(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, fillcolor=FILL if image.mode == "RGB" else FILL[0])


class Case(NamedTuple):
    """An operation in Pillow's words and how far ours may be from it."""

    operation: Callable[[Image.Image, float], Image.Image]
    amounts: tuple[float, ...]
    levels: int = 0  # by which a pixel may differ
    share: float = 0.0  # of all pixels that may differ


FACTORS = (0, 0.05, 0.5, 0.777, 1, 1.9)
ALL = 255  # levels: a pixel between two may come from either
CASES = {
    "identity": Case(lambda image, _: image, (0,)),
    "autocontrast": Case(
        lambda image, _: ImageOps.autocontrast(image), (0,), levels=1, share=0.01
    ),  # Pillow may cut 254.999…
    "equalize": Case(lambda image, _: ImageOps.equalize(image), (0,)),
    "invert": Case(lambda image, _: ImageOps.invert(image), (0,)),
    "posterize": Case(lambda image, bits: ImageOps.posterize(image, int(bits)), (1, 4, 4.9, 6, 8)),
    "solarize": Case(lambda image, least: ImageOps.solarize(image, int(least)), (0, 1, 90, 128, 255, 256)),
    "brightness": Case(lambda image, f: ImageEnhance.Brightness(image).enhance(f), FACTORS, levels=1, share=0.001),
    "color": Case(lambda image, f: ImageEnhance.Color(image).enhance(f), FACTORS, levels=1, share=0.001),
    "contrast": Case(lambda image, f: ImageEnhance.Contrast(image).enhance(f), FACTORS, levels=1, share=0.001),
    "sharpness": Case(lambda image, f: ImageEnhance.Sharpness(image).enhance(f), FACTORS, levels=1, share=0.001),
    "rotate": Case(rotated, (-30, -7.3, 0, 5, 30, 90, 160, 320), levels=ALL, share=0.002),
    "shear x": Case(
        lambda image, a: affine(image, 1, a, 0, 0, 1, 0), (-0.3, -0.01, 0, 0.17, 0.3), levels=ALL, share=0.002
    ),
    "shear y": Case(
        lambda image, a: affine(image, 1, 0, 0, a, 1, 0), (-0.3, -0.01, 0, 0.17, 0.3), levels=ALL, share=0.002
    ),
    "translate x": Case(lambda image, a: affine(image, 1, 0, int(a), 0, 1, 0), (-100, -9.6, -1, 0, 0.9, 8, 100)),
    "translate y": Case(lambda image, a: affine(image, 1, 0, 0, 0, 1, int(a)), (-100, -9.6, -1, 0, 0.9, 8, 100)),
}


def test_every_operation_is_compared_with_pillow() -> None:
    assert {*CASES, "cutout", "noise"} == set(KINDS)


@pytest.mark.parametrize("name, amount", [(name, amount) for name, case in CASES.items() for amount in case.amounts])
@pytest.mark.parametrize("images", [grey, colour, pytest.param(cifar, marks=pytest.mark.data)])
def test_each_operation_equals_pillows(name: str, amount: float, images: Callable[[], Pixels]) -> None:
    x, case = images(), CASES[name]
    expected = pillow(x, lambda image: case.operation(image, amount))
    difference = np.abs(ours(x, name, amount).astype(int) - expected)
    assert difference.max() <= case.levels
    assert (difference > 0).mean() <= case.share


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_an_image_of_one_colour_stays_as_it_is(name: str) -> None:
    x = np.array([0, 7, 254, 255], np.uint8).reshape(4, 1, 1, 1).repeat(16, 2).repeat(16, 3)
    assert (ours(x, name, 0) == x).all()


def test_a_grey_image_has_no_colour_to_change() -> None:
    for factor in (0, 0.3, 1.9):
        assert (ours(grey(), "color", factor) == grey()).all()
        assert (ours(colour(), "color", factor) != colour()).any()


def test_a_wide_image_is_rotated_without_distortion() -> None:
    x = colour()[:, :, :12]
    turned = pillow(x, lambda image: rotated(image, 30))
    assert (ours(x, "rotate", 30) != turned).mean() <= 0.002


def cut(n: int, h: int, w: int, variant: RandAugment) -> NDArray[np.bool_]:
    """(n, h, w): which pixels of bright images are dark afterwards."""
    white = np.full((n, 1, h, w), 255, np.uint8)
    dark: NDArray[np.bool_] = variant(white, np.zeros((1, 1, 1), np.uint8), stream())[:, 0] == 0
    return dark


def test_the_final_cut_out_is_a_square_cropped_at_the_border() -> None:
    gone = cut(500, 20, 30, replace(BARE, cutout=(0.5, 0.5)))
    heights, widths = gone.any(2).sum(1), gone.any(1).sum(1)
    assert (gone.sum((1, 2)) == heights * widths).all()  # without holes
    assert heights.max() == widths.max() == 10  # half of the shorter side
    assert heights.min() == widths.min() == 5  # a centre at the very border leaves half
    assert gone.any(0).all()  # anywhere


def test_a_cut_out_can_have_a_random_side() -> None:
    gone = cut(500, 32, 32, replace(BARE, cutout=(0, 0.5)))
    sides = np.maximum(gone.any(2).sum(1), gone.any(1).sum(1))
    assert set(sides.tolist()) == set(range(17))


def test_fill_colours_are_those_of_the_variant() -> None:
    x = np.full((50, 3, 16, 16), 200, np.uint8)
    mean = np.array([1, 2, 3], np.uint8)[:, None, None]
    away = {"translate x": Range(1, 1)}
    for fill, found in ((None, [1, 2, 3]), (9, [9, 9, 9])):
        assert replace(BARE, operations=away, count=1, fill=fill)(x, mean, stream())[7, :, 5, 5].tolist() == found
        gone = replace(BARE, operations={"cutout": Range(3, 3)}, count=1, cutout_fill=fill)(x, mean, stream())
        assert gone[7, :, 5, 5].tolist() == found


# --- what is drawn ----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(seed=st.integers(0, 99), first=st.sampled_from(sorted(FIXMATCH)), second=st.sampled_from(sorted(FIXMATCH)))
def test_operations_are_applied_in_the_drawn_order(seed: int, first: str, second: str) -> None:
    x, mean = grey()[:12], np.full((1, 1, 1), FILL[0], np.uint8)
    variant = replace(BARE, operations={first: FIXMATCH[first], second: FIXMATCH[second]}, count=2)
    expected = x.copy()
    for kinds, amounts, _ in variant.draw(x.shape, stream(seed)):
        for i, (kind, amount) in enumerate(zip(kinds, amounts, strict=True)):
            expected[i] = ours(expected[i : i + 1], KINDS[kind], float(amount))[0]
    assert (variant(x, mean, stream(seed)) == expected).all()


def test_the_order_of_operations_matters() -> None:
    x = colour()
    assert (ours(ours(x, "equalize", 0), "rotate", 20) != ours(ours(x, "rotate", 20), "equalize", 0)).any()


def test_operations_are_drawn_equally_often() -> None:
    draws = VARIANTS["fixmatch"].draw((14_000, 3, 32, 32), stream())
    assert len(draws) == 2
    for kinds, _, _ in draws:
        many = Counter(KINDS[kind] for kind in kinds)
        assert set(many) == set(FIXMATCH)
        assert all(850 < count < 1150 for count in many.values())  # 1,000 ± 30
    assert len({*zip(draws[0].kind.tolist(), draws[1].kind.tolist(), strict=True)}) == 14 * 14  # also twice the same


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "none"])
def test_amounts_fill_their_ranges(name: str) -> None:
    variant, (h, w) = replace(VARIANTS[name], chance=1), (40, 50)
    unit = {} if variant.pixels else {"translate x": w, "translate y": h}
    shares = variant.levels or (0, 1)
    for kinds, amounts, _ in variant.draw((20_000, 1, h, w), stream()):
        for operation, (low, high, mirror) in variant.operations.items():
            found = amounts[kinds == KINDS.index(operation)] / unit.get(operation, 1)
            ends = [low + share * (high - low) for share in (min(shares), max(shares))]
            ends += [] if mirror is None else [2 * mirror - end for end in ends]
            assert found.min() == pytest.approx(min(ends), abs=0.02 * (abs(high - low) + 1e-6))
            assert found.max() == pytest.approx(max(ends), abs=0.02 * (abs(high - low) + 1e-6))
            if mirror is not None:
                assert 0.4 < (found < mirror).sum() / max((found != mirror).sum(), 1) < 0.6


def test_a_chance_of_one_half_skips_half_of_the_operations() -> None:
    variant = replace(BARE, operations={"invert": Range()}, count=1, chance=0.5)
    x = np.zeros((1000, 1, 8, 8), np.uint8)
    inverted = variant(x, x[0, :, :1, :1], stream())[:, 0, 0, 0] == 255
    assert 430 < inverted.sum() < 570


# --- the variants -----------------------------------------------------------------------------------------------------


def test_fedmatch_draws_weak_amounts() -> None:
    shares = Counter(round(9 * level) for level in VARIANTS["fedmatch"].levels)
    # The index is uniform below M, and M from 2 to 5: 0 has (1/2 + 1/3 + 1/4 + 1/5) / 4, and 4 only (1/5) / 4.
    assert shares[0] / shares.total() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4)
    assert shares[4] / shares.total() == pytest.approx(1 / 20)
    assert set(shares) == {0, 1, 2, 3, 4}
    turns = VARIANTS["fedmatch"].draw((5000, 1, 28, 28), stream())[0]
    assert turns.amount[turns.kind == KINDS.index("rotate")].max() == pytest.approx(160)  # 4 / 9 of a full turn


def test_semifl_blanks_an_eighth_of_the_images() -> None:
    x = np.full((4000, 3, 32, 32), 100, np.uint8)
    x[:, :, 8:24, 8:24] = 200
    strong = VARIANTS["semifl"](x, np.full((3, 1, 1), 50, np.uint8), stream()).reshape(4000, -1)
    # 2 shifts among 15 operations, carried out half of the time, in one of two places: 1 - (1 - 1 / 15)² = 12.9 %; an
    # inversion or the like may make what is black white again.
    black = strong.max(1) == 0
    assert 0.10 < black.mean() < 0.15
    # One cut-out among 15, half of the time, in one of two places: 6.6 %; it hides more than a third of any image.
    hidden = (strong == 127).mean(1) > 0.35
    assert 0.04 < hidden.mean() < 0.08


def test_the_variant_none_changes_and_draws_nothing() -> None:
    x, numbers = grey(), stream()
    assert (VARIANTS["none"](x, x[0, :, :1, :1], numbers) == x).all()
    assert torch.equal(torch.rand(3, generator=numbers), torch.rand(3, generator=stream()))


def test_a_variant_can_be_pickled_for_another_process() -> None:
    for variant in VARIANTS.values():
        assert pickle.loads(pickle.dumps(variant)) == variant


@pytest.mark.parametrize(
    "settings, code",
    [
        ({"operations": {"rotat": Range()}}, "names.unknown-operation"),
        ({"count": 1}, "data.no-operations"),
        ({"chance": 1.5}, "data.level-out-of-range"),
        ({"levels": (2.0,)}, "data.level-out-of-range"),
        ({"cutout": (0.5, 0.1)}, "data.bad-cutout"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], code: str) -> None:
    with refused(code):
        RandAugment(**{"operations": {}, "count": 0} | settings)  # type: ignore[arg-type]


def test_noise_has_its_deviation_and_is_that_of_its_image() -> None:
    x, mean = np.full((200, 1, 20, 20), 128, np.uint8), np.full((1, 1, 1), 128, np.uint8)
    noisy = RandAugment({"noise": Range(10, 10)}, count=1, cutout=(0, 0))
    seen = noisy(x, mean, stream()).astype(np.float64) - 128
    assert seen.std() == pytest.approx(10, rel=0.02)
    assert abs(seen.mean()) < 0.2
    assert len(np.unique(seen.reshape(200, -1), axis=0)) == 200, "every image has noise of its own"
    assert (noisy(x, mean, stream()) - 128.0 == seen).all()


def test_gentle_views_stay_close_to_the_image_and_invert_nothing() -> None:
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.integers(40, 216, (300, 1, 4, 4)), np.ones((8, 8))).astype(np.uint8)
    mean = np.full((1, 1, 1), 128, np.uint8)

    def likeness(name: str) -> float:
        """The mean correlation of an image and its view."""
        views = VARIANTS[name](smooth, mean, stream())
        pairs = zip(smooth.reshape(300, -1), views.reshape(300, -1), strict=True)
        return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairs if b.std() > 0]))

    assert likeness("gentle") > 0.8 > likeness("fixmatch")
    assert {"solarize", "invert", "equalize", "posterize", "cutout"}.isdisjoint(VARIANTS["gentle"].operations)
