"""A model for other programs: ONNX, PyTorch's .pt2, or safetensors. Every file is tried once before it counts."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import TacitError
from tacit.inference import model_file
from tacit.inference.model import Model
from tacit.process import one_thread
from tacit.storage import replacing

FORMATS = ("onnx", "pt2", "safetensors")
TOLERANCE = 1e-4  # largest difference of a probability between a file and the model
INPUT, OUTPUT = "input", "probabilities"

Run = Callable[[Tensor], Tensor]  # stored samples (n, …) -> probabilities (n, classes)


@dataclass(frozen=True)
class Exported:
    """A file that was written, and its largest difference from the model; None if it could not be tried here."""

    path: Path
    difference: float | None


class Deployed(nn.Module):
    """A model in one graph: stored samples in, such as uint8 pixels, probabilities out."""

    def __init__(self, model: Model) -> None:
        """The normalisation, the network and the softmax of a model."""
        super().__init__()
        self.net, self._views, self._temperature = model.net, model.views, model.description.temperature

    def forward(self, x: Tensor) -> Tensor:
        """(n, …) -> (n, classes)."""
        return functional.softmax(self.net(self._views.plain(x)) / self._temperature, dim=1)


def export(model: Model, path: Path, form: str, samples: Tensor) -> Exported:
    """Write a model in one of FORMATS, and compare it with the model on stored samples (n, …) before it counts."""
    write, open_file = _FORMS[form]
    with replacing(path) as partial, one_thread():
        write(model, partial, samples)
        run = open_file(model, partial)
        difference = None if run is None else max(_difference(model, run, part) for part in (samples, samples[:1]))
        if difference is not None and not difference <= TOLERANCE:
            raise TacitError(
                f"the {form} file differs from the model by {difference:.1e} in a probability, more than {TOLERANCE:g}",
                "export it in another format",
                code="export.differs",
            )
    return Exported(path, difference)


def about_inputs(model: Model) -> str:
    """How to make the input of an exported graph, in words."""
    return model.description.inputs.export_note


def _difference(model: Model, run: Run, x: Tensor) -> float:
    """The largest difference of a probability; NaN counts as different."""
    return float((run(x) - model.probabilities(x)).abs().max())


# --- ONNX -------------------------------------------------------------------------------------------------------------


def _write_onnx(model: Model, path: Path, samples: Tensor) -> None:
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        problem = f"ONNX files need the package {missing[0]}"
        raise TacitError(problem, "run `pip install 'tacit[onnx]'`", code="export.needs-onnx")
    with _quiet():
        program = torch.onnx.export(
            _graph(model, samples), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
        )
    if program is None:
        raise TypeError("torch.onnx.export returned no program")
    proto = program.model_proto
    _name_batch(proto)
    for name, value in _metadata(model).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = name, value
    path.write_bytes(proto.SerializeToString())


def _name_batch(proto: Any) -> None:
    """Call the free dimension `batch` where a reader sees it."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_param = "batch"


def _open_onnx(model: Model, path: Path) -> Run | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {INPUT: x.numpy()})[0])


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _write_pt2(model: Model, path: Path, samples: Tensor) -> None:
    with _quiet(), path.open("wb") as file:
        torch.export.save(_graph(model, samples), file, extra_files={"tacit.json": json.dumps(_metadata(model))})


def _open_pt2(model: Model, path: Path) -> Run:
    with _quiet(), path.open("rb") as file:
        module = torch.export.load(file).module()
    return torch.no_grad()(module)


def _graph(model: Model, samples: Tensor) -> torch.export.ExportedProgram:
    """The model as a graph for any number of samples."""
    two = torch.cat([samples[:1], samples[:1]])  # with one, torch would take the number for a constant
    try:
        return torch.export.export(
            Deployed(model).eval(), (two,), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}}
        )
    except Exception as error:  # a user's network may do what no graph can express
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        problem = f"the network {model.description.net['name']} cannot become a graph ({reason[:200]})"
        raise TacitError(problem, "export it as safetensors", code="export.no-graph") from error


# --- safetensors ------------------------------------------------------------------------------------------------------


def _write_safetensors(model: Model, path: Path, samples: Tensor) -> None:
    path.write_bytes(model_file.encode(model.architecture, model.weights, model.description))


def _open_safetensors(model: Model, path: Path) -> Run:
    tensors, about = model_file.decode(path, "")
    again = Model(model.architecture, {name: tensors[name] for name in model.weights}, about)
    return again.probabilities


_FORMS: dict[str, tuple[Callable[[Model, Path, Tensor], None], Callable[[Model, Path], Run | None]]] = {
    "onnx": (_write_onnx, _open_onnx),
    "pt2": (_write_pt2, _open_pt2),
    "safetensors": (_write_safetensors, _open_safetensors),
}


def _metadata(model: Model) -> dict[str, str]:
    """What the file of a graph says about it."""
    return {
        "classes": json.dumps(list(model.classes)),
        "input": about_inputs(model),
        "output": "the probability of each class",
        "tacit": model.description.to_json(),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
