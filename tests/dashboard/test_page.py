"""The page in headless Chromium; skipped if it is not installed."""

import gc
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.dashboard.board import Board
from tacit.deploy import journal
from tacit.deploy.journal import Entry
from tacit.deploy.settings import Hub
from tacit.deploy.site_watch import site_panel
from tacit.engines.events import RoundProgress
from tacit.runs.directory import planned
from tacit.runs.directory.planned import Plan, PlannedRun
from tests.dashboard import browser
from tests.dashboard.browser import Browser
from tests.dashboard.invented import a_run, append, line, working
from tests.dashboard.test_server import served
from tests.deploy import places

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]
PHONE = 360
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8").partition("\n")[2]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser.opened(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


def opened(tab: Browser, address: str, rows: int) -> None:
    """Open the page at its desktop size and wait until the table has this many rows."""
    tab.requests.clear()
    tab.console.clear()
    tab.size(1300)
    tab.scheme("light")
    tab.open("about:blank")
    tab.open(address)
    tab.wait(f"document.querySelectorAll('#rows tr').length === {rows}")


def test_a_running_benchmark_appears_moves_and_ends(tab: Browser, tmp_path: Path) -> None:
    table = tmp_path / "runs" / "table"
    cells = tuple(PlannedRun(f"iid/{row}/seed-0", row, 0, 6, "IID") for row in ("FedAvg", "SemiFL", "Anchor"))
    a_run(table / "iid" / "FedAvg" / "seed-0", 6, top=0.5)
    live = a_run(table / "iid" / "SemiFL" / "seed-0", 2, 6, top=0.9)
    with planned.working(table, Plan("benchmark", "Table 4", cells)), served(Board([tmp_path / "runs"])) as address:
        opened(tab, address, 3)
        with working(live, RoundProgress(2, (0, 1, 2), {1}, {0}, {}, {0: 1.0})) as directory:
            tab.wait("document.querySelector('#groups').innerText.includes('round 3 of 6, 1 of 3 clients answered')")
            text = tab.text("#groups")
            assert "Table 4" in text
            assert "benchmark · running" in text
            assert "1 of 3" in text  # cells
            assert "8 of 18" in text  # rounds
            assert "best so far" in text
            assert tab.run("document.querySelectorAll('#charts .chart').length") >= 5
            before = tab.run("document.querySelector('[data-metric=accuracy] path.k1').getAttribute('d')")
            append(live, line(2, 0.9))
            directory.write_current_round(RoundProgress(3, (0, 1, 2), {1, 2}, {0}))
            began = time.monotonic()
            tab.wait("document.querySelector('#groups').innerText.includes('round 4 of 6')")
            assert tab.wait("document.querySelector('[data-metric=accuracy] path.k1').getAttribute('d')") != before
            assert time.monotonic() - began < 30  # under a second on an idle machine
            append(live, *[line(n, 0.9) for n in (3, 4, 5)])
        tab.wait("document.querySelectorAll('#rows .state.finished').length === 2")
        assert tab.run("document.querySelectorAll('#rows .state.waiting').length") == 1
        assert tab.console == []
        assert {each.split("/")[2] for each in tab.requests if not each.startswith(("data:", "about:"))} == {
            address.split("/")[2]
        }


def test_runs_that_appear_vanish_or_break_do_not_break_the_page(tab: Browser, tmp_path: Path) -> None:
    a_run(tmp_path / "a", 3, method={"name": "<img src=x onerror=alert(1)>"})
    with served(Board([tmp_path])) as address:
        opened(tab, address, 1)
        assert "<img src=x" in tab.text("#rows")
        assert tab.run("document.querySelectorAll('img').length") == 0
        a_run(tmp_path / "b", 3, 9)
        tab.wait("document.querySelectorAll('#rows tr').length === 2")
        (tmp_path / "b" / "run.json").write_text("{}")
        (tmp_path / "b" / "config.toml").write_text("nonsense")
        tab.wait("document.querySelector('#attention').innerText.includes('not the config of a run')")
        tab.run("location.hash = document.querySelector('#rows tr:nth-child(2) a').getAttribute('href')")
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "b")
        tab.wait("document.querySelector('#detail h1').innerText === 'This run is gone'")
        tab.run("location.hash = ''")
        tab.wait("document.querySelectorAll('#rows tr').length === 0")
        assert tab.console == []


