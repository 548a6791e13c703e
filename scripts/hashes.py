"""Print a SHA-256 for the outcome of every method under every label placement, so that a change of numbers shows.

    python -m scripts.hashes                    this work tree
    python -m scripts.hashes --against 7f42a16  this work tree and that commit; exit code 1 where they differ

A hash covers the final model, bit by bit, and each round's accuracy, loss, steps and bytes. Bits depend on the type of
CPU, so hashes are compared between work trees and never stored. A run that is refused counts as an outcome too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 3600  # seconds for all runs of one work tree
PLACEMENTS = ("client", "server", "some", "all")
COMMON: dict[str, Any] = {
    "data": "fashion-small",
    "data.samples": 240,
    "data.test": 200,
    "clients": 4,
    "cohort": 3,
    "partition": "dirichlet:0.5",
    "rounds": 3,
    "epochs": 1,
    "batch": 16,
    "lr": 0.02,
    "validation": 20,
    "net": "lenet",
    "server.epochs": 2,
    "workers": 0,
}
AMOUNT = {"client": {"per_class": 1}, "server": {"per_class": 3}, "some": {"per_class": 2}, "all": {}}
OBJECTIVES_WITH = ("fedavg", "fedprox", "moon")  # each of these with every objective
VARIANTS: dict[str, dict[str, Any]] = {
    "through the wire": {"engine.strict": True},
    "two workers": {"workers": 2},
    "faults": {"faults.lost": 0.3, "faults.nonfinite": 0.2, "engine.min_clients": 0},
    "data that streams in": {"data.steps": 2, "data.step_rounds": 2},
    "BatchNorm": {"net": "resnet9", "net.width": 0.125, "net.norm": "batch"},
    "BatchNorm recomputed": {
        "net": "resnet9",
        "net.width": 0.125,
        "net.norm": "batch",
        "train.buffers": "recompute",
        "server.buffers": "recompute",
    },
    "momentum between rounds": {"train.optimizer": "keep"},
    "as released": {"method.preset": "as-released"},
}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run by name, with its options."""
    methods, objectives = _names("methods"), _names("objectives")
    for method in methods:
        for labels in PLACEMENTS:
            yield f"{method}, labels {labels}", {"method": method, "labels": labels, **AMOUNT[labels]}
    for objective in objectives:
        for method in OBJECTIVES_WITH:
            for labels in ("client", "server"):
                name = f"{method}+{objective}"
                yield f"{name}, labels {labels}", {"method": name, "labels": labels, **AMOUNT[labels]}
    for variant, options in VARIANTS.items():
        for method in methods:
            for labels in ("client", "server"):
                yield (
                    f"{method}, labels {labels}, {variant}",
                    {"method": method, "labels": labels, **AMOUNT[labels]} | options,
                )


def play(only: str) -> dict[str, str]:
    """The hash of every run whose name holds `only`; whichever tacit is on the path plays it."""
    hashes, common = {}, COMMON | _same_draws()
    for name, options in cases():
        if only in name:
            hashes[name] = _outcome(common | options)
            print(f"{hashes[name][:16]}  {name}", file=sys.stderr, flush=True)
    for method in ("fedmatch", "scaffold") if not only or "resumed" in only else ():
        name = f"{method}, killed and resumed"
        hashes[name] = _resumed({**common, "method": method, "labels": "client", **AMOUNT["client"], "rounds": 4})
        print(f"{hashes[name][:16]}  {name}", file=sys.stderr, flush=True)
    return hashes


def _same_draws() -> dict[str, Any]:
    """The setting that draws samples as in 0.1, if this tacit has it; older ones draw so anyway."""
    try:
        from tacit.data.split.config import DataConfig
    except ModuleNotFoundError:  # 0.1, whose rooms were others
        return {}
    return {"data.draw": "0.1"} if hasattr(DataConfig, "draw") else {}


def _names(kind: str) -> list[str]:
    """What `tacit ls` lists."""
    listed = subprocess.run(
        [sys.executable, "-m", "tacit", "ls", kind], capture_output=True, text=True, check=True, timeout=120
    )
    return [found[1] for line in listed.stdout.splitlines() if (found := re.match(r" {1,4}(\S+)", line))]


def _outcome(options: dict[str, Any]) -> str:
    import tacit

    try:
        return _digest(tacit.run(**options))
    except Exception as error:
        if "TacitError" not in [kind.__name__ for kind in type(error).__mro__]:
            raise
        return "refused"


def _digest(result: Any) -> str:
    digest = sha256()
    for name, value in sorted((result.params or {}).items()):  # in whatever order a file has them
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    names = ("round", "accuracy", "loss", "local_accuracy", "clients", "steps", "bytes_down", "bytes_up")
    digest.update(json.dumps([[record[name] for name in names] for record in result.history]).encode())
    return digest.hexdigest()


def _resumed(options: dict[str, Any]) -> str:
    """A run that is killed after its second round and resumed."""
    import tacit

    with tempfile.TemporaryDirectory(prefix="tacit-hashes-") as scratch:
        folder = Path(scratch) / "run"
        call = f"import tacit; tacit.run(out={str(folder)!r}, **{options!r})"
        child = subprocess.Popen([sys.executable, "-c", call])
        latest = folder / "checkpoint" / "latest.json"
        try:
            while child.poll() is None and not (latest.exists() and json.loads(latest.read_bytes())["round"] >= 2):
                time.sleep(0.005)
        finally:
            child.kill()
            child.wait()
        return _digest(tacit.resume(folder))


def of_tree(tree: Path, only: str) -> subprocess.Popen[str]:
    """This script in a process of its own, with the package of a work tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--json", "--only", only]
    return subprocess.Popen(
        command, env=environment, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def compare(commit: str, only: str) -> int:
    """Play both work trees and print where they differ; the exit code."""
    with tempfile.TemporaryDirectory(prefix="tacit-hashes-") as scratch:
        tree = Path(scratch) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            running = [of_tree(place, only) for place in (tree, ROOT)]
            before, now = (json.loads(process.communicate(timeout=TIMEOUT)[0]) for process in running)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)
    common = [name for name in before if name in now]
    differing = [name for name in common if before[name] != now[name]]
    for name in differing:
        print(f"differs: {name}: {before[name][:16]} at {commit}, {now[name][:16]} here")
    for name in [name for name in before if name not in now]:
        print(f"missing here: {name}")
    added = len(now) - len(common)
    refused = sum(now[name] == "refused" for name in common)
    print(
        f"{len(common)} outcomes compared with {commit}, {refused} are refusals: {len(differing)} differ, {added} new"
    )
    return 1 if differing or len(common) < len(before) else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="SHA-256 of the outcome of every method under every label placement.")
    parser.add_argument("--against", metavar="COMMIT", help="play this commit too and compare")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name holds this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.against:
        return compare(options.against, options.only)
    hashes = play(options.only)
    print(json.dumps(hashes) if options.json else "\n".join(f"{value}  {name}" for name, value in hashes.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
