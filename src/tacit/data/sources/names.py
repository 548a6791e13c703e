"""Names of classes and groups as numbers, for readers of files that hold names."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from tacit.data.sources.arrays import Labels
from tacit.errors import TacitError
from tacit.federation import UNLABELED

_ALIKE = 0.75  # of difflib: splt is a misspelt split, site is a column by another name
_MANY = 10  # classes named in an error message


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that this one resembles, or nothing."""
    return next(iter(get_close_matches(name.strip().lower(), list(known), 1, _ALIKE)), "")


def ordered(names: set[str]) -> tuple[str, ...]:
    """By name, or as numbers if all are whole numbers."""
    numbers = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def label_numbers(labels: Sequence[str], classes: tuple[str, ...]) -> Labels:
    """The number of each label's class; "" is unlabeled."""
    number = {"": UNLABELED} | {name: index for index, name in enumerate(classes)}
    return np.array([number[label] for label in labels], dtype=np.int64)


def group_numbers(names: Sequence[str]) -> Labels | None:
    """The number of each sample's group, groups sorted by name; None without groups."""
    if not all(names):
        return None
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def refuse_unknown(path: Path, labels: set[str], classes: tuple[str, ...]) -> None:
    """Refuse a class that a federation does not have; "" is unlabeled."""
    if unknown := sorted(labels - {"", *classes}):
        near = nearest(unknown[0], classes)
        more = ", …" if len(classes) > _MANY else ""
        raise TacitError(
            f"{path} has a class {unknown[0]}, which the federation does not know",
            f"rename it to {near}" if near else f"use only {', '.join(classes[:_MANY])}{more}",
            code="data.unknown-class",
        )
