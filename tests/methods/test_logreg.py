"""Logistic regression on the server's labels: the solution of scikit-learn, and nothing travels."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tacit.methods.logreg import LogReg, fit_head
from tests.methods.features import CLASSES, cloud, crowd
from tests.toys import play_all


@pytest.mark.parametrize("strength", [0.05, 1.0])
def test_the_head_is_that_of_scikit_learn(strength: float) -> None:
    labels = cloud(3, 40)
    weight, bias = fit_head(labels.x.double(), labels.y, CLASSES, strength)
    scale = StandardScaler().fit(labels.x.double().numpy())
    theirs = LogisticRegression(C=strength, max_iter=5000, tol=1e-10).fit(
        scale.transform(labels.x.double().numpy()), labels.y.numpy()
    )
    test = cloud(4, 50).x.double()
    mine = (test @ weight.T + bias).softmax(dim=1).numpy()
    assert np.allclose(mine, theirs.predict_proba(scale.transform(test.numpy())), atol=1e-4)


def test_a_constant_feature_changes_nothing() -> None:
    labels = cloud(3, 40)
    x = torch.cat([labels.x.double(), torch.full((40, 1), 7.0)], dim=1)
    weight, bias = fit_head(x, labels.y, CLASSES, 1.0)
    plain, offset = fit_head(labels.x.double(), labels.y, CLASSES, 1.0)
    assert torch.allclose(x @ weight.T + bias, labels.x.double() @ plain.T + offset, atol=1e-5)


def test_no_client_is_asked_and_later_rounds_change_nothing() -> None:
    given = crowd(LogReg(), [cloud(0, 9)], cloud(1, 30), rounds=2)
    result = play_all(given)
    assert [record.bytes_up + record.bytes_down for record in result.records] == [0, 0]
    assert result.records[0].loss == result.records[1].loss
    assert (result.records[0].accuracy or 0) > 0.75
