"""Claims of papers: how rows are compared, which verdict follows, and what the table shows of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tacit.bench import claim_table, claims, docs, plan, results, spec
from tacit.bench.claims import Claim, Verdict
from tacit.bench.results import CellResult, Place, Seeds
from tests.bench import small
from tests.refusals import refused

FEDAVG, FIXMATCH = ("iid", "fedavg"), ("iid", "fixmatch")


def result(accuracy: float, up: int = 1000, diversity: float | None = None) -> CellResult:
    """A stored result made by hand; the accuracy is in percent."""
    logged = {} if diversity is None else {"weight_diversity": diversity}
    return CellResult(accuracy / 100, accuracy / 100, 3, 30, up, 0, 1.0, [[3, accuracy / 100]], logged)


def seeds(accuracies: Sequence[float], up: int = 1000, diversity: Sequence[float] | None = None) -> Seeds:
    """Results with seeds 0, 1, …"""
    numbers: Sequence[float | None] = diversity or [None] * len(accuracies)
    return {seed: result(each, up, number) for seed, (each, number) in enumerate(zip(accuracies, numbers, strict=True))}


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small benchmark as the only one of the package."""
    path = small.write(tmp_path)
    monkeypatch.setattr(spec, "folder", lambda: tmp_path)
    return path


def store(path: Path, measured: Mapping[Place, Seeds]) -> None:
    """Store these results for the small benchmark."""
    benchmark = spec.read(path)
    results.save_runs(benchmark, False, plan.cells(benchmark), measured, "1.2.3")


def claim(**changes: object) -> Claim:
    """The claim that FixMatch beats FedAvg, or another one about the small benchmark."""
    values: dict[str, object] = {"row": "fixmatch", "beats": ["fedavg"]} if not changes.get("falls") else {}
    common = {"paper": "P", "claim": "It helps.", "shown": "Table 1", "benchmark": "small-table", "columns": ["iid"]}
    return claims.make(common | values | changes)


def judged(path: Path, fixmatch: Seeds, fedavg: Seeds, **changes: object) -> claims.Judged:
    """A claim judged by these results."""
    store(path, {place: those for place, those in ((FEDAVG, fedavg), (FIXMATCH, fixmatch)) if those})
    return claims.judge([claim(**changes)])[0]


def test_a_row_beats_another_if_the_difference_is_above_its_spread(known: Path) -> None:
    # Differences 3, 2, 1: mean 2, standard deviation 1. The accuracies themselves spread by 10.
    found = judged(known, seeds([53, 62, 71]), seeds([50, 60, 70]))
    assert found.verdict is Verdict.HOLDS
    (only,) = found.comparisons
    assert only.difference is not None
    assert (round(only.difference.mean, 6), round(only.difference.std or 0, 6)) == (2, 1)


def test_a_difference_within_its_spread_does_not_count(known: Path) -> None:
    # Differences 4, 0, -1: mean 1, standard deviation 2.6.
    assert judged(known, seeds([54, 60, 69]), seeds([50, 60, 70])).verdict is Verdict.FAILS


def test_only_seeds_that_both_rows_have_count(known: Path) -> None:
    found = judged(known, seeds([60, 60, 60, 60]), {1: result(50), 2: result(51), 5: result(90)})
    assert (found.verdict, found.seeds) == (Verdict.OPEN, 2)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_fewer_than_three_seeds_leave_a_claim_open(known: Path, number: int) -> None:
    found = judged(known, seeds([60] * number), seeds([50] * 3))
    assert (found.verdict, found.seeds) == (Verdict.OPEN, number)
    assert f"**not yet on three seeds ({number} so far)** |" in claim_table.to_markdown([found])
    costly = judged(known, seeds([60] * number), seeds([50] * 3), unaffordable="a week of computing")
    assert costly.verdict is Verdict.UNAFFORDABLE
    assert "**not affordable here: a week of computing** |" in claim_table.to_markdown([costly])


def test_three_seeds_decide_also_where_they_were_called_unaffordable(known: Path) -> None:
    assert judged(known, seeds([60] * 3), seeds([50] * 3), unaffordable="a week").verdict is Verdict.HOLDS


def test_a_claim_holds_in_part_if_some_comparisons_do(known: Path) -> None:
    both = {"beats": [], "row": "", "falls": ["fixmatch", "fedavg", "labels-only"]}
    store(known, {FIXMATCH: seeds([60, 61, 62]), FEDAVG: seeds([50, 51, 52]), ("iid", "labels-only"): seeds([55] * 3)})
    (found,) = claims.judge([claim(**both)])
    assert found.verdict is Verdict.IN_PART
    assert [each.checks() for each in found.comparisons] == [[True], [False]]


