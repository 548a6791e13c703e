"""Data grouped by writer or speaker: FEMNIST and Shakespeare, as LEAF prepares them.

LEAF (github.com/TalwalkarLab/leaf) writes folders `train` and `test` of JSON files. Shakespeare can also be read from
a plain text, which is downloaded.
"""

import re
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.data.inputs import CharacterInputs
from tacit.data.sources import formats
from tacit.data.sources.arrays import Labels, Pair, Pixels, Source, image_source, text_source
from tacit.data.sources.fetch import broken, data_folder, fetch, local, verify
from tacit.data.sources.known import REMOTES, SUMS
from tacit.errors import TacitError

WINDOW = 80  # characters before the one to predict
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"  # LEAF's
_SIDE = 28
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_TEXT = "shakespeare/tinyshakespeare_input.txt"
_TEST_SHARE = 5  # the last fifth of each speaker's text is for testing
_SPEAKER = re.compile(r"([A-Z][A-Za-z',&. -]*):\n")

Convert = Callable[[Path, list[object], list[object]], Pair]
Samples = tuple[Pixels, Labels, Labels]  # inputs, labels, and the number of the user each belongs to


def femnist() -> Source:
    """Handwritten digits and letters by writer, 28×28 grey, 62 classes, prepared with LEAF."""
    folder = local("femnist/data/train", "femnist/train")
    if folder is None:
        raise TacitError(
            "femnist has no direct download",
            "run data/femnist/preprocess.sh of github.com/TalwalkarLab/leaf and put its folders train and test into"
            f" {data_folder() / 'femnist'}",
            code="data.manual-download",
        )
    (x, y, groups), (x_test, y_test, _) = (_read(path, _pictures) for path in _parts(folder))
    return image_source("femnist", (x, y), (x_test, y_test), _CHARACTERS, flip=False, groups=groups)


def shakespeare() -> Source:
    """The next character after 80 characters of Shakespeare's plays, by speaker (from LEAF, or from a plain text).

    LEAF's folders `shakespeare/train` and `shakespeare/test` are used if they exist, with LEAF's alphabet of 80
    characters (others count as a space). Otherwise the samples are all windows of a plain text of 1.1 MB, speaker by
    speaker, with the characters that occur in it. Each character is stored 80 times (some 80 MB). The last fifth of
    each speaker's text is for testing and no window crosses into it; speakers whose last fifth is shorter than a window
    are left out. The text does not name the plays, so a First Citizen of two plays is one speaker.
    """
    if folder := local("shakespeare/data/train", "shakespeare/train"):
        (x, y, groups), (x_test, y_test, _) = (_read(path, _sentences) for path in _parts(folder))
        return text_source("shakespeare", (x, y), (x_test, y_test), tuple(ALPHABET), groups)
    path = local(_TEXT, "shakespeare/input.txt") or fetch(REMOTES[_TEXT])
    raw = formats.content(path)
    verify(path, raw, SUMS.get(_TEXT))
    return _from_text(path, raw.decode("latin-1"))


def speeches(text: str) -> dict[str, str]:
    """The text of each speaker, in order; a line `Name:` begins a speech, an empty line ends it."""
    said: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text):
        if begin := _SPEAKER.match(block):
            said.setdefault(begin[1], []).append(block[begin.end() :].rstrip("\n"))
    return {name: "\n".join(parts) for name, parts in said.items()}


def _from_text(path: Path, text: str) -> Source:
    said = [words for words in speeches(text).values() if len(words) // _TEST_SHARE > WINDOW]
    if not said:
        raise broken(path, f"has no speaker with more than {WINDOW * _TEST_SHARE} characters", code="data.no-samples")
    alphabet = "".join(sorted(set("".join(said))))
    train, test = [], []
    for words in said:
        codes = _codes(words, alphabet)
        cut = len(codes) - len(codes) // _TEST_SHARE
        train.append(_windows(codes[:cut]))
        test.append(_windows(codes[cut:]))
    groups = np.repeat(np.arange(len(said)), [len(y) for _, y in train])
    return text_source("shakespeare", _joined(train), _joined(test), tuple(alphabet), groups)


def _windows(codes: Pixels) -> Pair:
    """(n, 80) and (n,): every window of 80 characters, and the character after it."""
    views = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)
    return views[:, :WINDOW], views[:, WINDOW].astype(np.int64)


def _joined(parts: list[Pair]) -> Pair:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _codes(text: str, alphabet: str) -> Pixels:
    """The position of each character in the alphabet; an unknown character counts as a space."""
    table = np.full(256, max(alphabet.find(" "), 0), dtype=np.uint8)
    table[np.frombuffer(alphabet.encode("latin-1"), np.uint8)] = np.arange(len(alphabet))
    return table[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]


def _parts(train: Path) -> tuple[Path, Path]:
    test = train.with_name("test")
    if not test.is_dir():
        problem = f"there is no folder {test} next to {train.name}"
        raise TacitError(problem, "put the one that LEAF made there", code="data.no-test-folder")
    return train, test


def _read(folder: Path, convert: Convert) -> Samples:
    """The samples of all users in a folder; users are numbered in order of appearance."""
    numbers: dict[str, int] = {}
    parts, groups = [], []
    for path, user, inputs, labels in formats.leaf(folder):
        if inputs:
            parts.append(convert(path, inputs, labels))
            groups += [numbers.setdefault(user, len(numbers))] * len(inputs)
    if not parts:
        raise broken(folder, "has no samples", code="data.no-samples")
    return *_joined(parts), np.array(groups, dtype=np.int64)


def _pictures(path: Path, inputs: list[object], labels: list[object]) -> Pair:
    """Pixels from 0 to 1 (white paper) as bytes."""
    try:
        x, y = np.array(inputs, dtype=np.float32), np.array(labels, dtype=np.int64)
    except (ValueError, TypeError):
        raise broken(path, "has inputs that are not rows of numbers", code="data.wrong-format") from None
    if x.shape != (len(y), _SIDE * _SIDE) or not 0 <= x.min() <= x.max() <= 1:
        raise broken(path, f"has inputs that are not {_SIDE * _SIDE} numbers from 0 to 1", code="data.wrong-format")
    pixels = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    return formats.checked(path, pixels, y, pixels.shape, len(_CHARACTERS))


def _sentences(path: Path, inputs: list[object], labels: list[object]) -> Pair:
    texts = [text for text in inputs if isinstance(text, str) and len(text) == WINDOW]
    nexts = [text for text in labels if isinstance(text, str) and len(text) == 1]
    if len(texts) != len(inputs) or len(nexts) != len(labels):
        raise broken(path, f"has samples that are not {WINDOW} characters and one more", code="data.wrong-format")
    return _codes("".join(texts), ALPHABET).reshape(-1, WINDOW), _codes("".join(nexts), ALPHABET).astype(np.int64)


SOURCES = {"femnist": femnist, "shakespeare": shakespeare}
KINDS = {"shakespeare": CharacterInputs}
