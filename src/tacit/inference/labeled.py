"""Labeled samples for a trained model, from whatever a user has, and how good the model is on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.data import sources
from tacit.data.sources import npz
from tacit.data.sources.image_folder import is_system_file
from tacit.data.sources.table_file import open_table
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.inference.images import ImageReader, image_files
from tacit.inference.model import Model
from tacit.metrics import evaluation
from tacit.metrics.evaluation import Evaluation
from tacit.metrics.predictions import Predictions

Part = Literal["test", "labeled"]
PARTS: tuple[Part, ...] = ("test", "labeled")  # folders that hold class folders, the first of them that exists
NO_PART = "evaluate.no-such-part"
_GROUPS = ("groups", "group")  # names of the array with the group of each sample


@dataclass(frozen=True, eq=False)
class Labeled:
    """Samples as the model stores them, their classes, and the names of their groups if they have any."""

    x: Tensor
    y: Tensor
    groups: list[str] | None = None


def evaluate(model: Model, data: str | Path, *, positive: int | None = None, seed: int = 0) -> Evaluation:
    """How good a model is on labeled samples; see `labeled_samples` for what `data` can be."""
    given = labeled_samples(model, data)
    logits = model.logits(given.x) / model.description.temperature
    found = Predictions(given.y.numpy(), logits.numpy(), model.classes)
    about = Path(data).name if sources.is_path(str(data)) else str(data)
    return evaluation.evaluate(found, about, positive=positive, groups=given.groups, seed=seed)


def labeled_samples(model: Model, data: str | Path, part: Part | None = None) -> Labeled:
    """The samples of a data set's test part, of a folder `<class>/…`, or of a CSV, Parquet or .npz file with labels.

    Of a folder or file with a part for testing, that part is read, unless `part` asks for the labeled samples that are
    for training. Samples without a label are left out.
    """
    if not sources.is_path(str(data)) and not Path(data).exists():
        return _of_data_set(model, str(data), part)
    path = Path(data)
    if path.is_dir():
        found = _of_folder(model, path if part is None else path / part)
    elif path.suffix.lower() == ".npz":
        found = _of_arrays(model, path, part)
    elif path.suffix.lower() in (".csv", ".parquet"):
        found = _of_table(model, path, part)
    else:
        problem = f"cannot read labels from {path}" if path.exists() else f"nothing is at {path}"
        remedy = "give a folder with a folder for each class, or a .csv, .parquet or .npz file"
        raise TacitError(problem, remedy, code="evaluate.no-such-data")
    if not len(found.y):
        raise TacitError(f"{path} has no labeled samples", "label some", code="evaluate.no-labels")
    return found


def _of_data_set(model: Model, name: str, part: Part | None) -> Labeled:
    source, inputs = sources.load(name), model.description.inputs
    if (found := inputs.difference(source.inputs)) is not None or source.classes != model.classes:
        raise TacitError(
            f"the samples or classes of {name} differ from those that the model was trained on",
            "give data of the same kind, size and classes",
            code="evaluate.other-samples" if found else "evaluate.other-classes",
        )
    x, y = (source.x, source.y) if part == "labeled" else (source.x_test, source.y_test)
    return _kept(inputs.adopt(x, source.inputs), y[y != UNLABELED], (y != UNLABELED).numpy(), None)


def _of_folder(model: Model, path: Path) -> Labeled:
    if not path.is_dir():
        raise TacitError(f"there is no folder {path}", "put images into it, in a folder for each class", code=NO_PART)
    if not isinstance(model.reader, ImageReader):
        problem = f"{path} is a folder, and the model is not one of images"
        raise TacitError(problem, "give a .csv, .parquet or .npz file", code="evaluate.is-folder")
    place = next((path / part for part in PARTS if (path / part).is_dir()), path)
    classes = [entry for entry in sorted(place.iterdir()) if entry.is_dir() and not is_system_file(entry.name)]
    files = [(Path(file), entry.name) for entry in classes for file in image_files(entry)]
    if not files:
        problem = f"{place} has no images in class folders"
        raise TacitError(problem, "put them into a folder for each class", code="evaluate.no-labels")
    _refuse_unknown(place, [entry.name for entry in classes], model)
    return Labeled(model.stored([file for file, _ in files]), model.numbers([label for _, label in files]))


def _of_arrays(model: Model, path: Path, part: Part | None) -> Labeled:
    arrays = npz.read(path, "write it again with numpy.savez(path, x=…, y=…)")
    test = "_test" if part == "test" or (part is None and "x_test" in arrays) else ""
    if f"x{test}" not in arrays:
        raise TacitError(f"{path} has no array x{test}", "add it", code=NO_PART)
    y = npz.labels_in(path, arrays, f"y{test}")
    known = np.array([str(label) not in ("", str(UNLABELED)) for label in y.tolist()], dtype=np.bool_)
    x: Any = arrays[f"x{test}"]
    if "features" in arrays and hasattr(model.reader, "in_order"):
        x = model.reader.in_order(x, [str(name) for name in arrays["features"].reshape(-1)], str(path))
    groups = next((arrays[name] for name in _GROUPS if name in arrays and not test), None)
    if y.dtype.kind == "U":
        _refuse_unknown(path, y[known].tolist(), model)
    return _kept(model.stored(x), model.numbers(y[known]), known, None if groups is None else groups.tolist())


def _of_table(model: Model, path: Path, part: Part | None) -> Labeled:
    columns = _columns(path)
    if "label" not in columns:
        raise TacitError(f"{path} has no column label", "add one", code="data.missing-column")
    labels = columns["label"]
    test = np.array(columns.get("split", [""] * len(labels))) == "test"
    chosen = (~test if part == "labeled" else test) if part or test.any() else ~test
    known = np.array([bool(label) for label in labels]) & chosen
    if part and not known.any():
        problem = f"{path} has no labeled rows {'with' if part == 'test' else 'other than'} split = test"
        raise TacitError(problem, "add some", code=NO_PART)
    _refuse_unknown(path, [label for label, here in zip(labels, known, strict=True) if here], model)
    y = model.numbers([label for label, here in zip(labels, known, strict=True) if here])
    return _kept(model.stored(path), y, known, columns.get("group"))


def _kept(x: Tensor, y: Tensor, known: Any, groups: Sequence[Any] | None) -> Labeled:
    """The samples whose label is known."""
    rows = torch.from_numpy(np.flatnonzero(known))
    names = None if groups is None else [str(group) for group, here in zip(groups, known, strict=True) if here]
    return Labeled(x.index_select(0, rows), y, names)


def _columns(path: Path) -> dict[str, list[str]]:
    """The columns of a table that are not features, in the order of its rows."""
    columns, rows = open_table(path, pad=True)
    places = {name: columns.index(name) for name in ("label", "split", "group") if name in columns}
    found = [[str(row.cells[place]).strip() for place in places.values()] for row in rows]
    return {name: [cells[place] for cells in found] for place, name in enumerate(places)}


def _refuse_unknown(place: Path, labels: Sequence[str], model: Model) -> None:
    if unknown := sorted({str(label) for label in labels} - set(model.classes)):
        raise TacitError(
            f"{place} has the class {unknown[0]}, which the model does not know",
            f"use its names: {', '.join(model.classes[:10])}",
            code="evaluate.unknown-class",
        )
