"""What a run remembers to choose the model it saves, and how that is stored beside a checkpoint."""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

import torch

from tacit.engines.wire import Codec, WireError
from tacit.errors import TacitError
from tacit.learn.central import Recipe
from tacit.params import Params
from tacit.storage import on_disk, sync_folder, write_durably

Select = Literal["last", "best", "average", "guard"]
AVERAGED = 5  # evaluated rounds whose models `average` takes


@dataclass(frozen=True)
class SelectionRule:
    """Which model a run saves, and when it stops early; decided on validation samples only."""

    select: Select = "last"
    patience: int | None = None  # evaluations without a gain after which the run stops
    recipes: tuple[Recipe, ...] = ()  # ways to train the guard's reference, the best of which counts

    @property
    def remembers(self) -> bool:
        """Whether it depends on earlier rounds."""
        return self.select != "last" or self.patience is not None

    @property
    def needs_validation(self) -> bool:
        """Whether it cannot do without validation samples."""
        return self.select in ("best", "average") or self.patience is not None


@dataclass(frozen=True)
class Judged:
    """A model and how it does on the validation samples."""

    model: Params
    round: int  # after which it was the common model; -1: trained on the server's labels only
    right: int
    loss: float  # mean
    count: int = 0  # of the samples; 0: it is always the same, that of the validation samples

    @property
    def rank(self) -> tuple[float, float]:
        """To compare models: samples that are right, then the loss."""
        return self.right / (self.count or 1), -self.loss


@dataclass(frozen=True)
class Chosen:
    """The model that was chosen, why, and what the clients counted."""

    model: Params
    what: str
    why: str
    right: int
    count: int


@dataclass(frozen=True)
class Selection:
    """What is remembered from round to round."""

    best: Judged | None = None
    recent: list[Params] = field(default_factory=list)  # of the last evaluated rounds, for `average`
    waited: int = 0  # evaluations since more validation samples were right than ever before
    reference: Judged | None = None  # the guard's: trained on the server's labels only
    level: bool = False  # some round has been level with the reference
    in_a_row: int = 0  # rounds that were rejected since one was accepted
    rejected: int = 0  # rounds that were rejected
    stopped: str = ""  # why the run ends before its last round
    chosen: Chosen | None = None  # the model to save, if clients judged it: they are not asked again


_CODEC = Codec({kind.__name__: kind for kind in (Judged, Chosen, Selection)})


def store(folder: Path, round: int, selection: Selection) -> None:
    """Write it for the checkpoint after this round, which must be saved next; older ones go with their states."""
    place = folder / "selection"
    data = _CODEC.encode(selection)
    with on_disk(place):
        place.mkdir(parents=True, exist_ok=True)
        write_durably(place / str(round), sha256(data).hexdigest().encode() + data)
        sync_folder(place)
        for path in place.iterdir():
            if path.name != str(round) and not (folder / f"state.{path.name}").exists():
                path.unlink()


def restore(folder: Path, round: int, device: torch.device) -> Selection:
    """What was remembered at the checkpoint after this round."""
    path = folder / "selection" / str(round)
    try:
        data = path.read_bytes()
        if sha256(data[64:]).hexdigest().encode() != data[:64]:
            raise ValueError("it was changed")
        found = _CODEC.decode(data[64:], device)
        if not isinstance(found, Selection):
            raise ValueError("it holds something else")
    except (OSError, ValueError, WireError) as error:
        raise TacitError(
            f"cannot read {path} ({error})", "start the run again in another folder", code="run.broken-checkpoint"
        ) from error
    return found
