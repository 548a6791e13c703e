"""Flower's program for one message, bound to one app: no code that a server sends is ever run."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flwr.clientapp import ClientApp


def bind_client(app: ClientApp, check: Callable[[bytes], None]) -> Callable[[], Any]:
    """The program, which runs `app` whatever app the server sends.

    The server's bundle is never unpacked. `check` gets it, and refuses a run of another app by an exception, which
    becomes the node's answer.
    """
    program: Any = import_module("flwr.supernode.runtime.run_clientapp")
    bound = {
        "install_from_fab": lambda content, **_: check(content),
        "get_load_client_app_fn": lambda **_: lambda *_: app,
    }
    for name, function in bound.items():
        if not callable(getattr(program, name)):
            raise TypeError(f"Flower's {name} is not a function")
        setattr(program, name, function)
    started: Callable[[], Any] = import_module("flwr.supernode.cli").flwr_clientapp
    return started
