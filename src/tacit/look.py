"""Look before you train: who holds which classes and labels, as a table and as figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from tacit.config import Config
from tacit.data import partition, scenario
from tacit.data.partition import Indices
from tacit.data.sources import Source
from tacit.errors import TacitError, unknown
from tacit.prepare import build_data
from tacit.random import Streams
from tacit.report import federation, plots
from tacit.report.federation import Images
from tacit.report.holdings import Holdings, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = tuple(plots.UNDATED)
COLUMNS = 8  # samples in the grid
WINDOWS = 3  # of text


@dataclass(frozen=True, eq=False)
class Look:
    """The data of a config, dealt and counted; nothing is trained."""

    config: Config
    source: Source
    split: scenario.Split
    held: Holdings

    @classmethod
    def at(cls, config: Config) -> "Look":
        """Load and deal what the config names."""
        source, split = build_data(config)
        labeled, unlabeled = scenario.counts(source.y.numpy(), len(source.classes), split)
        return cls(config, source, split, Holdings(labeled, unlabeled, source.classes))

    @property
    def name(self) -> str:
        """The data set, or the last part of its path, short enough for a title."""
        return federation.shortened(Path(self.config.data.name).name, 30)

    @property
    def heterogeneity(self) -> float:
        """R of the clients, over the samples whose class is known."""
        return partition.heterogeneity(self.held.all[:, :-1])

    @property
    def server(self) -> Indices:
        """(classes,) labels of the server."""
        return np.bincount(self.source.y.numpy()[self.split.server], minlength=len(self.source.classes))


def show(config: Config, folder: Path, form: str, console: Console) -> None:
    """Print what the server and the clients have, and draw it into a folder that is new or empty."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    _refuse_full(folder)
    look = Look.at(config)
    written = write(look, folder, form)
    tell(look, console)
    for path in written:
        console.print(f"figure: {path}", highlight=False, markup=False, soft_wrap=True)


def tell(look: Look, console: Console) -> None:
    """Print what the server and the clients have."""
    lines, meaning = table(look.held, console.width)
    for sentence in (*about(look), ""):
        console.print(Text(sentence))
    for line in lines:
        console.print(line, soft_wrap=True)
    for sentence in (*notes(look, meaning), ""):
        console.print(Text(sentence))
    for text in windows(look, console.width) if look.source.text else []:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def write(look: Look, folder: Path, form: str) -> list[Path]:
    """Draw the heat map and, of images, the samples; says which files were written."""
    figures = {"partition": heat_map(look)}
    if not look.source.text:
        figures["samples"] = sample_grid(look)
    paths = {name: folder / f"{name}.{form}" for name in figures}
    for name, figure in figures.items():
        plots.save(figure, paths[name])
    return list(paths.values())


# --- what is said -----------------------------------------------------------------------------------------------------


def about(look: Look) -> list[str]:
    """The data set, the server and the clients, a sentence each."""
    sentences = (_data(look), _server(look), _clients(look), _shared(look), _stream(look))
    return [sentence for sentence in sentences if sentence]


def notes(look: Look, meaning: str) -> list[str]:
    """What the table means, and R."""
    held = look.held
    hidden = " Unlabeled samples are counted by their true class, which no client sees."
    simulated = hidden if held.unlabeled[:, :-1].any() else ""
    unknown = f" Nobody knows the class of {held.all[:, -1].sum():,} samples (?)." if held.unknown else ""
    over = " over the samples whose class is known" if held.unknown else ""
    distance = "mean distance between the classes of two clients: 0 all alike, 1 nothing in common"
    return [f"{meaning}{simulated}{unknown}", f"R = {look.heterogeneity:.2f}{over} ({distance})"]


def windows(look: Look, width: int) -> list[str]:
    """A few windows of text, each with the character that follows it, as they are and in the strong view."""
    chosen = _chosen(look)[:WINDOWS]
    views, x = scenario.views(look.source, look.config.data), look.source.x[chosen]
    strong = views.strong(x, Streams(look.config.seed).at("look", round=1))
    lines = []
    for row, after in enumerate(look.source.y[chosen].tolist()):
        follows = repr(look.source.classes[after])
        for name, codes in (("plain", views.plain(x)[row]), ("strong", strong[row])):
            text = "".join(look.source.classes[code] for code in codes.tolist()).replace("\n", "\\n")
            room = width - len(f"{name:6}  → {follows}")
            lines.append(f"{name:6} {text if len(text) <= room else '…' + text[1 - room :]} → {follows}")
    return [*lines, ""]


