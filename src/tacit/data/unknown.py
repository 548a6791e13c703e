"""Unknown classes: classes of a data set without labels, which the model does not have, the usual case in practice.

Their samples stay among the unlabeled ones of the clients. A simulator knows their true class, which is numbered after
those of the model.
"""

from dataclasses import replace

import torch

from tacit.data.sources.arrays import Source
from tacit.errors import TacitError, unknown

REMEDY = "lower data.unknown_classes, or name fewer classes"


def with_unknown(source: Source, asked: int | tuple[str, ...] | None) -> Source:
    """The source with the last `asked` classes, or those of these names, as unknown ones.

    Both kinds keep their order and get new numbers: first the classes of the model, then the unknown ones.
    """
    if not asked:
        return source
    names = _names(source, asked)
    kept = [number for number, name in enumerate(source.classes) if name not in names]
    if len(kept) < 2:
        raise TacitError(
            f"with data.unknown_classes, {len(kept) or 'no'} class{'es' * (not kept)} of {source.name} would be left,"
            " and a model needs two",
            REMEDY,
            code="data.one-known-class" if kept else "data.no-known-class",
        )
    if source.inputs.reads_classes:
        raise TacitError(
            f"the classes of {source.name} are its characters, which the network also reads",
            "leave out data.unknown_classes",
            code="data.unknown-characters",
        )
    hidden = [number for number, name in enumerate(source.classes) if name in names]
    number = torch.empty(len(source.classes) + 1, dtype=torch.int64)
    number[torch.tensor([*kept, *hidden])] = torch.arange(len(source.classes))
    number[-1] = -1  # the label of a sample without one, which is -1 and so the last position
    return replace(
        source,
        y=number[source.y],
        y_test=number[source.y_test],
        classes=tuple(source.classes[place] for place in kept),
        unknown=tuple(source.classes[place] for place in hidden),
    )


def without_unknown_tests(source: Source) -> Source:
    """The source whose test set has only classes of the model; a sentence says how many samples are left out."""
    rows = (source.y_test < len(source.classes)).nonzero().reshape(-1)
    if len(rows) == len(source.y_test):
        return source
    sentence = f"{len(source.y_test) - len(rows):,} test samples of unknown classes are left out."
    x_test, y_test = source.x_test.index_select(0, rows), source.y_test.index_select(0, rows)
    return replace(source, x_test=x_test, y_test=y_test, note=f"{source.note} {sentence}".strip())


def _names(source: Source, asked: int | tuple[str, ...]) -> set[str]:
    if isinstance(asked, int):
        return set(source.classes[max(0, len(source.classes) - asked) :])
    for name in asked:
        if name not in source.classes:
            raise unknown("class in data.unknown_classes", name, source.classes, code="names.unknown-class")
    return set(asked)
