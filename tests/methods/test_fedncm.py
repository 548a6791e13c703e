"""FedNCM: the head is the mean of each class, whoever holds which sample."""

import torch

from tacit.aggregation.heads import ClassMeans
from tacit.methods.fedncm import FedNcm
from tests.methods.features import CLASSES, cloud, crowd, pooled
from tests.toys import hide, play_all, same


def test_the_head_is_the_mean_of_each_class_over_all_clients() -> None:
    clients = [cloud(k, 4 + 7 * k) for k in range(3)]
    given = crowd(FedNcm(), clients)
    model = given.method.model(play_all(given).state)
    everyone = pooled(clients)
    for c in range(CLASSES):
        mean = everyone.x[everyone.y == c].mean(dim=0)
        assert torch.allclose(model["fc.weight"][c], mean / mean.norm(), atol=1e-6)  # type: ignore[index]
    assert not model["fc.bias"].any()  # type: ignore[index]


def test_the_partition_does_not_matter() -> None:
    everyone = cloud(1, 30)
    heads = []
    for cuts in ([10, 20], [1, 29], [15]):
        given = crowd(FedNcm(), [everyone.take(part) for part in torch.arange(30).tensor_split(cuts)])
        heads.append(given.method.model(play_all(given).state))
    assert all(torch.allclose(head["fc.weight"], heads[0]["fc.weight"], atol=1e-6) for head in heads)  # type: ignore[index]


def test_unlabeled_samples_do_not_count_and_a_client_without_labels_sends_nothing() -> None:
    clients = [hide(cloud(0, 9), 5), hide(cloud(1, 9), 0)]
    given = crowd(FedNcm(), clients, rounds=2)
    result = play_all(given)
    assert list(result.state.answers) == [0]
    assert int(result.state.answers[0].counts.sum()) == 5


def test_a_client_is_asked_once_and_the_server_counts_as_one() -> None:
    given = crowd(FedNcm(), [cloud(0, 9), cloud(1, 9)], cloud(2, 12), rounds=3)
    result = play_all(given)
    assert [record.bytes_up > 0 for record in result.records] == [True, False, False]
    assert sorted(result.state.answers) == [-1, 0, 1]
    models = {record.accuracy for record in result.records}
    assert len(models) == 1


def test_the_smallest_group_of_an_upload_is_its_rarest_class() -> None:
    assert ClassMeans(torch.zeros(3, 5), torch.tensor([4, 0, 2])).smallest_group == 2
    assert ClassMeans(torch.zeros(3, 5), torch.tensor([0, 0, 0])).smallest_group is None


def test_without_any_label_the_model_is_the_initial_one() -> None:
    given = crowd(FedNcm(), [hide(cloud(0, 9), 0)], cloud(2, 0))
    state = given.method.start(given.server(0, {}))
    assert same(given.method.model(state), given.net.init(given.streams.at("init")))  # type: ignore[arg-type]
