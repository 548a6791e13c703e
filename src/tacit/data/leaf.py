"""Data that comes by the people who wrote or spoke it: FEMNIST and Shakespeare, as LEAF prepares them.

LEAF (github.com/TalwalkarLab/leaf) writes folders `train` and `test` of JSON files. Shakespeare may also be one
plain text, which can be downloaded.
"""

import re
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.data import formats
from tacit.data.arrays import Labels, Pair, Pixels, Source, image_source, text_source
from tacit.data.fetch import broken, data_folder, fetch, local, verify
from tacit.data.known import REMOTES, SUMS
from tacit.errors import TacitError

WINDOW = 80  # characters before the one to predict
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"  # LEAF's
_SIDE = 28
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_TEXT = "shakespeare/tinyshakespeare_input.txt"
_TEST_SHARE = 5  # the last fifth of what each speaker says is for testing
_SPEAKER = re.compile(r"([A-Z][A-Za-z',&. -]*):\n")

Convert = Callable[[Path, list[object], list[object]], Pair]
Samples = tuple[Pixels, Labels, Labels]  # inputs, labels, and the number of the user each belongs to


def femnist() -> Source:
    """Handwritten digits and letters by writer, 28×28 grey, 62 classes, prepared with LEAF."""
    folder = local("femnist/data/train", "femnist/train")
    if folder is None:
        raise TacitError(
            "femnist has no direct download: run data/femnist/preprocess.sh of github.com/TalwalkarLab/leaf"
            f" and put its folders train and test into {data_folder() / 'femnist'}"
        )
    (x, y, groups), (x_test, y_test, _) = (_read(path, _pictures) for path in _parts(folder))
    return image_source("femnist", (x, y), (x_test, y_test), _CHARACTERS, flip=False, groups=groups)


def shakespeare() -> Source:
    """The character that follows 80 others in Shakespeare's plays, by speaker (LEAF's, or one plain text).

    The folders `shakespeare/train` and `shakespeare/test` of LEAF if they are there, with its alphabet of 80 characters
    (others count as a space). Otherwise the plain text of 1.1 MB with the characters that occur in it: every window
    of what one speaker says, one after the other, so each character is stored 80 times (some 80 MB); the last fifth
    of each speaker's text is for testing, no window reaches from one part into the other, and speakers whose last
    fifth is shorter than a window are left out. The text does not name the plays, so a First Citizen of two plays
    is one speaker.
    """
    if folder := local("shakespeare/data/train", "shakespeare/train"):
        (x, y, groups), (x_test, y_test, _) = (_read(path, _sentences) for path in _parts(folder))
        return text_source("shakespeare", (x, y), (x_test, y_test), tuple(ALPHABET), groups)
    path = local(_TEXT, "shakespeare/input.txt") or fetch(REMOTES[_TEXT])
    raw = formats.content(path)
    verify(path, raw, SUMS.get(_TEXT))
    return _from_text(path, raw.decode("latin-1"))


def speeches(text: str) -> dict[str, str]:
    """What each speaker says in the whole text, in its order; a line `Name:` begins a speech, an empty one ends it."""
    said: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text):
        if begin := _SPEAKER.match(block):
            said.setdefault(begin[1], []).append(block[begin.end() :].rstrip("\n"))
    return {name: "\n".join(parts) for name, parts in said.items()}


def _from_text(path: Path, text: str) -> Source:
    said = [words for words in speeches(text).values() if len(words) // _TEST_SHARE > WINDOW]
    if not said:
        raise broken(path, f"has no speaker who says more than {WINDOW * _TEST_SHARE} characters")
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
    """(n, 80) and (n,): every stretch of 80 characters that has one after it, and that one."""
    views = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)
    return views[:, :WINDOW], views[:, WINDOW].astype(np.int64)


def _joined(parts: list[Pair]) -> Pair:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _codes(text: str, alphabet: str) -> Pixels:
    """The place of each character in the alphabet; a stranger counts as a space."""
    table = np.full(256, max(alphabet.find(" "), 0), dtype=np.uint8)
    table[np.frombuffer(alphabet.encode("latin-1"), np.uint8)] = np.arange(len(alphabet))
    return table[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]


def _parts(train: Path) -> tuple[Path, Path]:
    test = train.with_name("test")
    if not test.is_dir():
        raise TacitError(f"there is no folder {test} beside {train.name}: put the one that LEAF made there")
    return train, test


def _read(folder: Path, convert: Convert) -> Samples:
    """The samples of all users in a folder; users are numbered in the order they come in."""
    numbers: dict[str, int] = {}
    parts, groups = [], []
    for path, user, inputs, labels in formats.leaf(folder):
        if inputs:
            parts.append(convert(path, inputs, labels))
            groups += [numbers.setdefault(user, len(numbers))] * len(inputs)
    if not parts:
        raise broken(folder, "has no samples")
    return *_joined(parts), np.array(groups, dtype=np.int64)


def _pictures(path: Path, inputs: list[object], labels: list[object]) -> Pair:
    """Pixels 0..1, white paper being 1, as bytes."""
    try:
        x, y = np.array(inputs, dtype=np.float32), np.array(labels, dtype=np.int64)
    except (ValueError, TypeError):
        raise broken(path, "has inputs that are no rows of numbers") from None
    if x.shape != (len(y), _SIDE * _SIDE) or not 0 <= x.min() <= x.max() <= 1:
        raise broken(path, f"has inputs that are not {_SIDE * _SIDE} numbers from 0 to 1")
    pixels = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    return formats.checked(path, pixels, y, pixels.shape, len(_CHARACTERS))


def _sentences(path: Path, inputs: list[object], labels: list[object]) -> Pair:
    texts = [text for text in inputs if isinstance(text, str) and len(text) == WINDOW]
    nexts = [text for text in labels if isinstance(text, str) and len(text) == 1]
    if len(texts) != len(inputs) or len(nexts) != len(labels):
        raise broken(path, f"has samples that are not {WINDOW} characters and the one after them")
    return _codes("".join(texts), ALPHABET).reshape(-1, WINDOW), _codes("".join(nexts), ALPHABET).astype(np.int64)
