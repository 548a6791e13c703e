"""Which room may import which, and other rules about the tree that no linter knows.

The rules are functions over source text, so that each is shown to fail on a made-up source before it is
believed on the real one.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tacit"

ANYTHING = "*"

# A room is a module or a folder directly in src/tacit. It may import the rooms on its right and nothing else of
# tacit; a folder that stands on its own right may import its own modules. A new room is added here on purpose.
MAY_IMPORT = {
    "__version__": "",  # of the package itself
    "errors": "",
    "machine": "",
    "random": "",
    "folders": "errors",
    "params": "",
    "federation": "",
    "losses": "",
    "own": "errors",
    "nets": "nets errors own params random",
    "method": "federation nets params random",
    "learn": "errors federation learn method nets params random",
    "objectives": "federation learn losses method nets objectives params random",
    "averaging": "learn method params",
    "data": "data errors federation machine random",
    "methods": "averaging errors federation learn losses method nets objectives params random",
    "engines": "engines errors federation learn machine method nets params random",
    "catalog": "data errors method methods nets objectives own",
    "config": "catalog data engines.faults errors learn method nets",
    "prepare": "config data engines errors federation nets random",
    "simulation": "config engines errors prepare",
    "trackers": "config engines.loop errors",
    "experiment": "config data engines errors folders params prepare simulation trackers",
    "deploy": "__version__ catalog config data deploy display engines errors experiment federation folders learn "
    "method nets params prepare random",
    "report": "report errors",
    "display": "engines experiment report",
    "compare": "catalog config data display errors experiment prepare report",
    "demo": "compare display folders report",
    "look": "config data display errors folders prepare random report",
    "bench": "bench catalog compare config data engines.checkpoint errors experiment folders machine nets report",
    "typed": "errors",
    "ending": "errors",
    "manual": "catalog config data objectives",
    "bench_cli": ANYTHING,
    "hub_cli": ANYTHING,
    "site_cli": ANYTHING,
    "cli": ANYTHING,
    "__init__": ANYTHING,
    "__main__": ANYTHING,
}

# package: (the part of tacit the rule is about, the one place in it where the package may be imported)
FOREIGN = {
    "flwr": ("", "engines.flower"),
    "tensorboard": ("", "trackers"),
    "mlflow": ("", "trackers"),
    "torch": ("report", None),  # reports read run directories, on machines that never trained
}

# Loading one of these formats runs whatever code the file brings along.
UNSAFE = (
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "torch.load",
    "torch.serialization",
)

EMPTY_NAMES = {"utils", "core", "base", "common", "helpers"}


def modules() -> dict[str, str]:
    """Source by dotted name below tacit: `engines.loop`; a folder's `__init__` has the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports(source: str) -> Iterator[str]:
    """Every name a source imports, also inside functions: `from a.b import c` is a.b.c, `from . import c` is ..c."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (f"{'.' * level}{module or ''}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def within(name: str, place: str) -> bool:
    """Whether a dotted name is a place or lies in it; everything lies in the place without a name."""
    return place in ("", name) or name.startswith(f"{place}.")


def wrong_directions(module: str, source: str) -> list[str]:
    """Imports inside tacit that the table does not allow."""
    room = module.partition(".")[0]
    if room not in MAY_IMPORT:
        return [f"the room {room} is not in the table of this test"]
    if MAY_IMPORT[room] == ANYTHING:
        return []
    wrong = []
    for name in imports(source):
        inside = name.removeprefix("tacit").removeprefix(".")
        if name.startswith("."):
            wrong.append(f"{module} has a relative import")
        elif within(name, "tacit") and not any(within(inside, place) for place in MAY_IMPORT[room].split()):
            wrong.append(f"{module} imports {name}")
    return wrong


def misplaced_packages(module: str, source: str) -> list[str]:
    """Imports of other people's packages where they do not belong."""
    return [
        f"{module} imports {name}"
        for name in imports(source)
        for package, (part, place) in FOREIGN.items()
        if within(name, package) and within(module, part) and module != place
    ]


