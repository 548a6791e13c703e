"""The record of a client on its disk: every step once, no session twice, one sum for each round."""

import json
from pathlib import Path

import pytest

from tacit.engines.secure_sessions import KEYS, MASK, REVEAL, SHARES, Sessions
from tests.refusals import refused

RUN = "run-1"
FIRST, SECOND = f"{RUN}|0|first", f"{RUN}|0|second"


def begun(folder: Path, session: str = FIRST) -> Sessions:
    made = Sessions(folder / "secure", RUN)
    made.begin(0, session)
    made.put(session, "secret of keys")
    return made


def test_secrets_pass_from_step_to_step(tmp_path: Path) -> None:
    made = begun(tmp_path)
    for step, before in ((SHARES, "secret of keys"), (MASK, SHARES), (REVEAL, MASK)):
        assert Sessions(tmp_path / "secure", RUN).take(0, step) == before  # as another process
        made.put(FIRST, step)


@pytest.mark.parametrize("step", [KEYS, MASK, REVEAL])
def test_steps_have_an_order(step: str, tmp_path: Path) -> None:
    with refused("secure.step-repeated"):
        begun(tmp_path).take(0, step)


def test_a_step_is_answered_once(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.take(0, SHARES)
    with refused("secure.step-repeated"):
        made.take(0, SHARES)
    made.put(FIRST, "next")
    with refused("secure.step-repeated"):
        made.take(0, SHARES)


def test_a_process_that_died_in_a_step_leaves_no_secret_behind(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.take(0, SHARES)
    with refused("secure.step-repeated"):
        made.take(0, MASK)
    assert "secret of keys" not in (tmp_path / "secure" / f"{RUN}.json").read_text()


def test_a_step_of_another_round_is_refused(tmp_path: Path) -> None:
    with refused("secure.step-repeated"):
        begun(tmp_path).take(1, SHARES)


def test_a_session_is_begun_once(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.begin(0, SECOND)
    for session in (FIRST, SECOND):
        with refused("secure.session-repeated"):
            made.begin(0, session)


@pytest.mark.parametrize("session", ["", "first", "run-1|1|first", "run-2|0|first", "run-1|00|first"])
def test_a_session_says_which_run_and_round_it_is_for(session: str, tmp_path: Path) -> None:
    with refused("secure.other-session"):
        Sessions(tmp_path, RUN).begin(0, session)


def test_a_new_session_ends_the_one_before(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.take(0, SHARES)
    made.begin(0, SECOND)
    with refused("secure.session-over"):
        made.put(FIRST, "late")
    with refused("secure.step-repeated"):
        made.take(0, SHARES)  # the new session has no secrets yet


def test_a_round_is_opened_for_one_set_of_clients(tmp_path: Path) -> None:
    made = begun(tmp_path)
    made.open(0, (0, 1, 2, 3))
    made.open(0, (3, 2, 1, 0))  # after a crash of the server
    made.open(1, (0, 1, 2))
    with refused("secure.other-sum"):
        Sessions(tmp_path / "secure", RUN).open(0, (0, 1, 2))


def test_runs_have_records_of_their_own(tmp_path: Path) -> None:
    begun(tmp_path).open(0, (0, 1, 2))
    other = Sessions(tmp_path / "secure", "run-2")
    other.begin(0, "run-2|0|first")
    other.open(0, (0, 1, 3))


def test_only_its_owner_reads_the_record(tmp_path: Path) -> None:
    begun(tmp_path)
    folder = tmp_path / "secure"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"begun": 3, "opened": {}}', '{"begun": [], "opened": [1]}'])
def test_a_broken_record_is_not_taken_for_an_empty_one(content: str, tmp_path: Path) -> None:
    made = begun(tmp_path)
    (tmp_path / "secure" / f"{RUN}.json").write_text(content)
    for answer in (lambda: made.begin(0, SECOND), lambda: made.take(0, SHARES), lambda: made.open(0, (0, 1, 2))):
        with refused("secure.broken-record"):
            answer()


def test_the_record_survives_as_json(tmp_path: Path) -> None:
    begun(tmp_path).open(4, (2, 0, 1))
    assert json.loads((tmp_path / "secure" / f"{RUN}.json").read_text())["opened"] == {"4": [0, 1, 2]}
