"""Read the pickles of CIFAR, the only pickles that tacit reads.

A pickle is a program: it may call whatever it can name. Two barriers make these safe to read. `benchmarks` compares
every file with the MD5 of the original first, and no way is known to make another file with a given MD5. Then this
unpickler resolves only the three names that a numpy array needs. None of them imports or runs anything that the pickle
brings; every other name is refused before it is looked up.
"""

import io
import pickle
from typing import Any

import numpy as np

_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # its place in numpy 1, when CIFAR was made
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows three names."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the three, or an error."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _NAMES[module, name]


def read(raw: bytes) -> Any:
    """The value in a pickle of plain data and numpy arrays, Python 2's strings as text; ValueError for any other."""
    try:
        return _Unpickler(io.BytesIO(raw), encoding="latin-1").load()
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split())  # names in a pickle may hold line breaks
        raise ValueError(f"not a pickle of plain data: {reason}") from None
