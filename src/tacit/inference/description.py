"""What the file of a model says about it: enough to predict without the training data."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.data import inputs as kinds
from tacit.federation import Inputs
from tacit.inference.reference import Reference

SCHEMA = 1  # of a description; models of Tacit 0.1 have none
CROP = "crop"  # images are cropped in the middle to the proportions of the model, then scaled, by Pillow's ImageOps.fit


class NoDescriptionError(ValueError):
    """The file comes from a version that did not describe its models."""


@dataclass(frozen=True)
class Description:
    """A model but for its weights. It becomes the entry `tacit` in the metadata of a safetensors file."""

    net: Mapping[str, Any]  # name, norm, width and options, as the section [net] of a config has them
    classes: tuple[str, ...]  # in the order of the network's outputs
    inputs: Inputs  # what a sample is, with the mean and deviation that were used
    method: str = ""  # that trained it
    version: str = ""  # of Tacit that trained it
    fit: str = CROP  # how images get their size
    temperature: float = 1.0  # divides the logits before they become probabilities
    pretrained: Mapping[str, str] = field(default_factory=dict)  # weights it started from: name, source, licence
    reference: Reference | None = None  # what its test samples were like
    card: str = field(default="", repr=False)  # what a person should know about it, as Markdown

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if not 0 < self.temperature < math.inf or len(self.classes) < 2:
            raise ValueError("its temperature or its classes make no sense")

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "schema": SCHEMA,
            "tacit": self.version,
            "method": self.method,
            "net": dict(self.net),
            "shape": list(self.inputs.shape),
            "classes": list(self.classes),
            "inputs": self.inputs.to_plain(),
            "fit": self.fit,
            "temperature": self.temperature,
            "pretrained": dict(self.pretrained),
            "reference": self.reference and self.reference.to_plain(),
            "card": self.card,
        }

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """From `to_json`; a ValueError for anything else, and for what a newer version wrote."""
        values = json.loads(text)
        if not isinstance(values, dict) or "schema" not in values:
            raise NoDescriptionError("it does not describe its inputs")
        if values["schema"] != SCHEMA or values.get("fit") != CROP:
            raise ValueError(f"version {values.get('tacit')} of Tacit wrote it")
        try:
            classes = tuple(map(str, values["classes"]))
            return cls(
                net=dict(values["net"]),
                classes=classes,
                inputs=kinds.from_plain(values["inputs"], classes),
                method=str(values["method"]),
                version=str(values["tacit"]),
                fit=str(values["fit"]),
                temperature=float(values["temperature"]),
                pretrained={str(name): str(value) for name, value in values["pretrained"].items()},
                reference=Reference.from_plain(values["reference"]) if values["reference"] else None,
                card=str(values["card"]),
            )
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"its description is incomplete ({error})") from error
