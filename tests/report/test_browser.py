"""The page in a real browser: Debian's Chromium, without a window. Skipped where there is none."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tacit.report.page import page
from tacit.report.read import Run, load
from tests.report.runs import deal, record, spread, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage --hide-scrollbars "
    "--enable-logging=stderr"
)
PHONE = 360
# A frame is a window of exactly that width, whatever the least width of the browser's own is.
FRAME = """<!doctype html><body><iframe id='page' style='width:{width}px;height:800px;border:0' srcdoc='{text}'>
</iframe>
<pre id='found'></pre><script>
onload = () => {{
  const inside = document.getElementById('page').contentWindow, root = inside.document.documentElement;
  document.getElementById('found').textContent = JSON.stringify({{
    wide: root.scrollWidth, loaded: inside.performance.getEntriesByType('resource').length,
    charts: [...inside.document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0).length,
  }});
}};
</script></body>"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


def rich_run(folder: Path, label: str) -> Run:
    """A run with everything a page can show, under a name that does not break anywhere."""
    told = {
        name: spread(0.5) for name in ("pseudo_kept", "pseudo_accuracy", "complementary_accuracy", "local_accuracy")
    }
    rounds = [record(n, 0.5, metrics=told, skipped={"1": "upload lost"}) for n in range(3)]
    run = load(
        write_run(folder / label, rounds, data={"name": "d" * 60, "partition": "dirichlet:0.1"}), label, "column"
    )
    deal(run, label, [[0, 0, 0]] * 20, [[100, 0, 0], [3, 70, 0]] * 10)
    return run


def visit(text: str, folder: Path, width: int) -> tuple[dict[str, Any], str]:
    """What a browser finds of a page in a window of this width, and what it logs."""
    (folder / "frame.html").write_text(FRAME.format(width=width, text=html.escape(text)), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (folder / "frame.html").as_uri()], capture_output=True, text=True, check=True, timeout=1200
    )
    found = re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout)
    assert found, done.stdout[-500:]
    return json.loads(html.unescape(found[1])), done.stderr


def test_a_page_fits_a_phone_and_asks_nobody(tmp_path: Path) -> None:
    runs = [rich_run(tmp_path, label) for label in ("fedavg+fixmatch", "a-very-long-name-" * 6)]
    found, log = visit(page(runs, "tacit compare " + "x" * 200), tmp_path, PHONE)
    assert found["wide"] == PHONE
    assert found["loaded"] == 0
    assert "CONSOLE" not in log
    assert found["charts"] == 4 + 2 + 3 + 1  # accuracy, who holds what, pseudo-labels, own models


def test_what_is_too_wide_loaded_or_wrong_is_seen(tmp_path: Path) -> None:
    image = "<img src='http://127.0.0.1:65000/nobody-is-there.png'>"
    text = f"{image}<main><p style='width:500px'>wide</p></main><script>console.error('wrong')</script>"
    found, log = visit(text, tmp_path, PHONE)
    assert found["wide"] > PHONE
    assert found["loaded"] == 1
    assert "CONSOLE" in log
