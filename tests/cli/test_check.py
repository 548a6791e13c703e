"""`tacit check`: one page about a device, in bounded time."""

import time

import pytest
import torch

from tacit.cli import check as page
from tacit.cli.check import verdict
from tacit.runs import device_check
from tacit.runs.device_check import NOT_TRIED, MethodCheck, PartCheck, check_method, check_methods, tiny_job
from tacit.runs.registry import methods
from tests.cli.shell import Shell
from tests.second_device import DEVICE, SecondDevice

CPU = torch.device("cpu")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods, and no time for parts."""
    chosen = {name: kind for name, kind in methods().items() if name in ("fedavg", "semifl", "local-only")}
    monkeypatch.setattr(device_check, "methods", lambda: chosen)
    monkeypatch.setattr(device_check, "ENOUGH", 0.0)


@pytest.mark.usefixtures("few")
def test_a_page_of_80_columns_ends_with_a_verdict(shell: Shell) -> None:
    said = shell("check", "--device", "cpu")
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1] == "fine: 3 methods agree with the CPU within 1%"
    assert max(map(len, said.lines)) <= 80
    assert len(said.lines) < 60
    assert any(line.startswith("fedavg+fixmatch") for line in said.lines)


def test_an_unknown_device_is_refused(shell: Shell) -> None:
    said = shell("check", "--device", "nowhere")
    assert said.code == 2
    assert "no device 'nowhere'" in said.err


def test_a_method_on_a_device_agrees_with_the_cpu() -> None:
    tiny_job("fedavg+fixmatch")
    with SecondDevice():
        found = check_method("fedavg+fixmatch", DEVICE)
    assert (found.problem, found.apart) == ("", 0.0)


def test_a_method_that_fails_or_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_method("fedavg+fixmatch", torch.device("meta")).problem  # no such numbers without the pretence
    monkeypatch.setattr(device_check, "_apart", lambda found, expected: 0.5)
    assert check_method("fedavg+fixmatch", CPU).problem == "differs from the CPU"


@pytest.mark.usefixtures("few")
def test_no_method_is_tried_after_the_limit() -> None:
    found = list(check_methods(CPU, time.monotonic() - 1))
    assert {each.problem for each in found} == {NOT_TRIED}
    assert verdict(found) == "fine: 0 methods agree with the CPU within 1%; 3 not tried"


def test_the_verdict_counts_what_is_wrong(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [MethodCheck("a"), MethodCheck("b", problem="RuntimeError: no"), MethodCheck("c", problem=NOT_TRIED)]
    monkeypatch.setattr(page, "check_methods", lambda device, until: iter(wrong))
    monkeypatch.setattr(page, "check_parts", lambda device: iter([PartCheck("weak views", "images", 2e6, 1e6)]))
    said = shell("check")
    assert said.code == 1
    assert said.lines[-1] == "1 of 2 methods failed or differ by more than 1% from the CPU"
    assert "b: RuntimeError: no" in said.lines
