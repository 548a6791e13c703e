"""FedSem: two phases, one pass of hard labels between them, with the model of the end of the first."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tacit.engines.faults import Faults
from tacit.errors import notice_renamed
from tacit.learn import predict
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedsem import FedSem, FedSemDown, FedSemMemory
from tacit.objectives import Supervised
from tacit.runs import registry
from tests.toys import TWO_EPOCHS, Identity, federation, hide, job, linear, play_all, points, rounds, same, visit


def given(first: float, shown: int = 6, total: int = 6, **options: Any) -> Any:
    data = federation([hide(points(k, 20), shown) for k in range(3)], test=points(9, 9))
    return job(FedSem(phase1_share=first), data, linear(), train=TWO_EPOCHS, rounds=total, **options)


def test_phase_one_is_fedavg_on_labels_to_the_last_bit() -> None:
    alone = play_all(replace(given(1.0), method=FedAvg(Supervised())))
    assert same(play_all(given(1.0)).state.common.w, alone.state.w)
    assert not same(play_all(given(0.5)).state.common.w, alone.state.w)


def test_with_all_labels_both_phases_are_fedavg() -> None:
    alone = play_all(replace(given(0.5, shown=20), method=FedAvg(Supervised())))
    assert same(play_all(given(0.5, shown=20)).state.common.w, alone.state.w)


def test_the_labels_are_those_of_the_last_model_of_phase_one_and_stay() -> None:
    moments = list(rounds(given(0.5)))
    assert all(moment.state.teacher is None for moment in moments[:3])
    teacher = moments[2].state.common.w
    data = hide(points(1, 20), shown=6)
    expected = torch.cat([data.y[:6], predict(linear(), teacher, data.x[6:], Identity()).argmax(dim=1)])
    for moment in moments[3:]:
        assert same(moment.state.teacher, teacher)
        assert torch.equal(moment.memories[1].y, expected)


def test_phase_two_is_supervised_learning_on_all_labels() -> None:
    task = given(0.0)
    teacher = task.method.start(task.server(0, {})).common.w
    data = hide(points(0, 20), shown=6)
    reply = visit(task, 0, FedSemDown(teacher, teacher))
    labels = torch.cat([data.y[:6], predict(linear(), teacher, data.x[6:], Identity()).argmax(dim=1)])
    full = job(FedAvg(Supervised()), federation([replace(data, y=labels)]), linear(), train=TWO_EPOCHS)
    assert same(reply.up.w, visit(full, 0, FedSemDown(teacher, None)).up.w)
    assert reply.up.n == 20
    assert reply.pseudo_labels.index.tolist() == list(range(6, 20))
    assert torch.equal(reply.pseudo_labels.label, labels[6:])


def test_a_client_that_knows_its_labels_does_not_get_the_teacher_again() -> None:
    moments = list(rounds(given(0.5, cohort=2)))
    assert moments[2].state.labeled == ()
    assert len(moments[3].state.labeled) == 2
    assert set(moments[3].state.labeled) <= set(moments[5].state.labeled)
    task = given(0.5)
    state = moments[3].state
    _, downs = task.method.send(replace(task.server(4, {}), cohort=(0, 1, 2)), state)
    assert {k for k, down in downs.items() if down.teacher is None} == set(state.labeled)


def test_a_client_whose_upload_is_lost_gets_the_teacher_again() -> None:
    moments = list(rounds(given(0.0, total=4, faults=Faults(lost=0.5), min_clients=0)))
    for moment in moments:
        knows = {k for k, memory in moment.memories.items() if memory is not None and memory.y is not None}
        assert knows == set(moment.state.labeled)
    assert any(moment.record.skipped for moment in moments)


def test_labels_at_the_server_teach_the_clients() -> None:
    data = federation([hide(points(k, 20)) for k in range(2)], server=points(9, 12), test=points(8, 9))
    moments = list(rounds(job(FedSem(phase1_share=0.5), data, linear(), train=TWO_EPOCHS, rounds=4)))
    assert [moment.record.bytes_up for moment in moments[:2]] == [0, 0]  # clients without labels only listen
    assert moments[-1].state.labeled == (0, 1)
    assert moments[-1].record.metrics["pseudo_kept"]["mean"] == 1


def test_remembered_labels_stay_with_the_samples() -> None:
    """A memory wakes up on the device that computes; `meta` stands for one that is not the CPU."""
    task = given(0.5)
    w = task.method.start(task.server(0, {})).common.w
    away = FedSemMemory(torch.zeros(20, dtype=torch.int64, device="meta"), None)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta"):  # on its way to the samples it is stopped
        visit(task, 0, FedSemDown(w, None), away)


def test_a_memory_from_phase_one_does_not_stand_for_labels() -> None:
    task = given(0.5)
    w = task.method.start(task.server(0, {})).common.w
    reply = visit(task, 0, FedSemDown(w, None), FedSemMemory(None, None))
    assert reply.pseudo_labels is None
    assert reply.up.n == 6


@pytest.mark.parametrize("total, first, second", [(50, 0.6, 30), (10, 0.25, 2), (3, 0.0, 0)])
def test_phase_two_begins_after_its_share(total: int, first: float, second: int) -> None:
    task = given(first, total=total)
    state = task.method.start(task.server(0, {}))
    begins = [k for k in range(total) if task.method.send(task.server(k, {}), state)[0].teacher is not None]
    assert begins[0] == second


@pytest.mark.parametrize("name, former, setting", [("fedsem", 0.25, "phase1_share"), ("moon", "random", "first_visit")])
def test_the_former_name_of_a_setting_works_with_a_notice(
    capsys: pytest.CaptureFixture[str], name: str, former: object, setting: str
) -> None:
    notice_renamed.cache_clear()
    for _ in range(2):
        assert getattr(registry.build_method(name, {"first": former}, {}), setting) == former
    assert capsys.readouterr().err == f"tacit: method.first is now method.{setting}\n"  # once per process
    assert {"method.first", f"method.{setting}"} <= registry.own_settings(name)
    both = registry.build_method(name, {setting: former, "first": "ignored"}, {})
    assert getattr(both, setting) == former