def unsafe_loading(module: str, source: str) -> list[str]:
    """Uses of formats that run code when they are loaded."""
    wrong = [f"{module} imports {name}" for name in imports(source) if any(within(name, bad) for bad in UNSAFE)]
    nodes = list(ast.walk(ast.parse(source)))
    torches = {
        a.asname or a.name for node in nodes if isinstance(node, ast.Import) for a in node.names if a.name == "torch"
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="load") if name in torches:
                wrong.append(f"{module} uses torch.load")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                wrong.append(f"{module} allows pickle")
    return wrong


def empty_names(paths: list[Path]) -> list[str]:
    """Files and folders whose name does not say what is in them."""
    return [str(path) for path in paths if EMPTY_NAMES & {part.removesuffix(".py") for part in path.parts}]


def missing_companions(root: Path) -> list[str]:
    """Tests and pages that methods lack."""
    names = [path.stem for path in sorted((root / "src/tacit/methods").glob("*.py")) if path.stem != "__init__"]
    wanted = [f"tests/methods/test_{name}.py" for name in names]
    wanted += [f"docs/methods/{name.replace('_', '-')}.md" for name in names]
    return [path for path in wanted if not (root / path).is_file()]


def ruff_checks(pyproject: str, rule: str) -> bool:
    """Whether ruff's selection has a rule and nothing takes it away again."""
    lint = tomllib.loads(pyproject)["tool"]["ruff"]["lint"]
    ignored = [code for codes in (lint.get("ignore", []), *lint.get("per-file-ignores", {}).values()) for code in codes]
    return rule in lint["select"] and not any(code.startswith(rule) for code in ignored)


def test_rooms_import_in_the_directions_of_the_table() -> None:
    assert [line for module, source in modules().items() for line in wrong_directions(module, source)] == []


def test_packages_are_imported_where_they_belong() -> None:
    assert [line for module, source in modules().items() for line in misplaced_packages(module, source)] == []


def test_nothing_is_loaded_that_could_run_code() -> None:
    assert [line for module, source in modules().items() for line in unsafe_loading(module, source)] == []


