"""What one batch of labeled and unlabeled data costs. Each objective is a short class; its fields are its settings.

A module states in `OBJECTIVES` which objectives it offers under which names.
"""

from tacit.discovery import offered
from tacit.learn import Objective
from tacit.objectives.adaptive import FlexMatch, FreeMatch, SoftMatch
from tacit.objectives.consistency import MeanTeacher, Mixup, Pi
from tacit.objectives.openmatch import OpenMatch
from tacit.objectives.pseudo import FixMatch, PseudoLabel, Uda
from tacit.objectives.supervised import Supervised

__all__ = [
    "OBJECTIVES",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "MeanTeacher",
    "Mixup",
    "OpenMatch",
    "Pi",
    "PseudoLabel",
    "SoftMatch",
    "Supervised",
    "Uda",
]

OBJECTIVES: dict[str, type[Objective]] = offered(__name__, __path__, "OBJECTIVES")
