"""Pictures of the test samples that a model was sure about and wrong.

They are read from the data and go into the page that asks for them, and nowhere else: a run's folder holds no samples.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from tacit.errors import TacitError
from tacit.report.evaluation_page import Mistake
from tacit.runs.cross_validation import tested
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment


def most_confident(folder: Path, count: int) -> list[Mistake]:
    """The mistakes of a run's model with the highest confidence; none if samples are no pictures."""
    found = RunDirectory(folder).predictions()
    if found is None:
        raise TacitError(
            f"{folder} has no saved outputs on its test samples",
            "leave out --mistakes, or finish the run",
            code="evaluate.no-predictions",
        )
    experiment = Experiment.reopen(folder)
    federation = experiment.job.federation
    if not federation.inputs.drawable:
        return []
    wrong = np.flatnonzero(~found.correct)
    rows = wrong[np.argsort(-found.confidence[wrong], kind="stable")][:count]
    seen = federation.views.plain(tested(experiment).x[rows])
    pictures = federation.inputs.pictures(seen, federation.views).numpy()
    return [
        Mistake(
            _png(picture),
            found.classes[found.y[row]],
            found.classes[found.predicted[row]],
            float(found.confidence[row]),
        )
        for row, picture in zip(rows, pictures, strict=True)
    ]


def _png(picture: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> bytes:
    """(h, w, channels) between 0 and 1 as a PNG file."""
    pixels = np.rint(picture * 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(data, "PNG")
    return data.getvalue()
