"""Settings as text, `method.mu=0.1`, as `--set` and `--space` take them."""

import tomllib
from collections.abc import Iterable
from typing import Any

from tacit.errors import TacitError


def assignments(texts: Iterable[str] | None) -> dict[str, Any]:
    """The settings given with `--set`, by name."""
    return dict(map(parse_assignment, texts or ()))


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split `method.mu=0.1` into name and value; a value that is not TOML is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise TacitError(
            f"'{text}' is not a setting with a value",
            "write --set section.name=value, such as --set train.lr=0.1",
            code="config.not-an-assignment",
        )
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except ValueError:  # also for a number with thousands of digits
        return name.strip(), value.strip()
