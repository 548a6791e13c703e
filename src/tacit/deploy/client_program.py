"""A site's client process: Flower's program for one message, which runs the app of this installation and no other.

A program: `python -m tacit.deploy.client_program ARGUMENT…`, with the arguments of Flower's `flwr-clientapp`.
"""

import sys
from collections.abc import Callable
from typing import Any

from tacit.deploy import apps
from tacit.deploy.site_errors import shared_with_hub

NAME = "flwr-clientapp"  # Flower's program, for which this one stands in


def load() -> Callable[[], Any]:
    """The program as a function, with everything a site needs imported."""
    from tacit.engines.flower import bind_client, poll_faster

    poll_faster()
    return bind_client(apps.client(), _check)


def _check(bundle: bytes) -> None:
    with shared_with_hub():
        apps.refuse_foreign(bundle)


if __name__ == "__main__":
    sys.argv[0] = NAME
    sys.exit(load()())
