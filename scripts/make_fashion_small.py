"""Draw the small Fashion-MNIST subset that ships with the package.

    python scripts/make_fashion_small.py FOLDER

FOLDER holds the four original files of Fashion-MNIST (`train-images-idx3-ubyte.gz`, …). SEED fixes the draw, so the
same folder always gives the same file.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 2017  # the year of Fashion-MNIST
CLASSES = 10
TRAIN_PER_CLASS = 600
TEST_PER_CLASS = 100
TARGET = Path(__file__).parents[1] / "src" / "tacit" / "data" / "fashion_small.npz"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes.

    The format: two zero bytes, the type (8 = unsigned byte), the number of axes, each length as a big-endian
    32-bit integer, then the values.
    """
    raw = gzip.decompress(path.read_bytes())
    zeros, kind, axes = raw[:2], raw[2], raw[3]
    if zeros != b"\0\0" or kind != 8:
        raise SystemExit(f"{path} is not an IDX file of unsigned bytes; download it again")
    shape = np.frombuffer(raw, ">u4", count=axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(*map(int, shape))


def draw(y: NDArray[np.uint8], per_class: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `per_class` random samples of every class; ascending positions."""
    chosen = [rng.choice(np.flatnonzero(y == c), per_class, replace=False) for c in range(CLASSES)]
    return np.sort(np.concatenate(chosen))


def subset(folder: Path, part: str, per_class: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], ...]:
    """Draw images and labels from one part, `train` or `t10k`."""
    x = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    y = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    index = draw(y, per_class, rng)
    return x[index], y[index]


def main(folder: Path) -> None:
    """Write TARGET from the files in `folder`."""
    rng = np.random.default_rng(SEED)
    x_train, y_train = subset(folder, "train", TRAIN_PER_CLASS, rng)
    x_test, y_test = subset(folder, "t10k", TEST_PER_CLASS, rng)
    np.savez_compressed(TARGET, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} FOLDER_WITH_FASHION_MNIST")
    main(Path(sys.argv[1]))
