"""The site: it builds without a warning, needs no network, and finds by itself what is in the code and in docs/."""

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

from tacit import catalog

pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install -e '.[docs]'")
site_pages = import_module("scripts.site_pages")  # imports mkdocs, so not before

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?P<target>[^)\s#]+)[^)]*\)")
# What a browser fetches by itself when it opens a page; a link that a reader may follow is not among it.
FETCHED = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr  # not with --quiet, which hides warnings from --strict too
    return folder


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_page_is_built(site: Path) -> None:
    written = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    made = [Path(name).with_suffix(".html") for name in site_pages.PAGES]
    for page in (*written, *made):
        assert (site / page.with_stem("index" if page.stem == "README" else page.stem)).is_file()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert [page.name for page in pages if FETCHED.search(text(page))] == []
    assert [page.name for page in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", text(page))] == []
    assert len(pages) > len(catalog.methods())


def test_the_start_page_has_the_output_that_the_readme_shows(site: Path) -> None:
    assert "report: runs/demo/report.html" in text(site / "index.html")


def test_a_bar_in_the_code_of_a_table_is_a_bar(site: Path) -> None:
    assert "<code>up.target | up.online</code>" in text(site / "methods/fedsiam.html")


def test_the_python_reference_is_made_from_the_source(site: Path) -> None:
    page = text(site / "reference/python.html")
    for name in ("tacit.run", "tacit.experiment.Result.net", "tacit.method.Method.client_update", "tacit.params.mean"):
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
    assert listed.keys() == catalog.methods().keys()
    assert all((ROOT / "docs/methods" / page).is_file() for page in listed.values())


def test_needs_are_those_of_the_method_and_of_an_objective_that_learns_from_labels_only() -> None:
    assert site_pages.needs("fedseal").startswith("the server holds labels; the server holds a validation set")
    assert site_pages.needs("fedavg") == "labels are anywhere; with `+supervised` also: some client holds labels"


def test_the_page_on_choosing_has_them_in_its_text_too(site: Path) -> None:
    page = text(site_pages.CHOOSING)
    assert page.count("| [`") == len(catalog.methods())
    assert page == site_pages.with_needs(page), "run make tables"
    assert "<td>the server holds labels; the server holds a validation set" in text(site / "choosing.html")


def test_every_command_and_option_is_in_the_reference() -> None:
    page = site_pages.commands_page()
    for heading in ("tacit run", "tacit resume", "tacit bench run", "tacit bench docs"):
        assert f"\n## {heading}\n" in page
    assert "tacit run [OPTIONS] [CONFIG]" in page
    assert "tacit compare [OPTIONS] CONFIG" in page
    assert "tacit report [OPTIONS] FOLDERS…" in page
    assert "| `--set NAME=VALUE` |  | Any setting, e.g. method.mu=0.1 |" in page
    assert "| `--quiet`, `-q` |  | Only the last line. |" in page
    assert "| must be given |" in page


@dataclass(frozen=True)
class Some:
    """Settings of every kind."""

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
    assert "| `rounds` | whole number ≥ 1 | `30` | of communication |" in page
    assert "| `method.mu` |" in page


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_front_pages_lead_somewhere(page: str) -> None:
    targets = [found["target"] for found in LINK.finditer(text(ROOT / page)) if "://" not in found["target"]]
    assert [target for target in targets if not (ROOT / target).exists()] == []
