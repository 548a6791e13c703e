"""The documentation site builds without warnings, needs no network, and is generated from the code and docs/."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from tacit.cli.option_table import TABLE
from tacit.method import Needs
from tacit.runs import registry
from tacit.runs.settings import settings as fields_of

pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install -e '.[docs]'")
site_pages = import_module("scripts.site_pages")  # after the check, since it imports mkdocs

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?P<target>[^)\s#]+)[^)]*\)")
# What a browser loads when it opens a page; links are not among it.
FETCHED = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr  # without --quiet, which would hide warnings from --strict
    return folder


def test_every_test_that_the_page_on_attacks_names_exists() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    files = list((ROOT / "tests").rglob("test_*.py"))
    everything = "".join(path.read_text(encoding="utf-8") for path in files)
    named = re.findall(r"`(?:tests/deploy/)?(test_[a-z0-9_]+)(\.py|…)?`", page)
    assert len(named) > 20
    for name, end in named:
        found = f"def {name}{'' if end == '…' else '('}" in everything
        assert found if end != ".py" else any(path.stem == name for path in files), name


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_page_is_built(site: Path) -> None:
    written = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    made = [Path(name).with_suffix(".html") for name in site_pages.PAGES]
    for page in (*written, *made):
        assert (site / page.with_stem("index" if page.stem == "README" else page.stem)).is_file()


def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert [page.name for page in pages if FETCHED.search(text(page))] == []
    assert [page.name for page in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", text(page))] == []
    assert len(pages) > len(registry.methods())


def test_the_start_page_has_the_output_that_the_readme_shows(site: Path) -> None:
    assert "report: runs/demo/report.html" in text(site / "index.html")


def test_a_pipe_in_the_code_of_a_table_has_no_backslash(site: Path) -> None:
    assert "<code>up.target | up.online</code>" in text(site / "methods/fedsiam.html")


def test_the_python_reference_is_generated_from_the_source(site: Path) -> None:
    page = text(site / "reference/python.html")
    for name in (
        "tacit.run",
        "tacit.api.Result.net",
        "tacit.api.Result.predict",
        "tacit.method.Method.client_update",
        "tacit.params.mean",
    ):
        assert f'id="{name}"' in page


def test_a_new_page_in_a_folder_is_in_the_menu(tmp_path: Path) -> None:
    for name in ("methods/zeta.md", "methods/alpha.md", "methods/picture.png", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    menu = site_pages.expanded({"Methods": "methods/"}, tmp_path, [Path("methods/index.md"), Path("reference/x.md")])
    assert menu == {"Methods": ["methods/index.md", "methods/alpha.md", "methods/zeta.md"]}
    assert site_pages.expanded({"Data": "data.md"}, tmp_path) == {"Data": "data.md"}


def test_every_method_is_listed_and_linked_to_a_page() -> None:
    listed = dict(re.findall(r"^\| \[`(\S+)`\]\((\S+)\)", site_pages.methods_page(), re.MULTILINE))
    assert listed.keys() == registry.methods().keys()
    assert all((ROOT / "docs/methods" / page).is_file() for page in listed.values())


def test_needs_include_those_of_an_objective_that_learns_only_from_labels() -> None:
    comments = {item.name: item.comment for item in fields_of(Needs)}
    needed = site_pages.needs("fedseal")
    assert needed.startswith("; ".join(comments[name] for name in ("server_labels", "validation")))
    assert site_pages.needs("fedavg") == f"labels anywhere; with `+supervised` also: {comments['client_labels']}"


def test_the_page_on_choosing_lists_the_needs_of_every_method(site: Path) -> None:
    page = text(site_pages.CHOOSING)
    assert page.count("| [`") == len(registry.methods())
    assert page == site_pages.with_needs(page), "run make tables"
    assert f"<td>{site_pages.needs('fedseal')}</td>" in text(site / "choosing.html")


def test_every_command_and_option_is_in_the_reference() -> None:
    page = site_pages.commands_page()
    for heading in ("tacit run", "tacit resume", "tacit bench run", "tacit bench docs"):
        assert f"\n## {heading}\n" in page
    assert "tacit run [OPTIONS] [CONFIG]" in page
    assert "tacit compare [OPTIONS] CONFIG" in page
    assert "tacit report [OPTIONS] FOLDERS…" in page
    assert "| `--set NAME=VALUE` |  | Any setting, such as method.mu=0.1; can be repeated. |" in page
    assert "| `--quiet`, `-q` |  | Print only the last line. |" in page
    for option in TABLE.values():
        assert option.help.replace("|", "\\|") in page
    assert "| required |" in page


@dataclass(frozen=True)
class Some:
    """Settings of every type."""

    rate: Annotated[float, Field(gt=0, le=1)] = 0.5  # a share
    steps: Annotated[int, Field(ge=1)] | None = None  # as many as there are
    mode: Literal["a", "b"] = "a"  # this | that
    on: bool = False


def test_settings_are_shown_with_their_values_defaults_and_comments() -> None:
    assert site_pages.settings_table(Some, "some.", hidden=["on"]).splitlines()[2:] == [
        "| `some.rate` | number > 0, ≤ 1 | `0.5` | a share |",
        "| `some.steps` | whole number ≥ 1 |  | as many as there are |",
        "| `some.mode` | `a`, `b` | `a` | this \\| that |",
    ]
    assert "| `some.on` | true or false | `false` |  |" in site_pages.settings_table(Some, "some.")


def test_the_settings_page_has_every_section_method_and_objective() -> None:
    page = site_pages.settings_page()
    for heading in ("## [data]", "## [train]", "## [server]", "### fedmatch", "### freematch"):
        assert f"\n{heading}\n" in page
    assert "| `rounds` | whole number ≥ 1 | `30` | rounds of communication |" in page
    assert "| `method.mu` |" in page


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_in_the_front_pages_are_not_broken(page: str) -> None:
    targets = [found["target"] for found in LINK.finditer(text(ROOT / page)) if "://" not in found["target"]]
    assert [target for target in targets if not (ROOT / target).exists()] == []
