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

from tacit.runs.directory import layout

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tacit"

ANYTHING = "*"

# A room is a module or a folder directly in src/tacit. It may import the rooms on its right and nothing else of
# tacit; a folder that lists itself may import its own modules. A new room is added here on purpose.
MAY_IMPORT = {
    "__version__": "",  # of the package itself
    "errors": "",
    "random": "",
    "params": "",
    "federation": "",
    "losses": "",
    "process": "",
    "formatting": "",
    "per_client": "",
    "discovery": "",
    "storage": "errors",
    "user_code": "errors",
    "metrics": "metrics",
    "nets": "discovery errors federation nets params random user_code",
    "method": "federation nets params random",
    "updates": "nets params",
    "protect": "errors method nets params protect random",
    "learn": "errors federation learn method nets params protect random",
    "objectives": "discovery errors federation learn losses method nets objectives params random",
    "aggregation": "aggregation errors federation learn method nets params updates",
    "methods": "aggregation errors federation learn losses method nets objectives params per_client random updates",
    "data": "data discovery errors federation process random storage",
    "engines": "engines errors federation formatting learn method metrics nets params per_client process protect "
    "random storage updates",
    "inference": "data errors federation formatting inference learn metrics nets params process random storage",
    "runs": "__version__ data discovery engines errors federation formatting inference learn method methods metrics "
    "nets objectives params process protect random runs storage updates user_code",
    "report": "engines.record errors formatting metrics report runs.directory storage",
    "dashboard": "dashboard engines.events engines.record errors formatting runs.directory runs.followers.progress",
    "bench": "__version__ bench data engines.record errors formatting nets process report runs storage",
    "deploy": "__version__ data deploy engines errors federation formatting learn method metrics nets params process "
    "protect random runs storage updates user_code",
    "cli": "__version__ bench cli dashboard data deploy engines errors formatting inference method metrics objectives "
    "random report runs storage",
    "api": ANYTHING,
    "__init__": ANYTHING,
    "__main__": ANYTHING,
}

# package: (the part of tacit the rule is about, the one module or folder in it where the package may be imported)
FOREIGN = {
    "flwr": ("", "engines.flower"),
    "tensorboard": ("", "runs.followers.trackers"),
    "mlflow": ("", "runs.followers.trackers"),
    "optuna": ("", "runs.tune"),
    "uvicorn": ("", "dashboard.server"),
    "transformers": ("", "nets.hugging_face"),
    "pydicom": ("", "data.sources.dicom"),
    "dp_accounting": ("", "protect"),
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
# The exceptions: CIFAR's original files are pickles, and the module refuses all names but three of numpy; files of
# weights are read by torch with weights_only, which builds tensors and plain containers only.
MAY_LOAD = {"data.sources.pickled": ("pickle",), "nets.weights": ("pickle", "torch.load")}

CODED = {"TacitError", "DiskError", "LockedError"}  # constructors that take `code=`
ODD = re.compile(
    r"\bcan not\b|\bmend\w*|\banew\b|\blikewise\b|\bwhoever\b|\bone's own\b|\bso many\b|\bcouriers?\b|\bparcels?\b"
    r"|\btold\b|\bnobody\b|\bheard\b|\bhears?\b|\bgoes on\b|\bis said\b",
    re.IGNORECASE,
)

RUN_FILES = {name for name in vars(layout).values() if isinstance(name, str) and Path(name).suffix}
# Defaults that a user reads in a signature; a file of weights; a file of Flower's.
MAY_NAME = {
    "__init__": ("report.html",),
    "api.results": ("report.html",),
    "nets.weights": ("model.safetensors",),
    "deploy.hub_directory": ("config.toml",),
}

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
        if within(name, package) and within(module, part) and not (place and within(module, place))
    ]


def unsafe_loading(module: str, source: str) -> list[str]:
    """Uses of formats that run code when they are loaded."""
    unsafe = [name for name in UNSAFE if name not in MAY_LOAD.get(module, ())]
    wrong = [f"{module} imports {name}" for name in imports(source) if any(within(name, bad) for bad in unsafe)]
    nodes = list(ast.walk(ast.parse(source)))
    torches = {
        a.asname or a.name for node in nodes if isinstance(node, ast.Import) for a in node.names if a.name == "torch"
    }
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="load") if name in torches:
                wrong += [] if "torch.load" in MAY_LOAD.get(module, ()) else [f"{module} uses torch.load"]
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


DESCRIBED = "protect aggregation engines inference runs deploy report dashboard bench cli"  # module by module


def unnamed_rooms(page: str) -> list[str]:
    """Rooms and modules of rooms that a page about them says nothing of; those of other rooms speak for themselves."""
    rooms = [name for name in MAY_IMPORT if not name.startswith("__")]
    modules = [
        path.stem
        for room in DESCRIBED.split()
        for path in (PACKAGE / room).glob("**/*.py" if room == "runs" else "*.py")
    ]
    known = set(re.findall(r"`(\w+)/?`", page))
    return sorted(name for name in (*rooms, *modules) if name not in known and name != "__init__")


def test_the_page_about_rooms_names_all_of_them() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert unnamed_rooms(page) == []
    assert unnamed_rooms(page.replace("`simulation`", "").replace("`curves`", "")) == ["curves", "simulation"]


