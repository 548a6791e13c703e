"""Image files with their classes as a data set; folders and manifests both end here."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tacit.data.sources import images
from tacit.data.sources.arrays import Labels, Source, hold_out, hold_out_groups, image_source
from tacit.data.sources.images import Scale
from tacit.data.sources.names import group_numbers, label_numbers, ordered, refuse_unknown
from tacit.errors import TacitError


@dataclass(frozen=True)
class ImageFile:
    """An image file, its class ("" when unknown), and whether it is for testing."""

    path: str
    label: str
    test: bool = False
    group: str = ""
    line: int = 0  # in the manifest


def to_source(path: Path, files: list[ImageFile], scale: Scale, remedy: str) -> Source:
    """All these images; `remedy` says how to get test images if there are none and too few to hold any out."""
    files, left_out = _readable(files, scale)
    classes = ordered({file.label for file in files if file.label})
    if not classes:
        raise TacitError(f"{path} has no labeled image", "put images into labeled/<class>/", code="data.no-labels")
    parts = _parts(path, files, label_numbers([file.label for file in files], classes), remedy)
    return _noted(_arrays(path, files, classes, parts, scale), left_out)


def to_part(path: Path, files: list[ImageFile], classes: tuple[str, ...], scale: Scale) -> Source:
    """These images as the data of one member of a federation with these classes; nothing is held out for testing."""
    files, left_out = _readable(files, scale)
    refuse_unknown(path, {file.label for file in files}, classes)
    if all(file.test for file in files):
        raise TacitError(
            f"{path} has no training images",
            "put images into labeled/<class>/ or unlabeled/",
            code="data.no-training-images",
        )
    test = np.array([file.test for file in files])
    return _noted(_arrays(path, files, classes, (np.flatnonzero(~test), np.flatnonzero(test)), scale), left_out)


def _readable(files: list[ImageFile], scale: Scale) -> tuple[list[ImageFile], list[str]]:
    """The files to read, and those that are left out because they cannot be."""
    broken = images.unreadable([file.path for file in files], images.open_file) if scale.skip_broken else []
    return [file for file in files if file.path not in set(broken)], broken


def _noted(source: Source, left_out: list[str]) -> Source:
    """The source with a sentence about files that were left out."""
    if not left_out:
        return source
    more = f" and {len(left_out) - images.LISTED} more" if len(left_out) > images.LISTED else ""
    sentence = f"Left out, since they cannot be read: {', '.join(left_out[: images.LISTED])}{more}."
    return replace(source, note=f"{source.note} {sentence}".strip(), left_out=len(left_out))


def _arrays(
    path: Path, files: list[ImageFile], classes: tuple[str, ...], parts: tuple[Labels, Labels], scale: Scale
) -> Source:
    """The images themselves, those of the training and of the test part."""
    (train, test), y = parts, label_numbers([file.label for file in files], classes)
    order = [files[row].path for row in (*train, *test)]  # so that each part is a slice, which is not copied
    x, note, bits, sizes = images.load(order, images.open_file, scale)
    groups = group_numbers([files[row].group for row in train])
    pairs = (x[: len(train)], y[train]), (x[len(train) :], y[test])
    source = image_source(str(path), *pairs, classes, flip=False, groups=groups, note=note, bits=bits, sizes=sizes)
    held_out = not any(file.test for file in files) and len(test) > 0
    tested = group_numbers([files[row].group for row in test]) if held_out else None
    test_groups = None if tested is None else torch.from_numpy(tested)
    source = replace(source, whole_groups=groups is not None, held_out=held_out, test_groups=test_groups)
    padded = replace(source.inputs, pad=True) if scale.pad else source.inputs  # type: ignore[type-var]
    return replace(source, inputs=padded)


def _parts(path: Path, files: list[ImageFile], y: Labels, remedy: str) -> tuple[Labels, Labels]:
    test = np.array([file.test for file in files])
    if test.any():
        return np.flatnonzero(~test), np.flatnonzero(test)
    groups = group_numbers([file.group for file in files])
    return hold_out(path, y, remedy) if groups is None else hold_out_groups(path, y, groups, remedy)
