"""A user's `.npz` file of images or vectors, and labels."""

import math
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from tacit.data.sources.arrays import Array, Labels, Pair, Pixels, Source, image_source, vector_source
from tacit.data.sources.images import DEPTHS
from tacit.data.sources.names import group_numbers, label_numbers, ordered, refuse_unknown
from tacit.data.sources.tables import as_features, divide
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.process import available_memory

MOST_CHANNELS = 4  # an axis this short holds channels; a longer one is a side of the image
_WRAPPED = {255: "uint8", 65_535: "uint16", 4_294_967_295: "uint32"}  # -1 in unsigned types
_REWRITE = "write it again with numpy.savez(path, x=…, y=…)"
_FORMS = "make it (n, h, w) or (n, h, w, c) for images, (n, d) for vectors"


def from_file(path: Path, bits: int | None = None) -> Source:
    """The data set in a `.npz` file with `x`, `y` and, if there is one, a test set `x_test`, `y_test`.

    x holds images of shape (n, h, w), (n, h, w, channels) or (n, channels, h, w), as uint8, as uint16 or as floats from
    0 to 1; or vectors of shape (n, d). y holds classes 0, 1, 2, … and -1 for unlabeled samples, or class names and ""
    for unlabeled. `group` (and `group_test`) say who made each sample, `features` names the columns of vectors. Without
    test arrays, 20 % of the labeled samples become the test set, always the same ones; a group is never divided.
    Images are never flipped: a file does not say whether flips preserve labels.
    """
    arrays = read(path, _REWRITE)
    parts = _parts(path, arrays)
    return _source(path, arrays, parts, _classes(path, parts[0][1]), bits, hold_some_out=True)


def part_of_file(path: Path, classes: tuple[str, ...], bits: int | None = None) -> Source:
    """The data of one member of a federation with these classes, in a `.npz` file as `from_file` reads it.

    Labels name or number the federation's classes; some or all of these may be missing. Nothing is held out.
    """
    arrays = read(path, _REWRITE)
    return _source(path, arrays, _parts(path, arrays), classes, bits, hold_some_out=False)


def read(path: Path, remedy: str) -> dict[str, Array]:
    """All arrays of a `.npz` file."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}", "check the path", code="data.no-file")
    try:
        _refuse_too_large(path, remedy)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except MemoryError:
        raise _too_large(path, "more than this machine's memory") from None
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise TacitError(f"{path} cannot be read", remedy, code="data.unreadable-file") from None


def holds_vectors(path: Path) -> bool:
    """Whether the samples in a file are rows of features, by its header; False if that cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("x.npy") as file:
            return len(_header(file)[0]) == 2
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return False


