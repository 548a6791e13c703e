"""Server only: the server's labels give the model, and no client is ever asked."""

from tacit.learn import fit
from tacit.method import Training
from tacit.methods.server_only import ServerOnly
from tacit.objectives import Supervised
from tacit.params import Params
from tests.toys import apart, federation, hide, job, linear, play_all, points, same, started

SUPERVISED = Supervised(view="plain")
TRAIN = Training(batch=6, lr=0.1, optimizer="keep")


def test_it_is_the_servers_training_round_after_round() -> None:
    given = job(ServerOnly(SUPERVISED), federation([hide(points(0, 20))], server=points(9, 14)), linear(), train=TRAIN)
    played = play_all(given)
    w: Params = started(given).w
    carried = None
    for round in range(3):
        trained = fit(given.server(round, {}), w, SUPERVISED, carried=carried)
        assert trained.steps == 3  # ⌈14/6⌉
        w, carried = trained.params, trained.carried
    assert same(played.state.w, w)
    assert [record.server["steps"] for record in played.records] == [3, 3, 3]
    assert all("loss_supervised" in record.server for record in played.records)
    assert given.method.model(played.state) is played.state.w
    assert apart(w, started(given).w) > 1e-2


def test_clients_do_not_matter() -> None:
    one = federation([hide(points(0, 20))], server=points(9, 14))
    other = federation([points(1, 5), points(2, 50)], server=points(9, 14))
    results = [play_all(job(ServerOnly(SUPERVISED), data, linear(), train=TRAIN)).state.w for data in (one, other)]
    assert same(*results)


def test_no_byte_is_sent() -> None:
    given = job(ServerOnly(), federation([points(0, 20), points(1, 20)], server=points(9, 14)), linear())
    for record in play_all(given).records:
        assert (record.bytes_down, record.bytes_up, record.clients, record.steps) == (0, 0, 0, 0)
        assert record.traffic == {}
        assert record.accuracy is not None