def errors_without_code(source: str) -> list[int]:
    """Lines that make a TacitError, or a subclass of it, without a literal code of the form `room.reason`."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CODED:
            codes = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            literals = [part.value for code in codes for part in ast.walk(code) if isinstance(part, ast.Constant)]
            named = [
                text for text in literals if isinstance(text, str) and re.fullmatch(r"[a-z-]+(\.[a-z0-9-]+)+", text)
            ]
            if not named and not (codes and isinstance(codes[0], ast.Attribute | ast.Name)):
                wrong.append(node.lineno)
    return wrong


def test_every_error_has_a_code() -> None:
    found = {name: lines for name, source in modules().items() if (lines := errors_without_code(source))}
    assert {name: lines for name, lines in found.items() if name != "errors"} == {}


def odd_words(source: str) -> list[str]:
    """Words and phrases of our own making that the field does not use; see the list."""
    return [match[0] for match in ODD.finditer(source)]


def test_the_source_is_in_plain_english() -> None:
    assert {name: words for name, source in modules().items() if (words := odd_words(source))} == {}


def named_files(module: str, source: str) -> list[str]:
    """Files of a run's folder that a module outside runs/directory calls by name."""
    if within(module, "runs.directory"):
        return []
    constants = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return sorted({name for name in RUN_FILES if name in constants} - set(MAY_NAME.get(module, ())))


def test_only_the_run_directory_names_its_files() -> None:
    assert {name: files for name, source in modules().items() if (files := named_files(name, source))} == {}


def test_the_package_is_found() -> None:
    assert {"params", "random", "method", "methods"} <= modules().keys()


# Each rule, shown able to fail.


@pytest.mark.parametrize(
    "module, source",
    [
        ("methods.moon", "from tacit.methods.fedavg import FedAvg"),
        ("methods.moon", "from tacit.engines import rounds"),
        ("methods.moon", "import tacit.data.views.augment"),
        ("methods.moon", "from tacit import FedAvg"),
        ("methods.moon", "import tacit"),
        ("methods.moon", "from . import fedavg"),
        ("methods.moon", "from .fedavg import FedAvg"),
        ("methods.moon", "def start():\n    from tacit.engines.rounds import run"),
        ("methods.moon", "import importlib\nimportlib.import_module('tacit.runs.experiment')"),
        ("engines.rounds", "from tacit.methods.fedavg import FedAvg"),
        ("engines.workers", "from tacit.data import sources"),
        ("engines.workers", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tacit.runs.registry"),
        ("data.split.config", "from tacit.engines.rounds import run"),
        ("runs.config", "from tacit.report import history"),
        ("runs.experiment", "from tacit.report import tables"),
        ("report.tables", "from tacit.runs.experiment import run"),
        ("report", "from tacit.learn import evaluate"),
        ("report.page", "from tacit.bench import tables"),
        ("dashboard.board", "from tacit.runs.experiment import Experiment"),
        ("dashboard.board", "from tacit.deploy import hub_watch"),
        ("runs.followers.trackers", "from tacit.bench import plan"),
        ("runs.followers.trackers", "from tacit.cli import app"),
        ("params", "from tacit.errors import TacitError"),
        ("method", "from tacit.methods import fedavg"),
        ("nets", "from tacit.method import Training"),
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
        ("data.split.split", "from tacit.data.split.partition import dirichlet\nfrom tacit import federation"),
        ("engines.flower.grid", "from tacit.engines import wire"),
        ("runs.config", "from tacit.engines.faults import Faults\nfrom tacit.engines import faults"),
        ("report", "from tacit.report.history import rounds"),
        ("cli.app", "from tacit.runs import config\nfrom tacit.report import page"),
    ],
)
def test_a_right_direction_is_let_through(module: str, source: str) -> None:
    assert wrong_directions(module, source) == []


@pytest.mark.parametrize(
    "module, source, wrong",
    [
        ("engines.workers", "import flwr", 1),
        ("cli", "def serve():\n    from flwr.app import Context", 1),
        ("engines.flower.grid", "from flwr.app import Context", 0),
        ("engines.flower.transport", "from flwr.app import Context", 0),
        ("engines.flower_cli", "from flwr.app import Context", 1),
        ("runs.experiment", "def play():\n    import mlflow", 1),
        ("runs.followers.trackers", "from tensorboard.summary.writer.record_writer import RecordWriter", 0),
        ("report.plots", "from torch import Tensor", 1),
        ("cli.watch", "import uvicorn", 1),
        ("dashboard.server", "import uvicorn", 0),
        ("learn", "import torch\nimport flwr_datasets", 0),
    ],
)
def test_a_misplaced_package_is_seen(module: str, source: str, wrong: int) -> None:
    assert len(misplaced_packages(module, source)) == wrong


@pytest.mark.parametrize(
    "source, wrong",
    [
        ("raise TacitError('a', 'b', code='data.too-few')", 0),
        ("raise TacitError('a', 'b')", 1),
        ("raise TacitError('a', 'b', code='oops')", 1),
        ("raise TacitError('a', code='x.y' if full else 'x.z')", 0),
    ],
)
def test_an_error_without_a_code_is_seen(source: str, wrong: int) -> None:
    assert len(errors_without_code(source)) == wrong


@pytest.mark.parametrize(
    "module, source, wrong",
    [
        ("dashboard.details", "text = (folder / 'config.toml').read_text()", ["config.toml"]),
        ("runs.directory.layout", "CONFIG = 'config.toml'", []),
        ("dashboard.details", "'config.toml is the config'", []),
        ("__init__", "def report(out='report.html'): read('run.json')", ["run.json"]),
    ],
)
def test_a_file_of_a_run_called_by_name_is_seen(module: str, source: str, wrong: list[str]) -> None:
    assert named_files(module, source) == wrong


def test_an_odd_word_is_seen() -> None:
    assert odd_words("# it can not be amended, so mend it anew") == ["can not", "mend", "anew"]


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


def test_only_the_reader_of_cifar_may_use_pickle() -> None:
    assert unsafe_loading("data.sources.pickled", "import pickle") == []
    assert len(unsafe_loading("data.sources.pickled", "import marshal")) == 1
    assert len(unsafe_loading("data.sources.formats", "import pickle")) == 1


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
