"""Fed3R: the same head as ridge regression on all samples in one place."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn import functional

from tacit.methods.fed3r import Fed3r, sums_of
from tests.methods.features import CLASSES, cloud, crowd, pooled
from tests.toys import play_all


@pytest.mark.parametrize("penalty", [0.01, 3.0])
def test_the_head_is_that_of_central_ridge_regression(penalty: float) -> None:
    clients = [cloud(k, 5 + 9 * k) for k in range(4)]
    given = crowd(Fed3r(penalty=penalty, normalise=False), clients[1:], clients[0])
    model = given.method.model(play_all(given).state)
    everyone = pooled(clients)
    targets = functional.one_hot(everyone.y, CLASSES).double().numpy()
    central = Ridge(alpha=penalty, fit_intercept=False).fit(everyone.x.double().numpy(), targets)
    assert np.allclose(model["fc.weight"].numpy(), central.coef_, atol=1e-6)  # type: ignore[index]


def test_several_rounds_of_few_clients_give_the_head_of_one_round_of_all() -> None:
    clients = [cloud(k, 8) for k in range(4)]
    whole = crowd(Fed3r(), clients)
    few = crowd(Fed3r(), clients, rounds=12, cohort=2)
    result = play_all(few)
    assert sorted(result.state.answered) == [0, 1, 2, 3]
    one, other = whole.method.model(play_all(whole).state), few.method.model(result.state)
    assert torch.allclose(one["fc.weight"], other["fc.weight"], atol=1e-6)  # type: ignore[index]


def test_rows_have_length_one() -> None:
    given = crowd(Fed3r(), [cloud(0, 20)])
    weight = given.method.model(play_all(given).state)["fc.weight"]  # type: ignore[index]
    assert torch.allclose(weight.norm(dim=1), torch.ones(CLASSES), atol=1e-6)


def test_an_upload_holds_sums_by_hand() -> None:
    z, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(), torch.tensor([0, 2])
    up = sums_of(z, y, 3)
    assert up.a.tolist() == [1 + 9, 2 + 12, 4 + 16]
    assert up.b.tolist() == [[1, 2], [0, 0], [3, 4]]
    assert up.smallest_group == 1
