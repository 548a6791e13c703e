"""DICOM files as grey or colour images; needs tacit[dicom]. Nothing but pixels leaves this module: no name, no date.

Values are scaled as the file says (slope and intercept), cut to its window if it has one and to their range otherwise,
and turned bright for what absorbs most (MONOCHROME1 stores the opposite).
"""

from importlib import import_module
from typing import IO, Any

import numpy as np
from PIL import Image

from tacit.errors import TacitError

_PREAMBLE, _MAGIC = 128, b"DICM"
SUFFIX = ".dcm"
LONGEST_HEAD = _PREAMBLE + len(_MAGIC)


def is_dicom(head: bytes) -> bool:
    """Whether a file that begins like this is DICOM."""
    return head[_PREAMBLE:LONGEST_HEAD] == _MAGIC


def read(file: IO[bytes]) -> Image.Image:
    """The image in a file, with 8 bits; refuses several frames."""
    try:
        pydicom: Any = import_module("pydicom")
        pixels: Any = import_module("pydicom.pixels")
    except ImportError:
        problem = "DICOM files need the package pydicom"
        raise TacitError(problem, "install it with pip install 'tacit[dicom]'", code="data.no-pydicom") from None
    found = pydicom.dcmread(file)
    if int(found.get("NumberOfFrames", 1) or 1) > 1:
        problem = f"a DICOM file has {int(found.NumberOfFrames)} frames"
        raise TacitError(problem, "save each frame as a file", code="data.several-frames")
    values = found.pixel_array
    photometric = str(found.get("PhotometricInterpretation", "MONOCHROME2"))
    if values.ndim == 3:
        if photometric.startswith("YBR"):
            values = pixels.convert_color_space(values, photometric, "RGB")
        return Image.fromarray(values.astype(np.uint8))
    values = np.asarray(pixels.apply_modality_lut(values, found), dtype=np.float64)
    low, high = _window(found, values)
    grey = np.rint(np.clip((values - low) / max(high - low, 1e-9), 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(255 - grey if photometric == "MONOCHROME1" else grey)


def _window(found: Any, values: Any) -> tuple[float, float]:
    """The values that become black and white: the first window of the file, or the smallest and largest value."""
    centre, width = (_first(found.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or width < 1:
        return float(values.min()), float(values.max())
    return centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2  # PS3.3 C.11.2.1.2


def _first(value: Any) -> float | None:
    """One number, or the first of several."""
    if value is None or value == "":
        return None
    several = not isinstance(value, str) and hasattr(value, "__iter__")
    return float(next(iter(value))) if several else float(value)
