"""FedCOF: second moments from class means, by hand, and in expectation those of the samples."""

import torch

from tacit.methods.fedcof import FedCof, second_moments
from tests.methods.features import D, cloud, crowd
from tests.toys import play_all


def test_second_moments_by_hand() -> None:
    """One class, two clients with 1 and 3 samples and means 0 and 4: μ = 3, Σ̂ = 1·9 + 3·1 = 12, Ĝ = 3·12 + 4·9 = 72."""
    means, counts = torch.tensor([[[0.0]], [[4.0]]]).double(), torch.tensor([[1.0], [3.0]]).double()
    assert second_moments(means, counts, 0.0).item() == 72
    assert second_moments(means, counts, 2.0).item() == 72 + 3 * 2


def test_a_class_at_one_client_has_no_spread_but_gamma() -> None:
    means, counts = torch.tensor([[[2.0], [0.0]]]).double(), torch.tensor([[5.0, 0.0]]).double()
    assert second_moments(means, counts, 1.0).item() == 4 * 1 + 5 * 4


def test_many_clients_tell_the_spread_within_classes() -> None:
    """Means of n samples vary by Σ/n, so n times their spread estimates Σ without bias."""
    draw = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, generator=draw).double()
    x = torch.randn(4000, 6, 3, generator=draw).double() @ root.T
    counts = torch.full((4000, 1), 6.0).double()
    found = second_moments(x.mean(dim=1, keepdim=True), counts, 0.0) / (24_000 - 1)
    assert torch.allclose(found, root @ root.T, atol=0.25)


def test_the_head_separates_what_clients_hold() -> None:
    given = crowd(FedCof(gamma=0.1), [cloud(k, 12) for k in range(20)])
    result = play_all(given)
    assert (result.records[-1].accuracy or 0) > 0.75
    assert result.records[-1].bytes_up < 20 * (4 * 3 * D + 8 * 3 + 400)
