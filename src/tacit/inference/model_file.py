"""The file of a model: weights as safetensors, and in its metadata the description."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tacit.errors import TacitError
from tacit.inference.description import Description, NoDescriptionError
from tacit.nets import Net
from tacit.params import Params


def encode(net: Net, weights: Params, description: Description) -> bytes:
    """The content of a file; frozen tensors are in it, so that the model needs no other file."""
    tensors = {name: value.cpu().contiguous() for name, value in (weights | net.frozen_tensors()).items()}
    # One entry only: safetensors writes several in any order, and the same model must give the same bytes.
    return save(tensors, metadata={"tacit": description.to_json()})


def decode(path: Path, remedy: str) -> tuple[Params, Description]:
    """All tensors and the description; `remedy` says how to get a file that can be read."""
    try:
        with safe_open(path, "pt") as file:
            description = Description.from_json((file.metadata() or {}).get("tacit", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118
    except NoDescriptionError:
        problem = f"{path} comes from an earlier version of Tacit, which did not save how inputs are normalised"
        raise TacitError(problem, remedy, code="model.no-description") from None
    except FileNotFoundError:
        raise TacitError(f"there is no file {path}", remedy, code="model.no-file") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise TacitError(f"cannot read the model {path} ({error})", remedy, code="model.broken") from error