def test_every_name_says_what_is_inside() -> None:
    folders = [PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"]
    assert empty_names([path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py")]) == []


def test_every_method_has_a_test_and_a_page() -> None:
    assert missing_companions(ROOT) == []


def test_ruff_looks_for_commented_out_code() -> None:
    assert ruff_checks((ROOT / "pyproject.toml").read_text(encoding="utf-8"), "ERA")


def test_the_table_has_no_circle() -> None:
    rooms = {room: set(MAY_IMPORT[room].split()) - {room, ANYTHING} for room in MAY_IMPORT}
    order = list(
        TopologicalSorter({room: {p.split(".")[0] for p in places} for room, places in rooms.items()}).static_order()
    )
    assert set(order) == set(MAY_IMPORT)


def unnamed_rooms(page: str) -> list[str]:
    """Rooms and modules of rooms that a page about them says nothing of; those of other rooms speak for themselves."""
    rooms = [name for name in MAY_IMPORT if not name.startswith("__")]
    modules = [path.stem for room in ("engines", "deploy", "report", "bench") for path in (PACKAGE / room).glob("*.py")]
    known = set(re.findall(r"`(\w+)/?`", page))
    return sorted(name for name in (*rooms, *modules) if name not in known and name != "__init__")


def test_the_page_about_rooms_names_all_of_them() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert unnamed_rooms(page) == []
    assert unnamed_rooms(page.replace("`simulation`", "").replace("`units`", "")) == ["simulation", "units"]


def test_the_package_is_found() -> None:
    assert {"params", "random", "method", "methods"} <= modules().keys()


# Each rule, shown able to fail.


@pytest.mark.parametrize(
    "module, source",
    [
        ("methods.moon", "from tacit.methods.fedavg import FedAvg"),
        ("methods.moon", "from tacit.engines import loop"),
        ("methods.moon", "import tacit.data.augment"),
        ("methods.moon", "from tacit import FedAvg"),
        ("methods.moon", "import tacit"),
        ("methods.moon", "from . import fedavg"),
        ("methods.moon", "from .fedavg import FedAvg"),
        ("methods.moon", "def start():\n    from tacit.engines.loop import run"),
        ("methods.moon", "import importlib\nimportlib.import_module('tacit.experiment')"),
        ("engines.loop", "from tacit.methods.fedavg import FedAvg"),
        ("engines.local", "from tacit.data import sources"),
        ("engines.local", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tacit.catalog"),
        ("config", "from tacit.engines.loop import run"),
        ("config", "from tacit.engines import local"),
        ("experiment", "from tacit.report import tables"),
        ("report.tables", "from tacit.experiment import run"),
        ("report", "from tacit.learn import evaluate"),
        ("report.page", "from tacit.bench import tables"),
        ("trackers", "from tacit.methods import fedavg"),
        ("trackers", "from tacit.engines import local"),
        ("params", "from tacit.errors import TacitError"),
        ("method", "from tacit.methods import fedavg"),
        ("nets", "from tacit.federation import Samples"),
        ("plugins.loader", ""),
    ],
)
def test_a_wrong_direction_is_seen(module: str, source: str) -> None:
    assert len(wrong_directions(module, source)) == 1


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "methods.moon",
            "import torch\nimport random\nfrom tacit.method import Needs\nfrom tacit.random import Streams",
        ),
        ("methods.moon", "import tacit_extras.methods"),
        ("data.scenario", "from tacit.data.partition import dirichlet\nfrom tacit import federation"),
        ("engines.flower", "from tacit.engines import wire"),
        ("config", "from tacit.engines.faults import Faults\nfrom tacit.engines import faults"),
        ("report", "from tacit.report.read import rounds"),
        ("cli", "from tacit import anything"),
    ],
)
def test_a_right_direction_is_let_through(module: str, source: str) -> None:
    assert wrong_directions(module, source) == []


@pytest.mark.parametrize(
    "module, source, wrong",
    [
        ("engines.local", "import flwr", 1),
        ("cli", "def serve():\n    from flwr.app import Context", 1),
        ("engines.flower", "from flwr.app import Context", 0),
        ("experiment", "def play():\n    import mlflow", 1),
        ("trackers", "from tensorboard.summary.writer.record_writer import RecordWriter", 0),
        ("report.plots", "from torch import Tensor", 1),
        ("learn", "import torch\nimport flwr_datasets", 0),
    ],
)
def test_a_misplaced_package_is_seen(module: str, source: str, wrong: int) -> None:
    assert len(misplaced_packages(module, source)) == wrong


@pytest.mark.parametrize(
    "source, wrong",
    [
        ("import pickle", 1),
        ("from pickle import loads", 1),
        ("def f():\n    import marshal as m", 1),
        ("import torch\nstate = torch.load('model.pt')", 1),
        ("import torch as t\nload = t.load", 1),
        ("from torch import load", 1),
        ("import numpy as np\nnp.load('x.npz', allow_pickle=True)", 1),
        ("import numpy as np\nnp.load('x.npz', allow_pickle=False)", 0),
        ("import json\nimport torch\njson.load(torch)", 0),
    ],
)
def test_unsafe_loading_is_seen(source: str, wrong: int) -> None:
    assert len(unsafe_loading("engines.wire", source)) == wrong


def test_an_empty_name_is_seen() -> None:
    paths = [Path("src/tacit/utils.py"), Path("tests/helpers/__init__.py"), Path("src/tacit/data/database.py")]
    assert empty_names(paths) == ["src/tacit/utils.py", "tests/helpers/__init__.py"]


def test_a_method_without_test_or_page_is_seen(tmp_path: Path) -> None:
    for name in (
        "src/tacit/methods/__init__.py",
        "src/tacit/methods/local_only.py",
        "tests/methods/test_local_only.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert missing_companions(tmp_path) == ["docs/methods/local-only.md"]
    (tmp_path / "tests/methods/test_local_only.py").unlink()
    assert missing_companions(tmp_path) == ["tests/methods/test_local_only.py", "docs/methods/local-only.md"]


@pytest.mark.parametrize(
    "lint, checked",
    [
        ("select = ['E', 'ERA']", True),
        ("select = ['E']", False),
        ("select = ['ERA']\nignore = ['ERA001']", False),
        ("select = ['ERA']\nper-file-ignores = {'tests/**' = ['D', 'ERA']}", False),
    ],
)
def test_a_ruff_rule_that_is_off_is_seen(lint: str, checked: bool) -> None:
    assert ruff_checks(f"[tool.ruff.lint]\n{lint}", "ERA") is checked
