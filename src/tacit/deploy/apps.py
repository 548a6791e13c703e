"""The two apps that Flower runs, and the folder it takes them from."""

from pathlib import Path
from typing import Any

from tacit.engines.memory import write_durably
from tacit.errors import TacitError

FILES = {
    "pyproject.toml": """\
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
hub = "{hub}"  # the hub's folder
run = ""  # the run's folder: a new one, or one to go on with
config = ""  # a new run's settings, a TOML file
""",
    "tacit_app/__init__.py": '"""Tacit on Flower."""\n',
    "tacit_app/server.py": '"""What the hub runs."""\n\nfrom tacit.deploy import apps\n\napp = apps.server()\n',
    "tacit_app/client.py": '"""What every site runs."""\n\nfrom tacit.deploy import apps\n\napp = apps.client()\n',
}


def server() -> Any:
    """The app of the hub."""
    from tacit.deploy.hub import main
    from tacit.engines.flower import server_app

    return server_app(main)


def client() -> Any:
    """The app of a site."""
    from tacit.deploy.site import introduce, open_desk
    from tacit.engines.flower import client_app

    return client_app(open_desk, introduce)


def write(folder: Path, hub: Path) -> Path:
    """Write the apps for one hub; `flwr run FOLDER` then plays a run."""
    text = str(hub.absolute())
    if '"' in text or "\\" in text or "\n" in text:
        raise TacitError(f"{text} can not stand in a settings file: put the hub in a folder with a plain name")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_durably(folder / name, content.replace("{hub}", text).encode())
    return folder
