"""The apps that Flower runs: the same for every hub, and recognised by every site."""

from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import apps
from tests.refusals import refused

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of libraries below Flower


def bundle(folder: Path) -> bytes:
    """A bundle as Flower makes it."""
    from flwr.cli.build import build_fab_from_disk

    made: bytes = build_fab_from_disk(folder)
    return made


def test_a_site_recognises_the_apps(tmp_path: Path) -> None:
    apps.refuse_foreign(bundle(apps.write(tmp_path / "app")))


@pytest.mark.parametrize(
    "file, text",
    [
        ("tacit_app/client.py", "import os\n"),
        ("tacit_app/server.py", ""),
        ("tacit_app/more.py", "x = 1\n"),
        ("pyproject.toml", apps.FILES["pyproject.toml"].replace("tacit_app.client", "evil.client")),
        ("pyproject.toml", apps.FILES["pyproject.toml"].replace("dependencies = []", 'dependencies = ["evil"]')),
    ],
)
def test_any_other_app_is_refused(file: str, text: str, tmp_path: Path) -> None:
    folder = apps.write(tmp_path / "app")
    (folder / file).write_text(text)
    with refused("site.foreign-app"):
        apps.refuse_foreign(bundle(folder))


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    good, huge = bundle(apps.write(tmp_path / "app")), BytesIO()
    with ZipFile(huge, "w", ZIP_DEFLATED) as archive:
        for name in (*apps.FILES, apps.LISTING):
            archive.writestr(name, b"0" * 2**24)
    twice = BytesIO(good)
    with ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("tacit_app/client.py", "import os\n")
    for made in (b"", b"PK", good[:-30], good[:100] + b"\xff" * 50 + good[150:], huge.getvalue(), twice.getvalue()):
        with refused("site.foreign-app"):
            apps.refuse_foreign(made)


def test_a_path_with_quotes_cannot_be_given_to_flower(tmp_path: Path) -> None:
    assert apps.run_settings(hub=Path("/a b"), run=Path("/c")) == 'hub="/a b" run="/c"'
    with refused("hub.bad-path"):
        apps.run_settings(hub=tmp_path / 'a "hub"')
