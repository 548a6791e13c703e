"""Carry stored benchmark results over to the present way of naming settings and code.

    python -m scripts.carry_results                 the stored results
    python -m scripts.carry_results --runs FOLDER   the runs of benchmarks below a folder, for `tacit bench save`

Results of 0.1 name the code by a hash of its source and the config by a hash that holds Python paths. A cell is
accepted only if every setting stored with it is equal to what its benchmark asks for today; then it gets today's hash
and the version NUMBERS, which says that `scripts/hashes.py` found no difference since. Any other cell is refused by
name and left as it is. Settings that have been renamed since are renamed first.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tacit.bench import identity, plan, results, spec
from tacit.data.split.partition import canonical
from tacit.runs import config as configs
from tacit.runs.config import RENAMED
from tacit.runs.directory import RunDirectory

ROOT = Path(__file__).resolve().parent.parent
METHOD_SETTINGS = {"fedsem": {"method.first": "method.phase1_share"}, "moon": {"method.first": "method.first_visit"}}


def carried(path: Path) -> list[str]:
    """Rewrite one file of results; the cells that could not be accepted."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    benchmark = spec.find(stored["benchmark"])
    cells = {cell.place: cell for cell in plan.cells(benchmark, stored["quick"])}
    refused = []
    shared = stored.pop("settings", {})
    for column, rows in stored["cells"].items():
        for row, cell in rows.items():
            asked = cells.get((column, row))
            settings = renamed(shared | cell["settings"], asked.config.method_name if asked else "")
            cell["settings"] = settings
            differing = differences(settings, asked) if asked else ["no such cell"]
            if differing:
                refused.append(f"{path.name}, {column}/{row}: {', '.join(differing)}")
            elif asked is not None:
                cell.pop("method_version", None)
                cell |= {"config_hash": asked.hash, "code": identity.NUMBERS}
    results.save(path, stored)
    return refused


def renamed(settings: dict[str, Any], method: str) -> dict[str, Any]:
    """Settings under today's names."""
    names = RENAMED | METHOD_SETTINGS.get(method.partition("+")[0], {})
    found = {names.get(name, name): value for name, value in settings.items()}
    return found | {"data.partition": canonical(found["data.partition"])}


def differences(settings: dict[str, Any], asked: plan.Cell) -> list[str]:
    """The settings that are not what the benchmark asks for; one that is new since then cannot differ."""
    return [
        f"{name} is {asked.settings.get(name, 'gone')!r}, was {value!r}"
        for name, value in settings.items()
        if name not in asked.settings or asked.settings[name] != value
    ]


def adopted(runs: Path) -> list[str]:
    """Note in every run below a folder which cell it is; the runs whose config is not what their cell asks for."""
    refused = []
    for note in sorted(runs.glob(f"*/*/*/seed-*/{plan.NOTE}")):
        directory, (name, column, row) = RunDirectory(note.parent), note.relative_to(runs).parts[:3]
        cells = {
            cell.place: cell for cell in plan.cells(spec.find(name.removesuffix("-quick")), name.endswith("-quick"))
        }
        cell, config = cells[column, row], configs.make(directory.config())
        if identity.fingerprint(config) == cell.hash:
            directory.write_note(plan.NOTE, {"config_hash": cell.hash, "code": identity.NUMBERS})
        else:
            refused.append(str(directory.path))
    return refused


def main() -> int:
    """Carry everything over; the exit code is 1 if a cell or a run was refused."""
    parser = argparse.ArgumentParser(description="Carry results of 0.1 over.")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="runs of benchmarks instead of stored results")
    options = parser.parse_args()
    refused = adopted(options.runs) if options.runs else []
    if options.runs:
        print("\n".join(refused))
        return 1 if refused else 0
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        if path.stem not in ("ratios", "growth"):  # of speed
            refused += carried(path)
            print(f"{path.name}: done")
    print("\n".join(refused))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