def test_a_gain_below_the_papers_margin_holds_in_part(known: Path) -> None:
    assert judged(known, seeds([52] * 3), seeds([50] * 3), margin=3.0).verdict is Verdict.IN_PART
    assert judged(known, seeds([53] * 3), seeds([50] * 3), margin=3.0).verdict is Verdict.HOLDS
    assert judged(known, seeds([49] * 3), seeds([50] * 3), margin=3.0).verdict is Verdict.FAILS


def test_a_match_is_at_most_a_point_below(known: Path) -> None:
    matches = {"beats": [], "matches": ["fedavg"]}
    assert judged(known, seeds([49.5] * 3), seeds([50] * 3), **matches).verdict is Verdict.HOLDS
    assert judged(known, seeds([48.5] * 3), seeds([50] * 3), **matches).verdict is Verdict.FAILS


def test_bytes_are_a_share_of_the_other_rows(known: Path) -> None:
    saves = {"beats": [], "sends": 0.5, "of": ["fedavg"]}
    half = judged(known, seeds([50] * 3, up=500), seeds([50] * 3), **saves)
    assert half.verdict is Verdict.HOLDS
    assert "FixMatch uploads 0.50 of FedAvg, 3 seeds" in claim_table.to_markdown([half])
    assert judged(known, seeds([50] * 3, up=501), seeds([50] * 3), **saves).verdict is Verdict.FAILS


def test_a_logged_number_is_compared_where_it_was_stored(known: Path) -> None:
    lowers = {"beats": [], "lowers": "weight_diversity", "than": ["fedavg"]}
    high = seeds([50] * 3, diversity=[0.5, 0.6, 0.7])
    found = judged(known, seeds([50] * 3, diversity=[0.4, 0.5, 0.5]), high, **lowers)
    assert found.verdict is Verdict.HOLDS
    assert "0.467 ± 0.058 (FixMatch) against 0.600 ± 0.100 (FedAvg): −0.133 ± 0.058, 3" in claim_table.to_markdown(
        [found]
    )
    assert judged(known, high, seeds([50] * 3, diversity=[0.4, 0.5, 0.5]), **lowers).verdict is Verdict.FAILS
    assert judged(known, seeds([50] * 3), high, **lowers).seeds == 0


def test_a_row_of_the_table_has_numbers_command_and_verdict(known: Path) -> None:
    text = claim_table.to_markdown([judged(known, seeds([53, 62, 71]), seeds([50, 60, 70]))])
    assert text.startswith("**1 claim: 1 holds.**\n\n## P\n\n| claim | in the paper | here | result | verdict |\n")
    assert (
        "A small table; IID<br>`tacit bench run small-table --column iid --only fixmatch --only fedavg --seeds 0,1,2`"
        in text
    )
    assert "| 62.0 ± 9.0 (FixMatch) against 60.0 ± 10.0 (FedAvg): +2.0 ± 1.0, 3 seeds | **holds** |" in text


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"benchmark": "smal-table"}, "names.unknown-benchmark"),
        ({"columns": ["uid"]}, "names.unknown-column"),
        ({"beats": ["fedavk"]}, "names.unknown-row"),
        ({"beats": []}, "bench.no-comparison"),
        ({"sends": 0.5}, "bench.no-comparison"),
        ({"falls": ["fedavg"]}, "bench.no-comparison"),
        ({"columns": []}, "settings.impossible-value"),
    ],
)
@pytest.mark.usefixtures("known")
def test_mistakes_are_refused(changes: dict[str, object], code: str) -> None:
    with refused(code):
        claims.judge([claim(**changes)])


def test_a_page_is_filled_with_the_claims_of_the_file(known: Path) -> None:
    store(known, {FIXMATCH: seeds([60] * 3), FEDAVG: seeds([50] * 3)})
    text = '[[claims]]\npaper = "P"\nclaim = "It helps."\nshown = "Table 1"\nbenchmark = "small-table"\n'
    text += 'columns = ["iid"]\n'
    (known.parent / "claims.toml").write_text(text + 'row = "fixmatch"\nbeats = ["fedavg"]\n')
    assert "small-table" in spec.names()
    assert "claims" not in spec.names()
    page = docs.filled("<!-- bench: claims -->\n<!-- end bench -->\n", Path("page.md"))
    assert "**1 claim: 1 holds.**" in page
    (known.parent / "claims.toml").write_text(text.replace('shown = "Table 1"\n', ""))
    with refused("bench.missing-section") as refusal:
        claims.read(claims.path())
    assert "claim 1: shown" in str(refusal.error)


def test_the_claims_of_the_package_are_about_every_paper() -> None:
    papers = {claim.paper for claim in claims.read(claims.path())}
    assert papers == {"FedMatch", "SSFL and FedRGD", "FedSiam", "FedSEAL", "MOON", "FedMix", "FedProx and SCAFFOLD"}
