"""What inputs know: plain values and back, differences between hub and site, views, and noise."""

from typing import Any

import pytest
import torch

from tacit.data.inputs import KINDS, CharacterInputs, ImageInputs, VectorInputs, from_plain
from tacit.data.split.config import DataConfig
from tacit.federation import Inputs
from tacit.random import Streams

CLASSES = ("a", "b", "c")
GREY = ImageInputs((1, 8, 9), (0.5,), (0.25,))
COLOUR = ImageInputs((3, 8, 9), (0.5,) * 3, (0.25,) * 3, flip=True, shift=2, bits=12)
TEXT = CharacterInputs((12,), CLASSES)
ROWS = VectorInputs(("age", "height"), (40.0, 1.7), (10.0, 0.1))
ALL: list[Inputs] = [GREY, COLOUR, TEXT, ROWS]
each = pytest.mark.parametrize("inputs", ALL, ids=["grey", "colour", "text", "vectors"])


@each
def test_inputs_survive_plain_values(inputs: Inputs) -> None:
    assert from_plain(inputs.to_plain(), CLASSES) == inputs
    assert inputs.kind in KINDS


@each
def test_invented_samples_can_be_seen(inputs: Inputs) -> None:
    data = DataConfig()
    x, views = inputs.invent(5, Streams(0).at("a")), inputs.views(data)
    assert (x.shape, x.dtype) == ((5, *inputs.shape), inputs.dtype)
    for seen in (views.plain(x), views.weak(x, Streams(0).at("a")), views.strong(x, Streams(0).at("a"))):
        assert seen.shape == x.shape
        assert seen.dtype == inputs.blank().dtype
    for kind in ("gaussian", "pixels"):
        assert inputs.noise(kind, views, Streams(0).at("a")).shape == (1, *inputs.shape)
    assert "5 " in inputs.describe(5, "all", 3)
    if inputs.drawable:
        assert inputs.pictures(views.plain(x), views).shape == (5, *inputs.shape[1:], inputs.shape[0])
    else:
        assert 0 < len(inputs.written(views.plain(x)[0], 8)) <= 8


@pytest.mark.parametrize(
    "hub, site, code",
    [
        (GREY, GREY, None),
        (ImageInputs((3, 8, 9), (0.5,) * 3, (0.25,) * 3), GREY, None),
        (GREY, COLOUR, "site.unknown-bits"),
        (GREY, ImageInputs((3, 8, 9), (0.5,) * 3, (0.25,) * 3), "site.wrong-shape"),
        (GREY, ImageInputs((1, 8, 8), (0.5,), (0.25,)), "site.wrong-shape"),
        (GREY, ROWS, "site.other-kind"),
        (ROWS, GREY, "site.other-kind"),
        (TEXT, ROWS, "site.other-kind"),
        (ROWS, VectorInputs(("height", "age"), (0.0, 0.0), (1.0, 1.0)), None),
        (ROWS, VectorInputs(("height", "weight"), (0.0, 0.0), (1.0, 1.0)), "site.other-columns"),
        (ROWS, VectorInputs(("age", "height", "hiv"), (0.0,) * 3, (1.0,) * 3), "site.other-columns"),
    ],
)
def test_a_site_may_differ_only_harmlessly(hub: Inputs, site: Inputs, code: str | None) -> None:
    found = hub.difference(site)
    assert (found.code if found else None) == code
    if found:
        assert "hiv" not in found.problem + found.remedy  # the hub reads this
    else:
        x = hub.adopt(site.invent(4, Streams(0).at("a")), site)
        assert x.shape == (4, *hub.shape)


def test_columns_of_a_site_are_put_into_the_hubs_order() -> None:
    site = VectorInputs(("height", "age"), (0.0, 0.0), (1.0, 1.0))
    assert ROWS.adopt(torch.tensor([[1.8, 50.0]]), site).tolist() == [[50.0, pytest.approx(1.8)]]


def test_vectors_are_standardised_disturbed_and_masked() -> None:
    x = torch.tensor([[50.0, 1.6]]).repeat(4000, 1)
    views = ROWS.views(DataConfig(noise=0.1, strong_noise=0.5, mask=0.25))
    assert views.plain(x[:1]).tolist() == [pytest.approx([1.0, -1.0], abs=1e-5)]
    weak, strong = views.weak(x, Streams(0).at("a")), views.strong(x, Streams(0).at("a"))
    assert float((weak - views.plain(x)).std()) == pytest.approx(0.1, rel=0.05)
    hidden = strong == 0
    assert float(hidden.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float((strong - views.plain(x))[~hidden].std()) == pytest.approx(0.5, rel=0.05)
    same = ROWS.views(DataConfig(noise=0.0, strong_noise=0.0, mask=0.0))
    assert torch.equal(same.strong(x, Streams(0).at("a")), same.plain(x))
    assert torch.equal(ROWS.views(DataConfig(normalise="unit")).plain(x), x)


@pytest.mark.parametrize(
    "kind, values",
    [
        (VectorInputs, {"features": ()}),
        (VectorInputs, {"features": ("a", "a"), "mean": (0.0, 0.0), "std": (1.0, 1.0)}),
        (VectorInputs, {"features": ("a",), "mean": (0.0, 0.0), "std": (1.0,)}),
        (ImageInputs, {"shape": (8, 8)}),
        (CharacterInputs, {"shape": (8, 8)}),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        kind(**values)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        from_plain({"kind": "smells"}, CLASSES)
