"""Which strong views keep the label: measured with the labels at hand, by cross-validation, in seconds.

A small network learns from a part of the labels, each in a weak and in a strong view, and is tested on the rest without
augmentation. A policy that destroys what the label is about loses here.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tacit import nets
from tacit.data.inputs import ImageInputs
from tacit.data.split.config import DataConfig
from tacit.federation import Federation, Samples, ServerData
from tacit.learn import fit, predict
from tacit.method import ServerContext, Training
from tacit.methods.anchor import OnLabels
from tacit.nets import Net
from tacit.process import one_thread
from tacit.random import Streams

HEAVY, LIGHT = POLICIES = ("fixmatch", "gentle")
FOLDS = 3
MOST = 120  # labels that are used
PARTS = 4  # of the training, each with a lower rate
TRAIN = Training(steps=50, batch=16, lr=0.03, schedule="cosine")
LEARNED = 0.9  # share of the labels it learns from that a network must get right to be compared
ERRORS = 2.0  # standard errors by which light views have to be better
LARGEST = 128  # pixels; larger images lose too much of what they show when they are made smaller
SIDE = 64  # pixels that images are made smaller to, so that this takes seconds
SLOW = 32  # pixels above which a person waits long enough to wonder


@dataclass(frozen=True)
class ViewChoice:
    """The policy that was chosen, and the share of held-out labels that each policy gets right."""

    best: str
    accuracy: dict[str, float]
    labels: int  # how many were held out in turn

    def __str__(self) -> str:
        """`gentle (78% of 40 held-out labels right; fixmatch 71%)`."""
        others = ", ".join(f"{name} {share:.0%}" for name, share in self.accuracy.items() if name != self.best)
        return f"{self.best} ({self.accuracy[self.best]:.0%} of {self.labels} held-out labels right; {others})"


def choose_views(federation: Federation, labeled: Samples, data: DataConfig, streams: Streams) -> ViewChoice | None:
    """The strong views for these labels; None if nothing can be measured.

    That is so where `not_measurable` has a reason, and where the steps do not suffice to learn the labels with heavy
    views: those learn slowly, so they would lose for that reason alone.
    """
    if not_measurable(federation, labeled):
        return None
    order = torch.randperm(len(labeled), generator=streams.at("view choice"))
    few = labeled.take(_by_class_in_turn(labeled.y, order)[:MOST])
    federation, few, data = smaller(federation, few, data)
    net = nets.build("lenet", federation.inputs.shape, len(federation.classes), "group")
    with one_thread():
        heavy, learned = _held_out(federation, net, few, replace(data, augment=HEAVY), streams)
        if learned < LEARNED:
            return None
        light, _ = _held_out(federation, net, few, replace(data, augment=LIGHT), streams)
    return chosen({HEAVY: heavy, LIGHT: light})


def not_measurable(federation: Federation, labeled: Samples) -> str:
    """Why strong views cannot be compared on these labels; empty if they can."""
    if not federation.inputs.drawable:
        return "only views of images are compared"
    if max(federation.inputs.shape) > LARGEST:
        return f"views are compared on images of up to {LARGEST} pixels"
    counts = labeled.y.bincount(minlength=len(federation.classes))
    if int(counts.min()) < 2 or _in_one_group(labeled):
        return "too few labels to compare it with gentle"
    return ""


def is_slow(federation: Federation, labeled: Samples) -> bool:
    """Whether the comparison takes so long that a person should know."""
    return not not_measurable(federation, labeled) and max(federation.inputs.shape) > SLOW


def smaller(federation: Federation, labeled: Samples, data: DataConfig) -> tuple[Federation, Samples, DataConfig]:
    """The same with images of at most `SIDE` pixels; both policies are relative to the image, a given shift is not."""
    inputs = federation.inputs
    if not isinstance(inputs, ImageInputs) or max(inputs.shape[1:]) <= SIDE:
        return federation, labeled, data
    scale = SIDE / max(inputs.shape[1:])
    high, wide = (max(1, round(side * scale)) for side in inputs.shape[1:])

    def shift(given: int | None) -> int | None:
        return None if given is None else round(given * scale)

    x = interpolate(labeled.x.float(), (high, wide), mode="bilinear", antialias=True).round().clamp(0, 255)
    made = replace(inputs, shape=(inputs.shape[0], high, wide), shift=shift(inputs.shift))
    return (
        replace(federation, inputs=made),
        replace(labeled, x=x.to(labeled.x.dtype)),
        replace(data, shift=shift(data.shift)),
    )


def chosen(right: dict[str, Tensor]) -> ViewChoice:
    """The choice by which held-out labels (n,) each policy gets right.

    Heavy views also keep a model from being sure of what it does not know, which this does not measure. So light ones
    have to be better by more than two standard errors of the difference.
    """
    ahead = right[LIGHT].double() - right[HEAVY].double()
    best = LIGHT if float(ahead.mean()) > ERRORS * float(ahead.std()) / len(ahead) ** 0.5 else HEAVY
    return ViewChoice(best, {name: float(hits.double().mean()) for name, hits in right.items()}, len(ahead))


def _in_one_group(labeled: Samples) -> bool:
    """Whether some class has its labels in a single group, so that a fold would leave none to learn from."""
    if labeled.group is None:
        return False
    return any(len(labeled.group[labeled.y == number].unique()) < 2 for number in labeled.y.unique())


def _by_class_in_turn(y: Tensor, order: Tensor) -> Tensor:
    """Positions in this order, dealt so that one sample of each class follows the other."""
    mixed = y[order]
    rank = torch.stack([(mixed[:place] == mixed[place]).sum() for place in range(len(mixed))])
    return order[rank.sort(stable=True).indices]


def _held_out(
    federation: Federation, net: Net, labeled: Samples, data: DataConfig, streams: Streams
) -> tuple[Tensor, float]:
    """(n,) whether a network that did not see a label gets it right, and the share of seen ones it gets right."""
    views, right = federation.inputs.views(data), torch.zeros(len(labeled), dtype=torch.bool)
    learned, folds = 0.0, labeled.folds(torch.arange(len(labeled)), FOLDS)
    for fold in range(FOLDS):
        out, rest = ((folds == fold).nonzero().reshape(-1), (folds != fold).nonzero().reshape(-1))
        held = Samples(labeled.x[:0], labeled.y[:0])
        server = ServerContext(
            round=0,
            rounds=PARTS,
            net=net,
            train=TRAIN,
            inputs=federation.inputs,
            views=views,
            streams=streams.within(f"view choice {fold}"),
            device=torch.device("cpu"),
            cohort=(),
            clients=0,
            data=ServerData(labeled.take(rest), held),
            log=lambda name, value: None,
        )
        model = server.initial()
        for part in range(PARTS):
            model = fit(replace(server, round=part), model, OnLabels("both")).params
        hits = predict(net, model, labeled.x, views).argmax(1) == labeled.y
        right[out] = hits[out]
        learned += float(hits[rest].double().mean()) / FOLDS
    return right, learned