def _data(look: Look) -> str:
    source, split, names = look.source, look.split, len(look.source.classes)
    used = len(np.unique(np.concatenate([*split.clients, split.server, split.validation, split.test])))
    unused = f" {len(source.y) - used:,} of them are not used." if used < len(source.y) else ""
    if source.text:
        length = source.x.shape[1]
        return f"{look.name}: {len(source.y):,} windows of {length} characters, {names} classes: what follows.{unused}"
    channels, high, wide = source.x.shape[1:]
    color = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return f"{look.name}: {len(source.y):,} images, {high}×{wide} {color}, {names} classes.{unused}"


def _server(look: Look) -> str:
    tests = len(look.split.test) or len(look.source.y_test)
    labels = _number(len(look.split.server), "label")
    if look.server.any():
        labels += f" ({_range(look.server)} per class)"
    return (
        f"The server has {labels}, {_number(len(look.split.validation), 'sample')} for validation "
        f"and {tests:,} for testing."
    )


def _clients(look: Look) -> str:
    labels = look.held.labeled.sum(axis=1)
    samples = _range(look.held.all.sum(axis=1))
    sizes = f"{len(labels):,} clients ({look.config.data.partition}) hold {samples} samples each"
    if not labels.any():
        return f"{sizes} and no label."
    if not look.held.unlabeled.any():
        return f"{sizes}, all of them labeled."
    if labels.all():
        return f"{sizes}, {_range(labels)} of them labeled."
    return f"{sizes}; {(labels > 0).sum():,} clients show labels, {_range(labels[labels > 0])} each."


def _shared(look: Look) -> str:
    shared = len(look.split.shared)
    return f"Every client has a copy of the same {_number(shared, 'labeled sample')}." if shared else ""


def _stream(look: Look) -> str:
    """How many samples come in each step."""
    arrival = look.split.arrival
    if arrival is None:
        return ""
    steps = [arrival.step.numpy()[part] for part in look.split.clients]
    each = np.array([np.bincount(part[part >= 0], minlength=arrival.steps) for part in steps])
    after = "stay" if arrival.keep else "are gone with the next step"
    return (
        f"Unlabeled samples arrive in {arrival.steps} steps of {_number(arrival.rounds, 'round')}, {_range(each)} "
        f"at each client in each step ({_range(each.sum(axis=0))} in all), and {after}."
    )


def _number(count: int, name: str) -> str:
    return f"no {name}s" if count == 0 else f"{count:,} {name}{'s' * (count != 1)}"


def _range(counts: Indices) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- what is drawn ----------------------------------------------------------------------------------------------------


def heat_map(look: Look) -> "Figure":
    """The samples of each client and class; where some of them show labels, these once more."""
    held = look.held
    width = len(held.names)
    panels = {"all samples": held.all[:, :width]}
    if held.mixed:
        panels["labeled samples"] = held.labeled[:, :width]
    server = np.pad(look.server, (0, width - len(look.server))) if look.server.any() else None
    data = look.config.data
    title = f"{look.name}, {data.partition}, {data.clients:,} clients, R = {look.heterogeneity:.2f}"
    return federation.heat_map(panels, held.names, server, title, unknown=held.unknown)


def sample_grid(look: Look) -> "Figure":
    """A few images of different classes with one weak and two strong views of each."""
    chosen, streams = _chosen(look), Streams(look.config.seed)
    views, x = scenario.views(look.source, look.config.data), look.source.x[chosen]
    black, white = (views.plain(torch.full_like(x, value)) for value in (0, 255))

    def pixels(view: Tensor) -> Images:
        shown: Images = ((view - black) / (white - black)).clamp(0, 1).permute(0, 2, 3, 1).numpy()
        return shown

    rows = [("plain", pixels(views.plain(x))), ("weak", pixels(views.weak(x, streams.at("look", round=0))))]
    rows += [("strong", pixels(views.strong(x, streams.at("look", round=turn)))) for turn in (1, 2)]
    names = [look.source.classes[label] for label in look.source.y[chosen].tolist()]
    return federation.sample_grid(rows, names, f"{look.name}, strong views: {look.config.data.augment}")


def _chosen(look: Look) -> Tensor:
    """Positions of random samples: of different classes if there are enough, else of each the same number."""
    y = look.source.y.numpy()
    classes = np.unique(y[y >= 0])
    if len(classes) > COLUMNS:
        classes = classes[np.linspace(0, len(classes) - 1, COLUMNS).round().astype(int)]
    mixed = Streams(look.config.seed).numpy_at("look").permutation(len(y))
    of_class = [mixed[y[mixed] == each][: -(-COLUMNS // len(classes))] for each in classes]
    return torch.from_numpy(np.concatenate(of_class)[:COLUMNS])


def _refuse_full(folder: Path) -> None:
    """Before anything is loaded: what is there is not written over."""
    try:
        full = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TacitError(f"can not write to {folder}: {reason}; choose another --out") from error
    if full:
        raise TacitError(f"{folder} is not an empty folder: choose another --out")