def _refuse_too_large(path: Path, remedy: str) -> None:
    """Refuse a file whose arrays would fill this machine's memory, by what their headers say."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in (each for each in archive.infolist() if each.filename.endswith(".npy")):
            with archive.open(member) as file:
                shape, kind = _header(file)
            size = math.prod(shape) * kind.itemsize
            if size > member.file_size:
                raise TacitError(f"{path} cannot be read", remedy, code="data.unreadable-file")
            total += size
    if total > available_memory() // 2:
        raise _too_large(path, f"{total / 1e9:.1f} GB, more than half of the memory that is free")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    return shape, kind


def _too_large(path: Path, how: str) -> TacitError:
    return TacitError(f"the arrays in {path} take {how}", "use fewer samples", code="data.too-large")


def labels_in(path: Path, arrays: dict[str, Array], name: str) -> Array:
    """(n,) class numbers or class names."""
    _require(path, arrays, name.replace("y", "x", 1), name)
    y = arrays[name]
    if y.ndim != 1 or y.dtype.kind not in "iuU":
        problem = f"{name} in {path} is {_form(y)}"
        raise TacitError(problem, "make it one whole number or one name per sample", code="data.bad-label-array")
    return y


def pair(path: Path, arrays: dict[str, Array], x_name: str, y_name: str) -> Pair:
    """Images (n, c, h, w) as uint8 and numbered labels (n,) of one part of a file."""
    y, x = labels_in(path, arrays, y_name), _samples(path, arrays, x_name)
    return x.astype(np.uint8, copy=False), y.astype(np.int64)


def as_pixels(x: Array, what: str, bits: int | None) -> Pixels:
    """(n, c, h, w) as uint8 from images in any of the three layouts and types; `what` holds them."""
    return _eight_bits(what, _arranged_samples(x, what), bits)[0]


def _parts(path: Path, arrays: dict[str, Array]) -> list[tuple[Array, Array]]:
    """Samples and labels of the training part and, if there is one, of the test part."""
    parts = []
    for x_name, y_name in (("x", "y"), ("x_test", "y_test")):
        if x_name == "x" or {x_name, y_name} & arrays.keys():
            y = labels_in(path, arrays, y_name)
            x = _samples(path, arrays, x_name)
            if len(x) != len(y) or not len(x):
                problem = f"{path} has {len(x)} samples in {x_name} and {len(y)} labels in {y_name}"
                raise TacitError(problem, "give each sample a label", code="data.different-lengths")
            parts.append((x, y))
    return parts


def _source(
    path: Path,
    arrays: dict[str, Array],
    parts: list[tuple[Array, Array]],
    classes: tuple[str, ...],
    bits: int | None,
    *,
    hold_some_out: bool,
) -> Source:
    """All parts of a file; the test part must fit the training part."""
    x = [samples for samples, _ in parts]
    y = [_numbers(path, labels, name, classes) for (_, labels), name in zip(parts, ("y", "y_test"), strict=False)]
    if len(parts) > 1:
        _check_test(path, x[0], x[1], y[1], len(classes))
    groups = _groups(path, arrays, [len(each) for each in y])
    every_x, every_y = np.concatenate(x), np.concatenate(y)
    test = np.arange(len(every_y)) >= len(y[0])
    train, tests = (np.flatnonzero(~test), np.flatnonzero(test))
    if hold_some_out:
        train, tests = divide(path, every_y, test, groups, "add the arrays x_test and y_test")
    made_by = None if groups is None else np.unique(groups[train], return_inverse=True)[1]
    source = _arranged(path, arrays, (every_x, every_y), (train, tests), classes, made_by, bits)
    if not hold_some_out or len(parts) > 1:
        return source
    tested = None if groups is None else torch.from_numpy(np.unique(groups[tests], return_inverse=True)[1])
    return replace(source, held_out=True, test_groups=tested)


def _arranged(
    path: Path,
    arrays: dict[str, Array],
    samples: tuple[Array, Labels],
    parts: tuple[Labels, Labels],
    classes: tuple[str, ...],
    groups: Labels | None,
    bits: int | None,
) -> Source:
    """Rows of features as vectors, anything else as images."""
    (x, y), (train, test) = samples, parts
    if x.ndim == 2:
        rows = as_features(x, f"x in {path}")
        pairs = (rows[train], y[train]), (rows[test], y[test])
        return vector_source(str(path), *pairs, classes, _features(path, arrays, rows.shape[1]), groups)
    pixels, note, used = _eight_bits(path, x, bits)
    images = (pixels[train], y[train]), (pixels[test], y[test])
    return image_source(
        str(path), *images, classes, flip=False, groups=groups, note=note, bits=used, whole_groups=groups is not None
    )


def _require(path: Path, arrays: dict[str, Array], x_name: str, y_name: str) -> None:
    for name in (x_name, y_name):
        if name not in arrays:
            remedy = f"add it with numpy.savez(path, {x_name}=…, {y_name}=…)"
            raise TacitError(f"{path} has no array {name}", remedy, code="data.missing-array")


def _samples(path: Path, arrays: dict[str, Array], x_name: str) -> Array:
    """(n, d) vectors, or images in any of the three layouts as (n, c, h, w)."""
    return _arranged_samples(arrays[x_name], f"{x_name} in {path}")


def _arranged_samples(x: Array, what: str) -> Array:
    vectors = x.ndim == 2 and x.dtype.kind in "biuf"
    images = x.ndim in (3, 4) and (x.dtype in (np.uint8, np.uint16) or x.dtype.kind == "f")
    if 0 not in x.shape[1:]:
        if vectors:
            return x
        if images and x.ndim == 3:
            return x[:, None]
        if images and x.shape[1] <= MOST_CHANNELS:
            return x
        if images and x.shape[3] <= MOST_CHANNELS:
            return x.transpose(0, 3, 1, 2)
    raise TacitError(f"{what} is {_form(x)}", _FORMS, code="data.bad-image-array")


def _eight_bits(path: Path | str, x: Array, bits: int | None) -> tuple[Pixels, str, int | None]:
    """Images as uint8, a note on how they were converted, and the bits that 16-bit values were scaled from."""
    if x.dtype == np.uint8:
        return x.astype(np.uint8, copy=False), "", None
    if x.dtype == np.uint16:
        most = int(x.max(initial=0))
        fewest = next(depth for depth in DEPTHS if most < 2**depth)
        used = bits or fewest
        if most >= 2**used:
            problem = f"{path} has the value {most}, which does not fit into {used} bits"
            raise TacitError(problem, f"set data.bits = {fewest} in the config", code="data.too-few-bits")
        return _scaled(x, 2**used - 1), f"16-bit values were scaled from {used} bits.", used
    floats = x.astype(np.float64)
    if not np.isfinite(floats).all() or floats.min() < 0 or floats.max() > 1:
        problem = f"{path} has images of floats that are not all from 0 to 1"
        raise TacitError(problem, "divide them by their largest possible value", code="data.float-image-range")
    return _scaled(floats, 1), "Floats from 0 to 1 were stored as 8-bit pixels.", None


def _scaled(x: Array, white: int) -> Pixels:
    return np.rint(x.astype(np.float64) * (255 / white)).astype(np.uint8)


def _features(path: Path, arrays: dict[str, Array], count: int) -> tuple[str, ...]:
    """The names of the columns of vectors: those in the file, or x0, x1 and so on."""
    if "features" not in arrays:
        return tuple(f"x{number}" for number in range(count))
    names = tuple(str(name) for name in arrays["features"].reshape(-1))
    if len(names) != count or len(set(names)) < count:
        problem = f"features in {path} are not {count} different names"
        raise TacitError(problem, "name each column of x", code="data.bad-feature-names")
    return names


def _groups(path: Path, arrays: dict[str, Array], lengths: list[int]) -> Labels | None:
    """The group of every sample, those of the test part last; None without groups."""
    if "group" not in arrays:
        return None
    missing = len(lengths) > 1 and "group_test" not in arrays  # then no group of the test samples is a training one
    given = [arrays["group"], *([arrays["group_test"]] if len(lengths) > 1 and not missing else [])]
    for name, groups, length in zip(("group", "group_test"), given, lengths, strict=False):
        if groups.shape != (length,) or groups.dtype.kind not in "iuU":
            problem = f"{name} in {path} is {_form(groups)}"
            raise TacitError(problem, "make it one name or whole number per sample", code="data.bad-group-array")
    names = [f"{value}" for groups in given for value in groups.tolist()]
    if not all(names):
        problem = f"{path} has a sample without a group"
        raise TacitError(problem, "name one for every sample, or leave out the array", code="data.missing-group")
    numbers = group_numbers(names)
    if missing and numbers is not None:
        return np.concatenate([numbers, np.full(lengths[1], numbers.max() + 1)])
    return numbers


def _form(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _classes(path: Path, y: Array) -> tuple[str, ...]:
    """The names of the classes; numbers must be 0, 1, 2, … without a gap."""
    if y.dtype.kind == "U":
        names = {str(name).strip() for name in y.tolist()} - {""}
        if not names:
            problem = f"y in {path} is empty everywhere"
            raise TacitError(problem, "label at least some samples of every class", code="data.no-labels")
        return ordered(names)
    return tuple(map(str, range(_count_classes(path, y.astype(np.int64)))))


def _numbers(path: Path, y: Array, name: str, classes: tuple[str, ...]) -> Labels:
    """(n,) class numbers, -1 for unlabeled."""
    if y.dtype.kind == "U":
        labels = [str(label).strip() for label in y.tolist()]
        refuse_unknown(path, set(labels), classes)
        return label_numbers(labels, classes)
    numbers = y.astype(np.int64)
    unknown = numbers[(numbers < UNLABELED) | (numbers >= len(classes))]
    if len(unknown) and name == "y":
        raise TacitError(
            f"{path} has a sample of class {unknown[0]} and the federation's classes are 0 to {len(classes) - 1}, "
            f"from {classes[0]} to {classes[-1]}",
            "number its classes like that, with -1 for unlabeled",
            code="data.unknown-class",
        )
    return numbers


def _count_classes(path: Path, y: Labels) -> int:
    """The number of classes; they must be numbered 0, 1, 2, … without a gap."""
    found = np.unique(y[y != UNLABELED])
    if not len(found):
        problem = f"y in {path} is -1 everywhere"
        raise TacitError(problem, "label at least some samples of every class", code="data.no-labels")
    if found[0] < 0 or found[-1] != len(found) - 1:
        if kind := _WRAPPED.get(int(found[-1])):
            problem = f"{found[-1]} in y of {path} looks like -1 stored as {kind}"
            raise TacitError(problem, "save y as int64", code="data.unsigned-labels")
        raise TacitError(
            f"the {len(found)} classes in {path} are numbered {found[0]} to {found[-1]}",
            f"number them 0 to {len(found) - 1}, with -1 for unlabeled",
            code="data.class-numbers-with-gaps",
        )
    return len(found)


def _check_test(path: Path, x: Array, x_test: Array, y_test: Labels, classes: int) -> None:
    if x.shape[1:] != x_test.shape[1:] or x.dtype != x_test.dtype:
        problem = f"samples in {path} are {_form(x)} in x and {_form(x_test)} in x_test"
        raise TacitError(problem, "give all samples the same shape and type", code="data.different-shapes")
    if y_test.min() < 0 or y_test.max() >= classes:
        problem = f"y_test in {path} has labels outside 0 to {classes - 1}"
        raise TacitError(problem, "use only classes that y has", code="data.bad-test-labels")
