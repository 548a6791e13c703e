"""What one batch of labeled and unlabeled data costs. Each objective is a short class; its fields are its settings."""

from tacit.learn import Objective
from tacit.objectives.adaptive import FlexMatch, FreeMatch, SoftMatch
from tacit.objectives.consistency import MeanTeacher, Mixup, Pi
from tacit.objectives.pseudo import FixMatch, PseudoLabel, Uda
from tacit.objectives.supervised import Supervised

OBJECTIVES: dict[str, type[Objective]] = {
    "supervised": Supervised,
    "pseudo-label": PseudoLabel,
    "fixmatch": FixMatch,
    "uda": Uda,
    "pi": Pi,
    "mean-teacher": MeanTeacher,
    "mixup": Mixup,
    "flexmatch": FlexMatch,
    "freematch": FreeMatch,
    "softmatch": SoftMatch,
}

__all__ = [
    "OBJECTIVES",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "MeanTeacher",
    "Mixup",
    "Pi",
    "PseudoLabel",
    "SoftMatch",
    "Supervised",
    "Uda",
]
