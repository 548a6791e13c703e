"""The two apps that Flower runs, the folder it takes them from, and how a site recognises them."""

import tomllib
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from tacit import __version__
from tacit.deploy.site_errors import ShareableError
from tacit.errors import TacitError
from tacit.storage import write_durably

PROJECT = "pyproject.toml"
LISTING = ".info/CONTENT"  # Flower adds it to a bundle
LONGEST = 64 * 1024  # bytes of one file in a bundle; all of ours are shorter

FILES = {
    PROJECT: """\
[project]
name = "tacit-app"
version = "1.0.0"
description = "Tacit on Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "tacit_app.server:app"
clientapp = "tacit_app.client:app"

[tool.flwr.app.config]
hub = ""  # the hub's folder
run = ""  # the run's folder: a new one, or one to continue
config = ""  # the settings of a new run, a TOML file
""",
    "tacit_app/__init__.py": '"""Tacit on Flower."""\n',
    "tacit_app/server.py": '"""The app of the hub."""\n\nfrom tacit.deploy import apps\n\napp = apps.server()\n',
    "tacit_app/client.py": '"""The app of every site."""\n\nfrom tacit.deploy import apps\n\napp = apps.client()\n',
}


def server() -> Any:
    """The app of the hub."""
    from tacit.deploy.hub import main
    from tacit.engines.flower import server_app

    return server_app(main)


def client() -> Any:
    """The app of a site."""
    from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
    from tacit.engines.flower import client_app

    return client_app(open_workspace, introduce, SiteSafeguards())


def write(folder: Path) -> Path:
    """Write the apps, so that `flwr run FOLDER` starts a run. They are the same for every hub."""
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_durably(folder / name, content.encode())
    return folder


def run_settings(**paths: Path) -> str:
    """The settings of a run as Flower's programs take them, such as the hub's folder."""
    for text in map(str, paths.values()):
        if '"' in text or "\\" in text or "\n" in text:
            raise TacitError(
                f"Flower's settings cannot hold the path {text}",
                'move the hub to a folder without ", \\ and line breaks in its path',
                code="hub.bad-path",
            )
    return " ".join(f'{name}="{path}"' for name, path in paths.items())


def refuse_foreign(bundle: bytes) -> None:
    """Refuse a bundle of Flower's that holds anything but the apps above."""
    if not _is_ours(bundle):
        raise ShareableError(
            "the hub sent a program, and this site runs only the one it was installed with "
            f"(Tacit {__version__}, site.foreign-app)",
            "start runs with `tacit hub run` and a compatible version of Tacit",
            code="site.foreign-app",
        )


def _is_ours(bundle: bytes) -> bool:
    """Whether a bundle holds our files and no others; Flower writes the project file in its own form."""
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            sizes = [info.file_size for info in archive.infolist()]
            if sorted(archive.namelist()) != sorted([*FILES, LISTING]) or max(sizes) > LONGEST:
                return False
            found = {name: archive.read(name).decode() for name in FILES}
            same_project = tomllib.loads(found.pop(PROJECT)) == tomllib.loads(FILES[PROJECT])
    except (BadZipFile, ValueError, OSError, RuntimeError, NotImplementedError, zlib.error):
        return False
    return same_project and all(text == FILES[name] for name, text in found.items())
