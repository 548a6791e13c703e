"""How good a last layer is that was fitted to the labels of one client, against the common one."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LocalHead:
    """A client or site: its labels, and the accuracy of both heads on samples that it holds out."""

    name: str
    labels: int  # that its head was fitted to
    held_out: int  # samples that both accuracies were measured on
    strength: float  # weight of its labels against the distance from the common head; 0: the common head is kept
    common: float  # accuracy of the common model
    local: float  # accuracy of the same model with its own head


@dataclass(frozen=True)
class LocalHeads:
    """All clients of a run that have labels."""

    about: str
    heads: tuple[LocalHead, ...]

    @property
    def common(self) -> float:
        """The mean accuracy of the common model; every client counts the same."""
        return sum(each.common for each in self.heads) / len(self.heads)

    @property
    def local(self) -> float:
        """The mean accuracy with local heads."""
        return sum(each.local for each in self.heads) / len(self.heads)

    @property
    def kept(self) -> int:
        """How many clients keep the common head."""
        return sum(each.strength == 0 for each in self.heads)

    @property
    def lower(self) -> int:
        """At how many clients the local head is less accurate."""
        return sum(each.local < each.common for each in self.heads)

    def sentence(self) -> str:
        """The outcome in words."""
        count = len(self.heads)
        text = (
            f"Mean over {count:,} client{'s' * (count > 1)}: {100 * self.common:.1f} % with the common head, "
            f"{100 * self.local:.1f} % with local heads."
        )
        kept = f" {self.kept:,} keep{'s' * (self.kept == 1)} the common head." if self.kept else ""
        return text + kept + (f" {self.lower:,} end{'s' * (self.lower == 1)} lower." if self.lower else "")

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {"about": self.about, "heads": [asdict(each) for each in self.heads]}

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(self.to_plain())

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "LocalHeads":
        """From `to_plain`; a ValueError for anything else."""
        names = [item.name for item in fields(LocalHead)]
        try:
            heads = tuple(LocalHead(**{name: each[name] for name in names}) for each in values["heads"])
            found = cls(str(values["about"]), heads)
            _ = found.sentence()
        except (KeyError, TypeError, ZeroDivisionError, ValueError) as error:
            raise ValueError(f"these are no local heads ({error})") from error
        return found
