"""Views of several batches at once: the same bits as batch by batch, and bounded blocks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.data.views.augment import VARIANTS, ImageViews
from tacit.federation import BatchedViews
from tacit.learn import Batch, Looks, batches, batching, fit
from tacit.method import ClientContext, Training
from tacit.objectives import OBJECTIVES
from tacit.params import equal
from tests import toys
from tests.objectives.bench import client as bench_client

VIEWS = ImageViews((0.5, 0.4, 0.3), (0.2, 0.3, 0.25), flip=True)


def pixels(n: int, shape: tuple[int, ...] = (3, 16, 16)) -> Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kinds=st.lists(st.sampled_from(["weak", "strong"]), min_size=1, max_size=3),
    variant=st.sampled_from(sorted(VARIANTS)),
    channels=st.sampled_from([1, 3]),
)
def test_views_of_several_batches_have_the_bits_of_single_ones(
    sizes: list[int], kinds: list[str], variant: str, channels: int
) -> None:
    views = ImageViews((0.5,) * channels, (0.3,) * channels, flip=True, variant=VARIANTS[variant])
    x, alone, expected = pixels(sum(sizes), (channels, 16, 16)), stream(), [list[Tensor]() for _ in kinds]
    for part in x.split(sizes):
        for seen, kind in zip(expected, kinds, strict=True):
            seen.append(getattr(views, kind)(part, alone))
    found, together = views.of_batches(x, sizes, kinds, shared := stream()), [torch.cat(seen) for seen in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, together, strict=True))
    assert torch.equal(alone.get_state(), shared.get_state())


class OneByOne:
    """The same views without `of_batches`."""

    def __init__(self, views: ImageViews) -> None:
        self.plain, self.weak, self.strong = views.plain, views.weak, views.strong


def client(views: Any, **train: Any) -> ClientContext:
    """20 labeled and 50 unlabeled images."""
    data = toys.hide(toys.images(0, 70), 20)
    return bench_client(data, toys.normed(), Training(lr=0.05, **train), views=views)


@pytest.mark.parametrize("train", [{"batch": 7, "epochs": 2}, {"batch": 4, "unlabeled_batch": 9, "steps": 11}])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_trains_to_the_same_bits(
    name: str, train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "BLOCK_BYTES", 4 * 256 * 40)  # several blocks, and several batches in each
    views = ImageViews((0.5,), (0.25,), flip=True)
    together, alone = (client(each, **train) for each in (views, OneByOne(views)))
    assert isinstance(together.views, BatchedViews)
    assert not isinstance(alone.views, BatchedViews)
    models = [fit(holder, holder.initial(), OBJECTIVES[name]()).params for holder in (together, alone)]
    assert equal(models[0], models[1])


def test_mixed_batches_have_the_same_bits_too() -> None:
    views = ImageViews((0.5,), (0.25,), flip=True)
    models = [
        fit(holder, holder.initial(), OBJECTIVES["fixmatch"](), mixed=1).params  # some hold no labeled sample
        for holder in (client(each, batch=3) for each in (views, OneByOne(views)))
    ]
    assert equal(models[0], models[1])


def test_views_are_made_once_per_block_and_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    made = ImageViews.of_batches
    monkeypatch.setattr(batching, "BLOCK_BYTES", 4 * 256 * 30)

    def counted(self: ImageViews, x: Tensor, *rest: Any) -> list[Tensor]:
        calls.append(len(x))
        return made(self, x, *rest)

    monkeypatch.setattr(ImageViews, "of_batches", counted)
    holder = client(ImageViews((0.5,), (0.25,), flip=True), batch=5)
    looks = Looks(holder.views, ["weak"], "unlabeled", holder.stream("unlabeled views"))
    steps = [len(looks(batch)) for batch in batches(holder)]
    assert steps == [5] * 10
    assert calls == [15, 15, 15, 5]  # three batches of ten samples each, until the epoch ends


def test_a_batch_alone_is_seen_by_itself() -> None:
    x = pixels(4)
    batch = Batch(x, torch.zeros(4), x[:0], torch.arange(0))
    assert torch.equal(Looks(VIEWS, ["strong"], "labeled", stream())(batch), VIEWS.strong(x, stream()))


def test_an_image_larger_than_a_block_still_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BLOCK_BYTES", 1)
    assert len(list(batches(client(VIEWS, batch=10)))) == 5
