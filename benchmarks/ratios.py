"""All speed benchmarks in one go; every ratio they print is kept in results/ratios.json and stands in the docs.

    make ratios                       on a machine that does nothing else; about half an hour
    python benchmarks/ratios.py       the same without the environment of the peers: their rows stay as they are
    python benchmarks/ratios.py flower augment      only these

A ratio in the docs is written as it is printed, such as `w1 ratio=1.33`; those are replaced by what was printed now.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "benchmarks/results/ratios.json"
PEERS = ROOT / ".venv-peers/bin/python"
HOUR = 3600.0  # seconds that one benchmark may take
PRINTED = re.compile(r"^(?P<name>\w[^=\n]*?) ratio=(?P<value>[\d.]+\d)", re.MULTILINE)
QUOTED = re.compile(r"`(?P<name>\w[^=`\n]*?) ratio=[\d.]+\d`")
BENCHMARKS = {  # and its arguments
    "w1": ("speed.py", "w1"),
    "scale": ("speed.py", "scale"),
    "ssl": ("speed.py", "ssl"),
    "fedmatch": ("speed.py", "fedmatch"),
    "augment": ("augment.py",),
    "flower": ("flower.py",),
}


def pages() -> list[Path]:
    """Where ratios stand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def measure(name: str) -> dict[str, str]:
    """Play one benchmark; the ratios that it printed."""
    script, *words = BENCHMARKS[name]
    python = sys.executable
    if name == "w1" and PEERS.exists():
        python, words = str(PEERS), [*words, "--peers"]
    command = [python, str(ROOT / "benchmarks" / script), *words]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, timeout=HOUR, check=False)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"{name} failed; what was measured before it is kept")
    return {found["name"]: found["value"] for found in PRINTED.finditer(done.stdout)}


def kept() -> dict[str, str]:
    """The ratios so far, as they were printed."""
    found: dict[str, str] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return found


def filled(text: str, ratios: dict[str, str]) -> str:
    """A page with these ratios where it quotes them."""

    def quote(found: re.Match[str]) -> str:
        name = found["name"]
        return f"`{name} ratio={ratios[name]}`" if name in ratios else found[0]

    return QUOTED.sub(quote, text)


def main() -> None:
    """Measure, keep, and fill the docs after every benchmark."""
    parser = argparse.ArgumentParser(description="All speed benchmarks, on a machine that does nothing else.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark '{unknown[0]}': choose from {', '.join(BENCHMARKS)}")
    for name in names:
        ratios = kept() | measure(name)
        KEPT.write_text(json.dumps(ratios, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        for page in pages():
            page.write_text(filled(page.read_text(encoding="utf-8"), ratios), encoding="utf-8")


if __name__ == "__main__":
    main()
