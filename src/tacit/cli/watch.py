"""`tacit watch`: serve the live page and print its address."""

import webbrowser
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tacit.dashboard import server
from tacit.dashboard.board import Board, FindPanel, Panel
from tacit.errors import TacitError
from tacit.runs.followers.progress import say

RUNS = Path("runs")


def serve(
    folders: Sequence[Path],
    port: int | None,
    *,
    show: bool,
    panels: Mapping[str, Panel] | None = None,
    of_hub: FindPanel | None = None,
    only_panels: bool = False,
) -> None:
    """Serve the page about everything below the folders until Ctrl-C; `show` opens it in the browser."""
    server.refuse_without_packages()
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise TacitError(f"{folder} is not a folder", "give a folder that holds runs", code="watch.no-folder")
    roots = list(folders) or ([] if only_panels else [RUNS])

    def announce(address: str) -> None:
        say(f"Open {address}")
        say("Keep the address to yourself. The page reads and never acts. Ctrl-C ends it.")
        for folder in roots:
            if not folder.exists():
                say(f"There is no folder {folder} yet: the page shows what is in it as soon as there is.")
        if show:
            webbrowser.open(address)

    server.serve(Board(roots, panels, of_hub), port, announce)


def hub_panel() -> FindPanel | None:
    """How to look at a hub that is found below a folder; None without Flower, which only hubs need."""
    if find_spec("flwr") is None:
        return None
    from tacit.deploy.hub_watch import hub_panel

    return hub_panel
