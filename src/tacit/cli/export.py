"""`tacit export`: the model as a file for other programs, checked against the model itself."""

from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from tacit.errors import unknown
from tacit.inference import calibration
from tacit.inference.export import FORMATS, about_inputs
from tacit.inference.export import export as write
from tacit.inference.labeled import Labeled, labeled_samples
from tacit.inference.model import Model
from tacit.inference.reference import measure, some_rows
from tacit.runs.followers.progress import say, say_wrapped
from tacit.runs.result import saved_model

CHECKED = 64  # samples that the file is compared on


def export(
    run: Path,
    form: str,
    out: Path | None,
    console: Console,
    *,
    calibrate: str | None,
    check: str | None,
    import_net: bool,
) -> None:
    """Write the file, and print how far it differs from the model."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    model = saved_model.load(run, import_net=import_net)
    found = None if calibrate is None else labeled_samples(model, calibrate)
    if found is not None:
        model = _calibrated(model, found, console)
    x, what = _samples(model, found, check)
    path = out or Path(f"model.{form}")
    done = write(model, path, form, x)
    if done.difference is None:
        say_wrapped("the file was not tried: onnxruntime is not installed (`pip install 'tacit[onnx]'`)", console)
    else:
        say(f"largest difference of a probability on {len(x)} {what} samples: {done.difference:.1e}", console)
    if form != "safetensors":
        say_wrapped(f"input: {about_inputs(model)}", console)
    say(f"exported: {path}", console)


def _calibrated(model: Model, given: Labeled, console: Console) -> Model:
    """The model at the temperature that fits labeled samples, with the confidence that it has there."""
    logits = model.logits(given.x)
    before, temperature = model.description.temperature, calibration.fit_temperature(logits, given.y)
    losses = [calibration.log_loss(logits, given.y, each) for each in (before, temperature)]
    rows = some_rows(len(given.x))
    probabilities = torch.softmax(logits[rows] / temperature, dim=1)
    reference = measure(model.reader.levels(given.x[rows]), probabilities)
    change = f"log loss {losses[0]:.3f} → {losses[1]:.3f}"
    say(f"temperature {temperature:g} from {len(given.y):,} labeled samples: {change}", console)
    return Model(
        model.architecture, model.weights, replace(model.description, temperature=temperature, reference=reference)
    )


def _samples(model: Model, given: Labeled | None, check: str | None) -> tuple[Tensor, str]:
    """Samples to compare on, and what they are: real ones if there are any, else invented ones."""
    if check is not None:
        return model.stored(Path(check))[:CHECKED], "given"
    if given is not None:
        return given.x[:CHECKED], "given"
    return model.description.inputs.invent(CHECKED, torch.Generator().manual_seed(0)), "invented"
