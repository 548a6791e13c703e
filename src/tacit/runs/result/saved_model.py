"""The model of a run as a file that stands alone: what is written at the end of a run, and how it is opened again."""

from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch.nn import functional

from tacit import __version__, nets, params
from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.inference import model_file, reference
from tacit.inference.description import Description
from tacit.inference.model import Model
from tacit.inference.readers import reader_for
from tacit.inference.reference import Reference
from tacit.params import Params
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.net.config import skeleton_of
from tacit.runs.net.options import check_options

AT_ONCE = 50  # samples in one forward pass: large images in a large network take much memory
EXPORTED = (".onnx", ".pt2")  # files of models that other programs run


def encode(config: Config, job: Job, model: Params, card: str = "") -> bytes:
    """The content of the file of a model."""
    cpu = {name: value.cpu() for name, value in model.items()}
    return model_file.encode(job.net, cpu, replace(describe(config, job, cpu), card=card))


def describe(config: Config, job: Job, model: Params) -> Description:
    """What the file says about the model."""
    federation = job.federation
    return Description(
        net=asdict(config.net),
        classes=federation.classes,
        inputs=federation.inputs,
        method=config.method_name,
        version=__version__,
        pretrained=job.net.pretrained,
        reference=_reference(job, model),
    )


def is_described(path: Path) -> bool:
    """Whether the file of a model says how to use it."""
    try:
        with safe_open(path, "pt") as file:
            return '"schema"' in (file.metadata() or {}).get("tacit", "")
    except (OSError, SafetensorError):
        return False


def load(path: Path, *, import_net: bool = False) -> Model:
    """Open the model of a run, or a file of a model; see `tacit.load`."""
    file, remedy = _file(path)
    tensors, about = model_file.decode(file, remedy)
    if path.is_dir():  # the card in a run's folder also tells how each class fares
        about = replace(about, card=RunDirectory(path).card() or about.card)
    name = str(about.net["name"])
    if ":" in name and not import_net:
        raise TacitError(
            f"{path} has your own network {name}, and importing it runs its code",
            "allow that with --import-net (in Python: import_net=True)",
            code="model.needs-import",
        )
    try:
        options = check_options(name, about.net["options"])
        classes, inputs = len(about.classes), about.inputs
        start = skeleton_of(dict(about.net))
        form = (about.net["norm"], about.net["width"], options, inputs, start, bool(about.net.get("one_vs_all")))
        net = nets.build(name, inputs.shape, classes, *form)
        net.load_frozen({name: tensors[name] for name in net.frozen})
        model = Model(net, {name: tensors[name] for name in net.names}, about)
        model.logits(inputs.invent(1, torch.Generator().manual_seed(0)))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problem = f"the weights in {file} do not fit the network {name} ({reason})"
        raise TacitError(
            problem, "use the version of the network it was trained with", code="model.other-net"
        ) from None
    return model


def _file(path: Path) -> tuple[Path, str]:
    """The file of a model, and what to do if it cannot be read."""
    if path.suffix.lower() in EXPORTED:
        raise TacitError(
            f"{path} is for other programs",
            "give the folder of the run, or export it with --format safetensors",
            code="model.exported",
        )
    if not path.is_dir():
        parent = RunDirectory(path.parent)
        return path, _rebuild(parent) if parent.config_file.exists() else "give the folder of a run or its model's file"
    directory = RunDirectory(path)
    if not directory.model_file.exists():
        directory.config()  # refuses a folder that holds no run
        if directory.finished_rounds() < directory.total_rounds():
            problem, remedy = f"{path} is not finished", f"continue it with `{directory.resume_command}`"
            raise TacitError(problem, remedy, code="run.not-finished")
        records = directory.rounds()
        if records and records[-1].accuracy is None:
            method = str(directory.config()["method"]["name"])
            problem = f"{path} has no common model: with {method} each client has its own"
            raise TacitError(problem, "use another method to get one", code="run.no-common-model")
    return directory.model_file, _rebuild(directory)


def _rebuild(directory: RunDirectory) -> str:
    return f"to rebuild the model, run `{directory.resume_command}` on the machine with the training data"


@torch.no_grad()
def _reference(job: Job, model: Params) -> Reference | None:
    """Statistics of the test samples, which the server holds also where all other data is elsewhere."""
    test, inputs = job.federation.test, job.federation.inputs
    if not len(test):
        return None
    x = test.x[reference.some_rows(len(test))]
    weights, views = params.channels_last(model), job.federation.views
    logits = torch.cat([job.net.apply(weights, views.plain(part)) for part in x.split(AT_ONCE)])
    return reference.measure(reader_for(inputs).levels(x), functional.softmax(logits, dim=1))
