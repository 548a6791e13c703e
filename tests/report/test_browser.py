"""The page in headless Chromium; skipped if it is not installed."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tacit.report.history import Run, load
from tacit.report.page import page
from tests.metrics.test_scores import invented
from tests.report.runs import record, spread, write_counts, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --hide-scrollbars "
    "--enable-logging=stderr"
)
PHONE = 360
# A frame has exactly this width, while a browser window has a minimum width.
FRAME = """<!doctype html><body><iframe id='page' style='width:{width}px;height:800px;border:0' srcdoc='{text}'>
</iframe>
<pre id='found'></pre><script>
onload = () => {{
  const inside = document.getElementById('page').contentWindow, root = inside.document.documentElement;
  document.getElementById('found').textContent = JSON.stringify({{
    wide: root.scrollWidth, loaded: inside.performance.getEntriesByType('resource').length,
    cut: [...inside.document.querySelectorAll('table')].filter(e => e.scrollWidth > e.parentElement.clientWidth).length,
    charts: [...inside.document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0).length,
  }});
}};
</script></body>"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


def rich_run(folder: Path, label: str) -> Run:
    """A run with everything a page can show, under a name without spaces."""
    metrics = {
        name: spread(0.5) for name in ("pseudo_kept", "pseudo_accuracy", "complementary_accuracy", "local_accuracy")
    }
    rounds = [record(n, 0.5, metrics=metrics, skipped={"1": "upload lost"}) for n in range(3)]
    run = load(
        write_run(folder / label, rounds, data={"name": "d" * 60, "partition": "dirichlet:0.1"}), label, "column"
    )
    write_counts(run, label, [[0, 0, 0]] * 20, [[100, 0, 0], [3, 70, 0]] * 10)
    made = invented(0, n=400, c=10)
    run.directory.write_predictions(type(made)(made.y, made.logits, ("a-long-name-of-a-class-" * 2,) * 10))
    return run


def opened(text: str, folder: Path, width: int) -> tuple[dict[str, Any], str]:
    """What a browser measures of a page in a window of this width, and what it logs."""
    (folder / "frame.html").write_text(FRAME.format(width=width, text=html.escape(text)), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (folder / "frame.html").as_uri()], capture_output=True, text=True, check=True, timeout=1200
    )
    found = re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout)
    assert found, done.stdout[-500:]
    return json.loads(html.unescape(found[1])), done.stderr


def test_a_page_fits_a_phone_and_loads_nothing(tmp_path: Path) -> None:
    runs = [rich_run(tmp_path, label) for label in ("fedavg+fixmatch", "a-very-long-name-" * 6)]
    found, log = opened(page(runs, "tacit compare " + "x" * 200), tmp_path, PHONE)
    assert found["wide"] == PHONE
    assert found["loaded"] == 0
    assert "CONSOLE" not in log
    # Accuracy, classes and reliability of two models, data per client, pseudo-labels, client models.
    assert found["charts"] == 4 + 4 + 2 + 3 + 1


@pytest.mark.parametrize("width", [PHONE, 720, 1000, 1920])
def test_no_table_is_cut_off(tmp_path: Path, width: int) -> None:
    long = {"seconds": 12345.0, "bytes_up": 123_456_789, "bytes_down": 987_654_321, "steps": 1_234_567}
    scores = {"balanced_accuracy": 0.5, "auroc": 0.5, "log_loss": 1.2}
    runs = [
        load(
            write_run(
                tmp_path / f"{label}{seed}",
                [
                    record(n, 0.1 + 0.3 * seed, scores=scores, **{k: v * (1 + seed) for k, v in long.items()})
                    for n in range(6)
                ],
                seed=seed,
            ),
            label,
        )
        for label in ("fedavg+fixmatch", "labels-only")
        for seed in (0, 1)
    ]
    found, _ = opened(page([*runs, rich_run(tmp_path, "rich")]), tmp_path, width)
    assert found["cut"] == 0
    assert found["wide"] == width


def test_a_page_that_is_too_wide_loads_or_logs_is_noticed(tmp_path: Path) -> None:
    image = "<img src='http://127.0.0.1:65000/nobody-is-there.png'>"
    cut = "<div style='width:100px'><table style='min-width:200px'><tr><td>cut off</td></tr></table></div>"
    text = f"{image}{cut}<main><p style='width:500px'>wide</p></main><script>console.error('wrong')</script>"
    found, log = opened(text, tmp_path, PHONE)
    assert found["wide"] > PHONE
    assert found["loaded"] == 1
    assert found["cut"] == 1
    assert "CONSOLE" in log
