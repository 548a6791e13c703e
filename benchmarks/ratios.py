"""Run all speed benchmarks, store the ratios they print in results/ratios.json, and update them in the docs.

    make ratios                       on an otherwise idle machine; about half an hour
    python benchmarks/ratios.py       the same without the environment of the peers: their rows stay as they are
    python benchmarks/ratios.py flower augment      only these

A ratio in the docs is written as printed, such as `w1 ratio=1.33`, and is replaced by the new one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks/results/ratios.json"
PEERS = ROOT / ".venv-peers/bin/python"
HOUR = 3600.0  # time limit of one benchmark in seconds
PRINTED = re.compile(r"^(?P<name>\w[^=\n]*?) ratio=(?P<value>[\d.]+\d)", re.MULTILINE)
QUOTED = re.compile(r"`(?P<name>\w[^=`\n]*?) ratio=[\d.]+\d`")
BENCHMARKS = {  # script and arguments
    "w1": ("speed.py", "w1"),
    "scale": ("speed.py", "scale"),
    "ssl": ("speed.py", "ssl"),
    "fedmatch": ("speed.py", "fedmatch"),
    "augment": ("augment.py",),
    "flower": ("flower.py",),
}


def pages() -> list[Path]:
    """The pages that may contain ratios."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def measure(name: str) -> dict[str, str]:
    """Run one benchmark; the ratios it printed."""
    script, *words = BENCHMARKS[name]
    python = sys.executable
    if name == "w1" and PEERS.exists():
        python, words = str(PEERS), [*words, "--peers"]
    command = [python, str(ROOT / "benchmarks" / script), *words]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, timeout=HOUR, check=False)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"{name} failed; the earlier results are stored")
    return {found["name"]: found["value"] for found in PRINTED.finditer(done.stdout)}


def stored() -> dict[str, str]:
    """The stored ratios, as they were printed."""
    found: dict[str, str] = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    return found


def filled(text: str, ratios: dict[str, str]) -> str:
    """A page with the ratios it quotes replaced by these."""

    def quote(found: re.Match[str]) -> str:
        name = found["name"]
        return f"`{name} ratio={ratios[name]}`" if name in ratios else found[0]

    return QUOTED.sub(quote, text)


def main() -> None:
    """Run the benchmarks; after each, store its ratios and update the docs."""
    parser = argparse.ArgumentParser(description="Run all speed benchmarks, on an otherwise idle machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark '{unknown[0]}'; choose one of {', '.join(BENCHMARKS)}")
    for name in names:
        ratios = stored() | measure(name)
        STORED.write_text(json.dumps(ratios, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        for page in pages():
            page.write_text(filled(page.read_text(encoding="utf-8"), ratios), encoding="utf-8")


if __name__ == "__main__":
    main()