def test_the_page_works_without_a_pointer_and_tells_what_things_are(tab: Browser, tmp_path: Path) -> None:
    for number, name in enumerate(("fedavg", "semifl")):
        a_run(tmp_path / name, 4 + number, top=0.5 + 0.1 * number, method={"name": name})
    with served(Board([tmp_path])) as address:
        opened(tab, address, 2)
        tab.wait("document.querySelectorAll('.chart path').length > 0")
        tab.press("/")
        tab.type("semi")
        tab.wait("document.querySelectorAll('#rows tr').length === 1")
        assert tab.text("#count") == "1 of 2 runs"
        tab.run("document.querySelector('#filter').value = ''")
        tab.run("document.querySelector('#filter').dispatchEvent(new Event('input'))")
        tab.run("document.querySelector('[data-name=best] button').focus()")
        tab.press("Enter")
        tab.wait("document.querySelector('[data-name=best]').getAttribute('aria-sort') === 'descending'")
        assert tab.run("document.querySelector('#rows th').innerText") == "semifl"
        tab.run("document.querySelector('#rows input').focus()")
        tab.press(" ")
        tab.wait("document.querySelectorAll('#legend li').length === 1")
        tab.run("document.querySelector('[data-metric=accuracy] svg').focus()")
        tab.press("Home")
        tab.wait("document.querySelector('#news').textContent.startsWith('round 1:')")
        tab.press("ArrowRight")
        tab.wait("document.querySelector('#news').textContent.startsWith('round 2: fedavg')")
        tab.run("document.querySelector('#rows th a').focus()")
        tab.press("Enter")
        tab.wait("document.activeElement.id === 'detail-title'")
        assert tab.text("#detail h1") == "semifl, seed 0"
        tab.wait("document.querySelector('#detail-rest')?.innerText.includes('rounds = 5')")
        tab.press("Escape")
        tab.wait("document.querySelector('#detail').hidden")
        nameless = """[...document.querySelectorAll('button, input, select, a, svg[role=img], [role=progressbar]')]
            .filter(e => !(e.innerText || e.getAttribute('aria-label') || e.labels?.[0]?.textContent)).length"""
        assert tab.run(nameless) == 0
        assert "Accuracy by round. fedavg: " in tab.run(
            "document.querySelector('[data-metric=accuracy] svg').getAttribute('aria-label')"
        )


