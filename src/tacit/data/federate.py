"""A source and a split of it as a `Federation`: who holds which samples, and what a network sees of them."""

from dataclasses import replace

import numpy as np
import torch

from tacit.data.sources import Source
from tacit.data.split.config import DataConfig
from tacit.data.split.split import Split
from tacit.data.unknown import without_unknown_tests
from tacit.errors import TacitError
from tacit.federation import UNLABELED, Federation, Samples, ServerData
from tacit.random import Streams


def pooled(source: Source, data: DataConfig, streams: Streams) -> Source:
    """The source with its test samples moved into the training samples, if test samples are to be drawn from all.

    In a source with groups only training samples have a group, so its test samples stay separate and the number
    asked for is drawn from them. A test set that stays separate has no samples of unknown classes.
    """
    if data.test is None:
        return without_unknown_tests(source)
    if source.groups is not None:
        return _fewer_tests(without_unknown_tests(source), data.test, streams)
    x, y = torch.cat([source.x, source.x_test]), torch.cat([source.y, source.y_test])
    return replace(source, x=x, y=y, x_test=source.x_test[:0], y_test=source.y_test[:0])


def _fewer_tests(source: Source, count: int, streams: Streams) -> Source:
    there = len(source.y_test)
    if count > there:
        raise TacitError(
            f"data.test asks for {count} test samples and {source.name} has {there}",
            "lower data.test",
            code="data.too-few-samples",
        )
    drawn = torch.from_numpy(np.sort(streams.numpy_at("test").permutation(there)[:count]))
    return replace(source, x_test=source.x_test[drawn], y_test=source.y_test[drawn])


def federate(source: Source, split: Split, data: DataConfig) -> Federation:
    """All data of a run: the source's samples, not copied, and only the labels that the split shows."""
    hidden = ~torch.from_numpy(split.labeled)
    group = source.groups if source.whole_groups else None
    true = Samples(source.x, source.y, group)
    test_set = Samples(source.x_test, source.y_test)
    return Federation(
        pool=Samples(source.x, source.y.masked_fill(hidden, UNLABELED), group),
        order=torch.from_numpy(np.concatenate(split.clients)),
        starts=torch.from_numpy(np.cumsum([0, *(len(part) for part in split.clients)])),
        server=ServerData(true.take(torch.from_numpy(split.server)), true.take(torch.from_numpy(split.validation))),
        test=true.take(torch.from_numpy(split.test)) if len(split.test) else test_set,
        classes=source.classes,
        inputs=source.inputs.configured(data),
        views=source.inputs.views(data),
        truth=source.y,
        arrivals=split.arrival,
        unknown=source.unknown,
        note=source.note,
        left_out=source.left_out,
    )
