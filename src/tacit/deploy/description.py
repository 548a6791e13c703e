"""What a site must know of a federation to see its own data as everybody does, and the file that tells it."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from tacit import config as configs
from tacit.catalog import check
from tacit.config import Config
from tacit.data.augment import ImageViews
from tacit.data.scenario import Bits
from tacit.deploy.settings import missing
from tacit.errors import TacitError
from tacit.federation import Federation

Side = Annotated[int, Field(gt=0)]
_HEAD = """\
# What the hub says of this federation: what its data looks like, and the run it plans.
# For the sites: put it beside site.toml, then `tacit site check` shows what would leave the machine.

"""


@dataclass(frozen=True)
class Description:
    """How samples look and which classes there are: everything but the samples."""

    classes: tuple[str, ...]  # their names, in the order of the network's answers
    shape: tuple[Side, ...]  # of a sample: channels, height, width; of text: its length
    mean: tuple[float, ...] = ()  # per channel, subtracted from pixels scaled to 0..1; none for text
    std: tuple[Annotated[float, Field(gt=0)], ...] = ()  # by which that is divided
    flip: bool = False  # the weak view flips images
    shift: Annotated[int, Field(ge=0)] | None = None  # pixels it shifts them by at most; an eighth when not given
    bits: Bits | None = None  # that 16-bit grey images use, all of them alike; not given where nobody knows
    text: bool = False  # samples are codes of the characters in `classes`

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise _broken("classes are not two or more different names")
        if len(self.shape) != (1 if self.text else 3):
            raise _broken(f"a sample of shape {list(self.shape)} is no {'text' if self.text else 'image'}")
        channels = 0 if self.text else self.shape[0]
        if (len(self.mean), len(self.std)) != (channels, channels):
            raise _broken(f"mean and std are not {channels} numbers each, one per channel")

    @classmethod
    def of(cls, federation: Federation) -> "Description":
        """What the samples of a federation look like."""
        shape = tuple(int(side) for side in federation.pool.x.shape[1:])
        seen = federation.views
        if not isinstance(seen, ImageViews):
            return cls(federation.classes, shape, text=True)
        return cls(federation.classes, shape, seen.mean, seen.std, seen.flip, seen.pad, federation.bits)

    def to_text(self) -> str:
        """As TOML, for messages."""
        return tomli_w.dumps(_tree(self))

    @classmethod
    def from_text(cls, text: str) -> "Description":
        """From `to_text`."""
        try:
            return cls.from_tree(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise _broken(f"it is not valid TOML ({error})") from error

    @classmethod
    def from_tree(cls, tree: Any) -> "Description":
        """From settings that were read already."""
        if not isinstance(tree, dict):
            raise _broken("it is no section")
        if name := missing(cls, tree):
            raise _broken(f"it has no {name}")
        return cls(**check(cls, tree, "description"))


def federation_text(config: Config, description: Description) -> str:
    """The file `federation.toml` of a run."""
    return _HEAD + tomli_w.dumps({"description": _tree(description), "config": tomllib.loads(configs.dumps(config))})


def read_federation(path: Path) -> tuple[Config, Description]:
    """The run and the description in a file `federation.toml`."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}: ask the hub for its federation.toml and put it there")
    tree = configs.read(path)
    for name in ("description", "config"):
        if not isinstance(tree.get(name), dict):
            raise TacitError(f"{path} has no section [{name}]: ask the hub for its federation.toml again")
    return configs.make(tree["config"]), Description.from_tree(tree["description"])


def _tree(description: Description) -> dict[str, Any]:
    """Plain lists and values; what is not given is left out, since TOML has no word for it."""
    tree = asdict(description).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in tree if value not in (None, ())}


def _broken(what: str) -> TacitError:
    return TacitError(f"the description of the federation is broken, {what}: ask the hub for it again")
