"""Rules that take the place of the mean, so that a few hostile clients cannot choose the model.

All are functions of a list of models. They ignore the clients' weights: a number of samples is only a client's word,
and no proof of these rules covers it. With f hostile clients among n:

    median       the median of each coordinate; of an even number, the mean of the middle two
    trimmed:β    the mean of each coordinate without its ⌊βn⌋ smallest and largest values
    krum:f       the one model closest to its n - f - 2 nearest others; n ≥ 2f + 3
    multi-krum:f the mean of the n - f models that Krum ranks first; n ≥ 2f + 3
    bulyan:f     Krum chooses θ = n - 2f, one after another; then, of each coordinate, the mean of the θ - 2f values
                 closest to their median; n ≥ 4f + 3

The first two are of Yin et al. (2018), Krum of Blanchard et al. (2017), Bulyan of El Mhamdi et al. (2018). `clipped` is
a mean of updates that were scaled down; see `tacit.protect.clipping`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import TacitError, unknown
from tacit.params import Params, mean

Models = Sequence[Mapping[str, Tensor]]

FEWEST = 3  # clients from which on a rule can tell which of them is odd
FALLBACK = "too_few_for_rule"  # logged for a round: how many uploads a rule got that needs more


def median(models: Models) -> Params:
    """The median of each coordinate; of an even number, the mean of the middle two."""
    middle, last = (len(models) - 1) // 2, len(models) // 2
    return _by_coordinate(models, lambda values: values.sort(dim=0).values[middle : last + 1].mean(dim=0))


def trimmed(models: Models, share: float) -> Params:
    """The mean of each coordinate without the share β of its smallest and of its largest values."""
    cut = int(share * len(models))
    return _by_coordinate(models, lambda values: values.sort(dim=0).values[cut : len(models) - cut].mean(dim=0))


def krum(models: Models, hostile: int) -> Params:
    """The model with the smallest score."""
    return dict(models[_ranking(_distances(models), hostile)[0]])


def multi_krum(models: Models, hostile: int) -> Params:
    """The mean of the n - f models with the smallest scores."""
    chosen = _ranking(_distances(models), hostile)[: len(models) - hostile]
    return mean([models[index] for index in chosen])


def bulyan(models: Models, hostile: int) -> Params:
    """Krum chooses θ = n - 2f models; the mean of the θ - 2f values of each coordinate closest to their median."""
    distances, left, chosen = _distances(models), list(range(len(models))), list[int]()
    while len(chosen) < len(models) - 2 * hostile:
        best = _ranking(distances[left][:, left], hostile)[0]
        chosen.append(left.pop(best))
    beta = len(chosen) - 2 * hostile
    middle, last = (len(chosen) - 1) // 2, len(chosen) // 2

    def around_median(values: Tensor) -> Tensor:
        ordered = values.sort(dim=0).values  # so that a tie does not depend on the order of the clients
        centre = ordered[middle : last + 1].mean(dim=0)
        closest = (ordered - centre).abs().argsort(dim=0, stable=True)[:beta]
        return ordered.gather(0, closest).mean(dim=0)

    return _by_coordinate([models[index] for index in chosen], around_median)


def _by_coordinate(models: Models, combine: Callable[[Tensor], Tensor]) -> Params:
    """A function of the (n, …) values of each tensor."""
    return {name: combine(torch.stack([model[name] for model in models])) for name in models[0]}


def _distances(models: Models) -> Tensor:
    """(n, n): squared distances, in float64 and on the CPU."""
    flat = [torch.cat([value.reshape(-1).double() for value in model.values()]) for model in models]
    rows = [[float((a - b).square().sum()) for b in flat] for a in flat]
    return torch.tensor(rows, dtype=torch.float64)


def _ranking(distances: Tensor, hostile: int) -> list[int]:
    """(n, n) -> all models by score: the sum of the squared distances to the n - f - 2 nearest others.

    If only the nearest one counts, two models that are nearest to each other tie: then all distances decide, where
    the first in order would make the outcome depend on the numbers of the clients.
    """
    nearest = distances.sort(dim=1).values  # the first one is the distance to itself, 0
    scores = nearest[:, 1 : 1 + max(1, len(distances) - hostile - 2)].sum(dim=1).tolist()
    totals = nearest.sum(dim=1).tolist()
    return sorted(range(len(distances)), key=lambda index: (scores[index], totals[index]))


@dataclass(frozen=True)
class _Kind:
    """A family of rules: its function, the number it takes, and how many models that number needs."""

    combine: Callable[..., Params]
    form: str = ""  # of its number, in words; empty: it takes none
    example: str = ""
    least: Callable[[float], int] = lambda _: FEWEST
    chooses: bool = False  # it takes whole models, not coordinates


def _fewest_for(share: float) -> int:
    """The fewest models of which this share is at least one."""
    return next(n for n in range(FEWEST, 1 << 20) if int(share * n))


_HOSTILE = "the number of hostile clients, 1 or more"
_KINDS = {
    "median": _Kind(median),
    "trimmed": _Kind(trimmed, "a share above 0 and below 0.5", "0.2", _fewest_for),
    "krum": _Kind(krum, _HOSTILE, "1", lambda f: 2 * int(f) + 3, chooses=True),
    "multi-krum": _Kind(multi_krum, _HOSTILE, "1", lambda f: 2 * int(f) + 3, chooses=True),
    "bulyan": _Kind(bulyan, _HOSTILE, "1", lambda f: 4 * int(f) + 3, chooses=True),
}
PLAIN = ("mean", "clipped")  # a weighted mean, of updates as they are or scaled down
NAMES = (*PLAIN, *_KINDS)


@dataclass(frozen=True)
class RobustRule:
    """A rule in place of the mean. It needs all models at once, and ignores their weights.

    A round with fewer models than it needs takes their median, and logs how many there were.
    """

    name: str
    number: float = 0.0
    log: Callable[[str, float], None] | None = None

    @property
    def least(self) -> int:
        """How many models it needs."""
        return _KINDS[self.name].least(self.number)

    @property
    def chooses(self) -> bool:
        """Whether it takes whole models of some clients, so that all parts of an upload must be combined at once."""
        return _KINDS[self.name].chooses

    @property
    def text(self) -> str:
        """As a config has it."""
        return f"{self.name}:{self.number:g}" if _KINDS[self.name].form else self.name

    def __call__(self, models: Iterable[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> Params:
        """The models as one."""
        given = list(models)
        if not given:
            raise ValueError(f"{self.text} needs at least one model")
        kind = _KINDS[self.name]
        if len(given) >= self.least or self.name == "median":
            number = self.number if self.name == "trimmed" else int(self.number)
            return kind.combine(given, number) if kind.form else kind.combine(given)
        if self.log is not None:
            self.log(FALLBACK, len(given))
        return median(given)


def parse(text: str) -> RobustRule | None:
    """The rule that a config names; None for those that are a weighted mean."""
    name, colon, number = text.strip().partition(":")
    if name not in NAMES:
        raise unknown("rule", name, NAMES, code="protect.unknown-rule")
    kind = _KINDS.get(name)
    if kind is None or not kind.form:
        if colon:
            raise TacitError(f"{name} takes no number", f"write {name}", code="protect.bad-rule-number")
        return None if kind is None else RobustRule(name)
    value = _number(name, number)
    if value is None:
        raise TacitError(f"{name} needs {kind.form}", f"write {name}:{kind.example}", code="protect.bad-rule-number")
    return RobustRule(name, value)


def _number(name: str, text: str) -> float | None:
    """The number of a rule, if it has one that makes sense."""
    try:
        value = float(text) if name == "trimmed" else float(int(text))
    except ValueError:
        return None
    return value if (0.001 <= value < 0.5 if name == "trimmed" else 1 <= value <= 10**6) else None


def canonical(text: str) -> str:
    """The rule as every config has it: trimmed:0.2 for `trimmed:0.20`."""
    rule = parse(text)
    return text.strip() if rule is None else rule.text


def least_clients(text: str) -> int:
    """How many clients a round needs for a rule."""
    rule = parse(text)
    return rule.least if rule is not None else FEWEST if text == "clipped" else 1