@pytest.mark.parametrize("axis, text", [("bytes", "kB"), ("steps", "40"), ("seconds", "s"), ("rounds", "4")])
def test_curves_can_be_seen_against_every_cost(tab: Browser, tmp_path: Path, axis: str, text: str) -> None:
    a_run(tmp_path / "a", 4)
    with served(Board([tmp_path])) as address:
        opened(tab, address, 1)
        tab.wait("document.querySelectorAll('.chart path').length > 0")
        tab.run(f"document.querySelector('#axes input[value={axis}]').click()")
        tab.wait(f"document.querySelector('[data-metric=accuracy] svg').textContent.includes({json.dumps(text)})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 800, 1400])
def test_the_page_fits_every_width_and_is_readable_in_both_schemes(
    tab: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    a_run(
        tmp_path / ("a-very-long-name-" * 8), 4, 9, method={"name": "a-very-long-method-" * 6}, data={"name": "d" * 90}
    )
    a_run(tmp_path / "b", 12)
    with served(Board([tmp_path])) as address:
        opened(tab, address, 2)
        tab.size(width)
        tab.scheme(scheme)
        tab.wait("document.querySelectorAll('.chart path').length > 0")
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.run(f"({CONTRAST})()") >= 4.5
        tab.run("location.hash = document.querySelector('#rows a').getAttribute('href')")
        tab.wait("!!document.querySelector('#detail-rest .card')")
        assert tab.run("document.documentElement.scrollWidth") <= width


def test_a_hub_and_a_site_are_shown(tab: Browser, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tacit.deploy.hub_directory import INTRODUCTIONS, HubDirectory
    from tacit.deploy.hub_watch import hub_panel

    hub = HubDirectory.create(tmp_path / "hub", Hub())
    folder = a_run(hub.runs_folder / "first", 2, 9, protect={"sample_noise": 0.8})
    append(folder, line(2, sample_privacy={"epsilon": 2.5, "delta": 1e-5}))
    said = {
        "north": {"samples": 1200, "labeled": 40, "refusal": "", "version": "7.8.9"},
        "south": {"samples": 0, "labeled": 0, "refusal": "wrong classes <b>; rename the folders"},
    }
    (folder / INTRODUCTIONS).write_text(json.dumps(said))
    site = places.site(tmp_path, "west", port=1)
    sent = {"accuracy": 0.875, "log_loss": 1.25}
    journal.append(site.parent, Entry("2026-01-01T00:00:00+00:00", "update", "abcdefgh", 3, "fedavg", ("w", "n"), 1500))
    journal.append(
        site.parent, Entry("2026-01-02T00:00:00+00:00", "update", "abcdefgh", 3, "fedavg", ("score",), 90, scores=sent)
    )
    panels = {"hub": hub_panel(hub.path), "site": site_panel(site)}
    with served(Board([hub.runs_folder], panels)) as address:
        opened(tab, address, 1)
        tab.wait("document.querySelectorAll('[data-panel]').length === 2")
        shown = tab.text("[data-panel=hub]")
        assert "DP-SGD in 1 of 1 runs" in shown
        assert "ε ≤ 2.5" in shown
        assert "7.8.9" in shown
        assert "unknown" in shown
        assert "wrong classes <b>; rename the folders" in shown
        shown = tab.text("[data-panel=site]")
        assert "Sent model weights and the number of samples behind them after round 3" in shown
        assert "accuracy 87.5%, log loss 1.250 for the final model" in shown
        assert "individual labels" in shown
        for width in (PHONE, 1300):
            tab.size(width)
            assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.run("document.querySelector('[data-panel=hub]').offsetWidth") > 1000
        assert tab.run(f"({CONTRAST})()") >= 4.5
        tab.screenshot(tmp_path / "panels.png")
        assert tab.console == []


def resident_bytes() -> int:
    """The memory of this process, in which the server runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_an_hour_of_rounds_does_not_grow_the_memory_of_page_or_server(tab: Browser, tmp_path: Path) -> None:
    """3,600 rounds, one a second in life, arrive while the page follows; the run is then replaced, and again."""
    folder = a_run(tmp_path / "a", 1, 10_000)
    with served(Board([tmp_path])) as address:
        opened(tab, address, 1)
        heaps, resident = [], []
        for _ in range(3):
            (folder / "rounds.jsonl").unlink()
            append(folder, line(0))
            for start in range(1, 3600, 120):
                append(folder, *[line(n) for n in range(start, start + 120)])
                time.sleep(0.05)
            tab.wait("document.querySelector('#rows').innerText.includes('3,601 of 10,000')")
            tab.wait("document.querySelector('[data-metric=accuracy] svg').ariaLabel.includes('round 3,601')")
            heaps.append(tab.heap())
            gc.collect()
            resident.append(resident_bytes())
        assert heaps[2] < 1.25 * heaps[0] + 2e6, heaps
        assert heaps[2] < 60e6
        assert resident[2] < resident[0] + 20e6, resident  # the records of one hour alone would take more
        assert tab.run("document.querySelectorAll('*').length") < 3000
