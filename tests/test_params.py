"""Algebra on models: the laws of a vector space, nothing changed in place, and patches exact to the bit.

Values are small multiples of 1/8, so sums and products of a few of them are exact in float32 and laws hold with
equality; where a division enters, numpy in float64 is the reference.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit import params
from tacit.params import Params, Sparse, channels_last, clone, equal

SHAPES: dict[str, tuple[int, ...]] = {"weight": (2, 3), "bias": (2,), "scale": ()}

eighths = st.integers(-800, 800).map(lambda k: k / 8)
anything = st.integers(0, 2**32 - 1)  # every pattern of 32 bits: NaN with payload, infinities, subnormals, -0.0


def fill(draw: Callable[[Any], Any], element: st.SearchStrategy[Any], kind: type) -> Params:
    model = {}
    for name, shape in SHAPES.items():
        numbers = draw(st.lists(element, min_size=math.prod(shape), max_size=math.prod(shape)))
        model[name] = torch.from_numpy(np.array(numbers, dtype=kind).reshape(shape).view(np.float32))
    return model


@st.composite
def models(draw: Callable[[Any], Any]) -> Params:
    return fill(draw, eighths, np.float32)


@st.composite
def raw_models(draw: Callable[[Any], Any]) -> Params:
    return fill(draw, anything, np.uint32)


def bits(model: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (tuple(value.shape), value.numpy().tobytes()) for name, value in model.items()}


def flat(model: Mapping[str, Tensor]) -> Any:
    return np.concatenate([value.numpy().astype(np.float64).reshape(-1) for value in model.values()])


def one(*numbers: float) -> Params:
    return {"w": torch.tensor(numbers)}


examples = settings(deadline=None, max_examples=60)


@examples
@given(models(), models(), models())
def test_addition_is_that_of_a_vector_space(a: Params, b: Params, c: Params) -> None:
    assert flat(params.add(a, b)).tolist() == (flat(a) + flat(b)).tolist()
    assert bits(params.add(a, b)) == bits(params.add(b, a))
    assert params.equal(params.add(params.add(a, b), c), params.add(a, params.add(b, c)))
    assert flat(params.sub(a, b)).tolist() == (flat(a) - flat(b)).tolist()
    assert flat(params.sub(params.add(a, b), b)).tolist() == flat(a).tolist()
    assert bits(params.add(a, params.zeros_like(a))) == bits(a)


@examples
@given(models(), models(), st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]))
def test_scaling_distributes(a: Params, b: Params, factor: float) -> None:
    assert flat(params.scale(a, factor)).tolist() == (flat(a) * factor).tolist()
    both = params.add(params.scale(a, factor), params.scale(b, factor))
    assert flat(params.scale(params.add(a, b), factor)).tolist() == flat(both).tolist()
    assert bits(params.scale(a, 1.0)) == bits(a)


@examples
@given(models(), models(), st.floats(0, 1))
def test_lerp_goes_from_a_to_b(a: Params, b: Params, weight: float) -> None:
    expected = (1 - weight) * flat(a) + weight * flat(b)
    np.testing.assert_allclose(flat(params.lerp(a, b, weight)), expected, rtol=0, atol=1e-4)
    assert params.equal(params.lerp(a, b, 0.0), a)
    assert params.equal(params.lerp(a, b, 1.0), b)
    assert flat(params.lerp(a, b, 0.5)).tolist() == ((flat(a) + flat(b)) / 2).tolist()


@examples
@given(st.lists(st.tuples(models(), st.floats(0.1, 100)), min_size=1, max_size=5))
def test_mean_is_weighted(pairs: list[tuple[Params, float]]) -> None:
    given_models, weights = [model for model, _ in pairs], [weight for _, weight in pairs]
    expected = sum(weight * flat(model) for model, weight in pairs) / sum(weights)
    np.testing.assert_allclose(flat(params.mean(given_models, weights)), expected, rtol=0, atol=1e-4)
    equally = np.mean([flat(model) for model in given_models], axis=0)
    np.testing.assert_allclose(flat(params.mean(given_models)), equally, rtol=0, atol=1e-4)
    assert bits(params.mean(given_models, weights)) == bits(params.mean(given_models, weights))


def test_mean_by_hand() -> None:
    # (1·8 + 3·4)/4 = 5: weights need not sum to one
    assert params.mean([one(8.0), one(4.0)], [1, 3])["w"].tolist() == [5.0]
    assert params.mean([one(8.0), one(4.0)])["w"].tolist() == [6.0]


@given(models())
def test_the_mean_of_one_model_has_its_bits(a: Params) -> None:
    assert bits(params.mean([a], [7])) == bits(a)


@pytest.mark.parametrize(
    "given_models, weights",
    [([], None), ([], []), ([one(1.0)], [0.0]), ([one(1.0)], [1.0, 1.0]), ([one(1.0), one(2.0)], [1.0])],
)
def test_a_mean_of_nothing_or_with_other_weights_is_refused(given_models: list[Params], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="mean needs|shorter|longer"):
        params.mean(given_models, weights)


@examples
@given(models(), models())
def test_dot_and_norm(a: Params, b: Params) -> None:
    assert params.dot(a, b) == pytest.approx(float(flat(a) @ flat(b)), abs=1e-2)
    assert params.dot(a, b) == params.dot(b, a)
    assert params.norm(a) == pytest.approx(float(np.sqrt((flat(a) ** 2).sum())), rel=1e-5)
    assert params.norm(params.scale(a, -2.0)) == pytest.approx(2 * params.norm(a), rel=1e-6)


def test_dot_and_norm_by_hand() -> None:
    a = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)}
    assert params.norm(a) == 5.0  # √(3² + 4²)
    assert params.dot(a, {"w": torch.tensor([2.0, 9.0]), "b": torch.tensor(-1.0)}) == 2.0  # 3·2 + 0·9 - 4·1
    assert params.dot({}, {}) == params.norm({}) == 0.0
    assert params.size(a) == 3


@examples
@given(raw_models(), raw_models())
def test_equal_means_the_same_bits(a: Params, b: Params) -> None:
    assert params.equal(a, params.clone(a))
    assert params.equal(a, b) == (bits(a) == bits(b))


@pytest.mark.parametrize(
    "a, b",
    [
        (one(0.0), one(-0.0)),
        (one(1.0), one(1.0 + 2**-23)),
        (one(1.0), {"v": torch.tensor([1.0])}),
        (one(1.0), one(1.0) | {"v": torch.tensor([1.0])}),
        (one(1.0), one(1.0, 1.0)),
        (one(1.0, 1.0), one(1.0, 1.0, 1.0)),
        (one(1.0), {"w": torch.tensor(1.0)}),
        (one(1.0), {"w": torch.tensor([1.0], dtype=torch.float64)}),
    ],
)
def test_other_bits_names_shapes_or_types_are_not_equal(a: Params, b: Params) -> None:
    assert not params.equal(a, b)
    assert not params.equal(b, a)


def test_nan_equals_itself() -> None:
    assert params.equal(one(math.nan), one(math.nan))


@examples
@given(models(), models(), st.sampled_from([0.0, 0.5]))
def test_arguments_are_left_alone_and_nothing_is_shared(a: Params, b: Params, number: float) -> None:
    before = bits(a), bits(b)
    results: list[Params] = [
        params.add(a, b),
        params.sub(a, b),
        params.scale(a, number),
        params.lerp(a, b, number),
        params.mean([a, b], [1, number]),
        params.mean([a]),
        params.clone(a),
        params.zeros_like(a),
        params.patch(a, params.sparsify(b, a, number)),
        {name: change.value for name, change in params.sparsify(a, b, number).items()},
    ]
    params.dot(a, b)
    params.equal(a, b)
    for result in results:
        for value in result.values():
            value.fill_(77.0)
    assert (bits(a), bits(b)) == before


@pytest.mark.parametrize(
    "combine",
    [
        params.add,
        params.sub,
        params.dot,
        lambda a, b: params.lerp(a, b, 0.5),
        lambda a, b: params.mean([a, b]),
        params.sparsify,
    ],
)
def test_other_names_are_an_error_and_not_cut_short(combine: Callable[[Params, Params], Any]) -> None:
    a, more = one(1.0), one(1.0) | {"extra": torch.tensor([2.0])}
    for pair in ((a, more), (more, a), (a, {"v": torch.tensor([1.0])})):
        with pytest.raises(KeyError, match="different names"):
            combine(*pair)


def test_a_patch_for_an_unknown_name_is_an_error() -> None:
    changes = params.sparsify({"v": torch.tensor([1.0])}, {"v": torch.tensor([0.0])})
    with pytest.raises(KeyError):
        params.patch(one(1.0), changes)


@pytest.mark.parametrize("shape", [(2,), (1, 4), (8,)])
def test_a_patch_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    """Its positions would be other entries, or none."""
    changes = {"w": Sparse(shape, torch.tensor([1]), torch.tensor([5.0]))}
    held = {"w": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match="these changes belong to tensors of other shapes: \\['w'\\]"):
        params.patch(held, changes)
    assert params.patch(held, {"w": Sparse((2, 2), torch.tensor([1]), torch.tensor([5.0]))})["w"][0, 1] == 5


def test_clone_carries_no_gradient() -> None:
    leaf = {"w": torch.ones(2, requires_grad=True)}
    assert not params.clone(leaf)["w"].requires_grad


# Sparse patches.


@settings(deadline=None, max_examples=200)
@given(raw_models(), raw_models())
@example(
    {"w": torch.tensor([0.0, -0.0, math.nan, 1e-45, 1.0, math.inf])},
    {"w": torch.tensor([-0.0, 0.0, 1.0, -1e-45, math.nan, -math.inf])},
)
def test_a_patch_gives_exactly_what_was_meant(meant: Params, held: Params) -> None:
    assert bits(params.patch(held, params.sparsify(meant, held, 0.0))) == bits(meant)


@given(raw_models())
def test_nothing_changed_means_an_empty_patch(a: Params) -> None:
    changes = params.sparsify(a, params.clone(a))
    assert all(len(change.index) == 0 for change in changes.values())
    assert bits(params.patch(a, changes)) == bits(a)


def test_differences_would_not_do() -> None:
    # 1e8 + (1 - 1e8) is 0 in float32, so what travels is the new value.
    held, meant = one(1e8), one(1.0)
    assert params.add(held, params.sub(meant, held))["w"].item() != 1.0
    assert params.patch(held, params.sparsify(meant, held))["w"].item() == 1.0


@examples
@given(models(), models(), st.sampled_from([0.125, 0.5, 10.0, 1000.0]))
def test_a_threshold_keeps_what_differs_by_more(meant: Params, held: Params, threshold: float) -> None:
    patched = params.patch(held, params.sparsify(meant, held, threshold))
    for name in SHAPES:
        far = (meant[name] - held[name]).abs() > threshold
        assert torch.equal(patched[name], torch.where(far, meant[name], held[name]))


def test_a_threshold_by_hand() -> None:
    held, meant = one(0.0, 0.0, 0.0, 0.0), one(0.5, -0.75, 0.25, 0.75)
    change = params.sparsify(meant, held, 0.5)["w"]  # |Δ| = 0.5 is not more than 0.5
    assert (change.shape, change.index.tolist(), change.value.tolist()) == ((4,), [1, 3], [-0.75, 0.75])
    assert params.patch(held, {"w": change})["w"].tolist() == [0.0, -0.75, 0.0, 0.75]


def test_patches_reach_tensors_that_are_not_contiguous() -> None:
    held = {"w": torch.arange(6.0).reshape(3, 2).t()}  # 0 2 4 / 1 3 5
    meant = {"w": torch.tensor([[0.0, 2.0, -4.0], [1.0, 3.0, -5.0]])}
    changes = params.sparsify(meant, held)
    assert changes["w"].index.tolist() == [2, 5]
    assert torch.equal(params.patch(held, changes)["w"], meant["w"])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_patches_work_in_other_precisions(kind: torch.dtype) -> None:
    held, meant = {"w": torch.tensor([1.0, 2.0, -0.0], dtype=kind)}, {"w": torch.tensor([1.0, 3.0, 0.0], dtype=kind)}
    changes = params.sparsify(meant, held)
    assert changes["w"].index.tolist() == [1, 2]
    assert params.equal(params.patch(held, changes), meant)


@pytest.mark.parametrize("shape", [(4, 1, 5, 5), (4, 3, 5, 5), (4, 3, 1, 1)])
def test_the_order_in_memory_does_not_depend_on_where_weights_come_from(shape: tuple[int, ...]) -> None:
    usual = {"kernel": torch.randn(shape), "bias": torch.randn(4)}
    other = {name: value.clone(memory_format=torch.preserve_format) for name, value in channels_last(usual).items()}
    for order in (channels_last, clone):
        one, two = order(usual), order(other)
        assert equal(one, usual)
        assert equal(two, usual)
        assert all(one[name].stride() == two[name].stride() for name in one)
    assert channels_last(usual)["kernel"].is_contiguous(memory_format=torch.channels_last)
    assert clone(other)["kernel"].stride() == torch.empty(shape).stride()


def test_models_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        params.add({"w": torch.ones(3)}, {"w": torch.ones(1)})


def test_a_nan_is_a_change_at_any_threshold() -> None:
    change = params.sparsify({"w": torch.tensor([1.0, float("nan")])}, {"w": torch.tensor([1.0, 1.0])}, 0.5)
    assert change["w"].index.tolist() == [1]
