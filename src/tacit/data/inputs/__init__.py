"""What a sample is: images, characters or vectors. No other code asks for the rank or the type of a tensor.

A new kind of data is a new module here, with its views in `data/views/`, a reader in `data/sources/` and an entry in
`KINDS`. `tacit.federation.Inputs` says what its class must know.
"""

from collections.abc import Mapping
from typing import Any

from tacit.data.inputs.characters import CharacterInputs
from tacit.data.inputs.images import ImageInputs
from tacit.data.inputs.vectors import VectorInputs
from tacit.federation import Inputs

__all__ = ["KINDS", "CharacterInputs", "ImageInputs", "Kind", "VectorInputs", "from_plain", "kind_of"]

Kind = type[ImageInputs] | type[CharacterInputs] | type[VectorInputs]
KINDS: dict[str, Kind] = {kind.kind: kind for kind in (ImageInputs, CharacterInputs, VectorInputs)}


def kind_of(plain: Mapping[str, Any]) -> Kind:
    """The kind of inputs in plain values; a ValueError for a kind that does not exist."""
    name = plain.get("kind", "text" if plain.get("text") else "images")
    if name not in KINDS:
        raise ValueError(f"it has samples of an unknown kind, {name}")
    return KINDS[name]


def from_plain(plain: Mapping[str, Any], classes: tuple[str, ...]) -> Inputs:
    """What `Inputs.to_plain` made, in a federation with these classes; a ValueError if the values do not fit."""
    kind = kind_of(plain)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    values = {name: value for name, value in values.items() if name not in kind.marks}
    return kind(**values | ({"alphabet": classes} if kind.reads_classes else {}))
