"""The tables of equations and code in the pages of methods and objectives: what they name is there."""

import ast
import keyword
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import getsourcefile
from pathlib import Path

import pytest

from tacit.objectives import OBJECTIVES
from tacit.runs import registry
from tacit.runs.config import Config
from tacit.runs.settings import settings as fields_of

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/tacit"
PAGES = {
    f"{kind}/{page.stem}": page
    for kind in ("methods", "objectives")
    for page in sorted((ROOT / "docs" / kind).glob("*.md"))
    if page.stem != "README"
}
SECTIONS = {item.name: item.type for item in fields(Config) if isinstance(item.type, type)}
NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.\w+)*")
STRING = re.compile(r'"[^"]*"|= ?\w+')  # values of settings and arguments


def spans(page: Path) -> Iterator[str]:
    """What stands in backticks in the last column of the tables that are headed `code`."""
    within = False
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        within = bool(cells) and (within or cells[-1].strip() == "code")
        yield from re.findall(r"`([^`]+)`", cells[-1]) if within else ()


def subject(page: Path) -> Path:
    """The file a page is about."""
    if page.parent.name == "methods":
        return SOURCE / "methods" / f"{page.stem.replace('-', '_')}.py"
    return Path(str(getsourcefile(OBJECTIVES[page.stem])))


@cache
def names(path: Path) -> frozenset[str]:
    """Every name in a file: what it defines, imports and uses, and the strings that are names of streams."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case (
                ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name) | ast.keyword(arg=str(name))
            ):
                found.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
    return frozenset(found)


@cache
def used(path: Path) -> frozenset[str]:
    """The names, but private ones, in the files that this one imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tacit."):
            place = SOURCE.parent.joinpath(*node.module.split("."))
            files = place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
            found |= {name for file in files for name in names(file) if not name.startswith("_")}
    return frozenset(found)


@cache
def members() -> dict[str, set[str]]:
    """Every module and class of the package with what is defined in it."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.setdefault(path.stem, set()).update(defined(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(defined(node))
        found.setdefault(path.parent.name, set()).add(path.stem)
    return found


def defined(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The functions, classes and values at the top of a module or class."""
    for item in node.body:
        match item:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def missing(span: str, page: Path) -> list[str]:
    """The names in a span of code that are nowhere; options of the command line are not checked."""
    if span.endswith(".py"):
        return [] if (SOURCE / span).is_file() else [span]
    if span.startswith("--"):
        return []
    if re.fullmatch(r"[\w-]+(\+[\w-]+)?", span) and span.partition("+")[0] in registry.methods():
        registry.method_kinds(span)  # which refuses what is not there
        return []
    return [name for name in NAME.findall(STRING.sub("", span)) if not there(name, page)]


def there(name: str, page: Path) -> bool:
    """Whether a name, dotted or not, is one of a setting, of a module or class, or of the page's own file."""
    path = subject(page)
    first, *rest = name.split(".")
    if first in SECTIONS and len(rest) == 1 and is_setting(first, rest[0], page):
        return True
    if all(part in names(path) for part in (first, *rest)) or keyword.iskeyword(name):
        return True
    if len(rest) == 1 and first in members():
        return rest[0] in members()[first]
    return all(part in names(path) | used(path) for part in (first, *rest))


def is_setting(section: str, name: str, page: Path) -> bool:
    """Whether a section has this setting; in those of methods and objectives, the page's own has."""
    if page.parent.name == "objectives" and section == "objective":
        return name in {item.name for item in fields_of(OBJECTIVES[page.stem])}
    kind = SECTIONS[section]
    return is_dataclass(kind) and name in {item.name for item in fields(kind)}


@pytest.mark.parametrize("page", PAGES)
def test_every_name_in_the_table_is_there(page: str) -> None:
    found = list(spans(PAGES[page]))
    assert found, "a page has a table with the heads `paper` and `code`, or the like"
    assert {span: wrong for span in found if (wrong := missing(span, PAGES[page]))} == {}


@pytest.mark.parametrize(
    "span, wrong",
    [
        ("agreement", []),
        ("_agreement", ["_agreement"]),
        ("_Siamese._follow", []),
        ("_Siamese.follow_up", ["_Siamese.follow_up"]),
        ("params.mean", []),
        ("params.median", ["params.median"]),
        ("consistency(…, nobody)", ["nobody"]),
        ("methods/fedsiam.py", []),
        ("methods/fedsam.py", ["methods/fedsam.py"]),
        ("train.steps", []),
        ("train.stepz", ["train.stepz"]),
    ],
)
def test_a_name_that_is_nowhere_is_found(span: str, wrong: list[str]) -> None:
    assert missing(span, PAGES["methods/fedsiam"]) == wrong
