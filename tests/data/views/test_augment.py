"""Views: arithmetic by hand, a simple reference for shifts, and the effect of the random stream.

test_randaugment.py compares RandAugment with Pillow.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.data.sources import load
from tacit.data.views.augment import VARIANTS, ImageViews, TextViews
from tests.data.kinds import pictured

GREY = ImageViews(mean=(0.5,), std=(0.25,), flip=True)
COLOUR = ImageViews(mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3), flip=True)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=stream(seed))


def test_plain_is_x_minus_mean_over_std() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 2, 2)
    # Pixels 0, 0.2 and 1: (0 - 0.5) / 0.25 = -2, (0.2 - 0.4) / 0.2 = -1, (1 - 0.3) / 0.3 = 7 / 3.
    assert COLOUR.plain(x)[0, :, 1, 0].tolist() == pytest.approx([-2, -1, 7 / 3], rel=1e-6)
    assert COLOUR.plain(x).dtype == torch.float32


@given(
    n=st.integers(0, 5),
    h=st.integers(1, 20),
    w=st.integers(1, 20),
    colour=st.booleans(),
    view=st.sampled_from(["plain", "weak", *VARIANTS]),
    seed=st.integers(0, 99),
)
def test_views_preserve_shape_and_range(n: int, h: int, w: int, colour: bool, view: str, seed: int) -> None:
    views, x = (COLOUR, images(n, 3, h, w)) if colour else (GREY, images(n, 1, h, w))
    if view in VARIANTS:
        views, view = replace(views, variant=VARIANTS[view]), "strong"
    before = x.clone()
    out = views.plain(x) if view == "plain" else getattr(views, view)(x, stream(seed))
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert torch.equal(x, before)
    pixels = out * torch.tensor(views.std)[:, None, None] + torch.tensor(views.mean)[:, None, None]
    assert ((pixels > -1e-5) & (pixels < 1 + 1e-5)).all()


@pytest.mark.parametrize("view", [COLOUR.weak, COLOUR.strong])
def test_the_stream_determines_the_view(view: Callable[[Tensor, torch.Generator], Tensor]) -> None:
    x = images(8, 3, 16, 16)
    assert torch.equal(view(x, stream(1)), view(x, stream(1)))
    different = (view(x, stream(1)) != view(x, stream(2))).flatten(1).any(1)
    assert different.sum() >= 6  # two streams may move one or two images equally


def test_images_of_a_batch_are_changed_differently() -> None:
    x = images(1, 1, 16, 16).expand(20, 1, 16, 16)
    assert len({bytes(image) for image in GREY.weak(x, stream()).numpy()}) > 10
    assert len({bytes(image) for image in GREY.strong(x, stream()).numpy()}) > 18


def shifted(image: list[list[int]], down: int, right: int, flip: bool) -> list[list[int]]:
    """Take each pixel from (row + down, column + right) of the image mirrored at its borders, then flip."""

    def mirror(place: int, side: int) -> int:
        return -place if place < 0 else 2 * (side - 1) - place if place >= side else place

    rows, columns = len(image), len(image[0])
    if flip:
        image = [row[::-1] for row in image]
    return [[image[mirror(i + down, rows)][mirror(j + right, columns)] for j in range(columns)] for i in range(rows)]


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("pad, reach", [(None, (1, 2)), (3, (3, 3))])
def test_the_weak_view_is_one_of_all_shifts(flip: bool, pad: int | None, reach: tuple[int, int]) -> None:
    views = ImageViews((0.5,), (0.25,), flip=flip, pad=pad)
    x = images(1, 1, 8, 16)
    expected = {
        str(shifted(x[0, 0].tolist(), down, right, flipped))
        for down, right, flipped in product(
            range(-reach[0], reach[0] + 1), range(-reach[1], reach[1] + 1), {False, flip}
        )
    }
    moved = views.weak(x.expand(2000, 1, 8, 16), stream()).mul(0.25 * 255).add(0.5 * 255).round().int()
    assert {str(image.tolist()) for image in moved[:, 0]} == expected


def test_all_channels_move_equally() -> None:
    x = images(50, 1, 16, 16)
    views = ImageViews((0.5,) * 3, (0.25,) * 3, flip=True)
    for view in (views.weak, views.strong):
        out = view(x.expand(50, 3, 16, 16), stream())
        assert torch.equal(out[:, 0], out[:, 2])


def test_images_are_flipped_only_if_allowed() -> None:
    x = torch.zeros(500, 1, 16, 16, dtype=torch.uint8)
    x[..., :4] = 255  # a bright left edge
    for flip in (False, True):
        weak = ImageViews((0.5,), (0.25,), flip=flip).weak(x, stream())
        right_edge_is_brighter = weak[..., 8:].sum((1, 2, 3)) > weak[..., :8].sum((1, 2, 3))
        assert float(right_edge_is_brighter.float().mean()) == pytest.approx(0.5 if flip else 0, abs=0.1)


def test_the_strong_view_flips_when_the_weak_one_does() -> None:
    x = images(200, 1, 16, 16)
    without, with_flips = (ImageViews((0.5,), (0.25,), flip=flip) for flip in (False, True))
    same = (with_flips.strong(x, stream()) == without.strong(x, stream())).flatten(1).all(1)
    mirrored = (with_flips.strong(x, stream()) == without.strong(x.flip(3), stream())).flatten(1).all(1)
    assert (same | mirrored).all()
    assert 60 < int(mirrored.sum()) < 140


def test_strong_views_resemble_their_class() -> None:
    source = load("fashion-small")
    views = ImageViews(pictured(source).mean, pictured(source).std, pictured(source).flip)
    mean_image = torch.stack([source.x[source.y == c].float().mean(0) for c in range(10)])
    typical = mean_image.to(torch.uint8).repeat_interleave(300, 0)
    weak, strong = (view(typical, stream()).reshape(10, 300, -1).mean(1) for view in (views.weak, views.strong))
    alike = torch.corrcoef(torch.cat([weak, strong]))[:10, 10:]
    assert alike.argmax(0).tolist() == list(range(10))


def test_the_strong_view_changes_more_than_the_weak_one() -> None:
    x = load("fashion-small").x[:200]
    plain = GREY.plain(x)
    weak, strong = ((view(x, stream()) - plain).abs().mean() for view in (GREY.weak, GREY.strong))
    assert strong > 1.3 * weak > 0


def test_without_operations_the_strong_view_is_the_weak_one() -> None:
    views = replace(COLOUR, variant=VARIANTS["none"])
    x = images(50, 3, 16, 16)
    assert torch.equal(views.strong(x, stream()), COLOUR.weak(x, stream()))
    assert not torch.equal(COLOUR.strong(x, stream()), COLOUR.weak(x, stream()))


def test_cut_outs_have_the_mean_colour() -> None:
    x = torch.full((200, 3, 16, 16), 255, dtype=torch.uint8)
    mean, white = torch.zeros(3, 1, 1), COLOUR.plain(x)[0]
    cut = (COLOUR.strong(x, stream()) - mean).abs().amax(1) < 0.5 / 255 / 0.2  # half a level, for the least deviation
    assert cut.flatten(1).any(1).all()  # every image loses a square
    assert float(white.min()) > 1


# --- text -------------------------------------------------------------------------------------------------------------

TEXT = TextViews(alphabet=80)


def codes(n: int, length: int) -> Tensor:
    return torch.randint(0, 80, (n, length), dtype=torch.uint8, generator=stream(7))


def test_plain_and_weak_text_are_the_codes() -> None:
    x = codes(4, 20)
    for view in (TEXT.plain(x), TEXT.weak(x, stream())):
        assert view.dtype == torch.int64
        assert torch.equal(view, x.long())


def test_strong_text_replaces_a_tenth_of_the_characters() -> None:
    x = torch.full((200, 80), 3, dtype=torch.uint8)
    strong = TEXT.strong(x, stream())
    assert strong.dtype == torch.int64
    # 16,000 characters, 1,600 replaced on average, deviation 38; one replacement in eighty is the same character.
    assert 1400 < int((strong != 3).sum()) < 1750
    assert set(strong.unique().tolist()) == set(range(80))
    assert torch.equal(strong, TEXT.strong(x, stream()))
    assert not torch.equal(strong, TEXT.strong(x, stream(1)))
