"""Look before you train: who holds which classes and labels, as a table and as figures."""

from dataclasses import dataclass
from itertools import product
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
from tacit.display import say
from tacit.errors import TacitError
from tacit.folders import writable
from tacit.prepare import build_data
from tacit.random import Streams
from tacit.report import federation, pictures, plots
from tacit.report.federation import Images
from tacit.report.holdings import Holdings, table, visible
from tacit.report.units import span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 10  # samples in the grid at most, each of another class
FEWEST = 8  # of fewer classes, some are shown again
FIGURES = ("partition", "samples")
NAMED = 8  # classes in a sentence
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

    @property
    def tests(self) -> Indices:
        """The classes of the test samples."""
        drawn: Indices = self.source.y.numpy()[self.split.test]
        return drawn if len(drawn) else self.source.y_test.numpy()


def show(config: Config, folder: Path, form: str, console: Console) -> None:
    """Print what the server and the clients have, and draw it into a folder, over earlier figures of this kind."""
    pictures.check(form)
    _refuse_file(folder)
    look = Look.at(config)
    written = write(look, folder, form)
    tell(look, console)
    for path in written:
        say(f"figure: {path}", console)


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
        say(text, console)


def write(look: Look, folder: Path, form: str) -> list[Path]:
    """Draw the heat map and, of images, the samples; says which files were written.

    Figures of an earlier look do not stay beside those of this one, where they would seem to belong together.
    """
    draw = dict(zip(FIGURES, (heat_map, sample_grid), strict=True))
    figures = {folder / f"{name}.{form}": draw[name](look) for name in FIGURES[: 1 if look.source.text else None]}
    for path, figure in figures.items():
        plots.save(figure, path)
    for name, other in product(FIGURES, pictures.FORMATS):
        if (old := folder / f"{name}.{other}") not in figures and old.is_file():
            old.unlink()
    return list(figures)


# --- what is said -----------------------------------------------------------------------------------------------------


def about(look: Look) -> list[str]:
    """The data set, the server and the clients, a sentence each."""
    sentences = (
        f"{_data(look)} {look.source.note}".rstrip(),
        _untested(look),
        _server(look),
        _clients(look),
        _fewer(look),
        _shared(look),
        _stream(look),
    )
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
    source, names = look.source, len(look.source.classes)
    total, parts = len(source.y) + len(source.y_test), _parts(look)
    if source.text:
        length = source.x.shape[1]
        return f"{look.name}: {total:,} windows of {length} characters ({parts}), {names} classes: what follows."
    channels, high, wide = source.x.shape[1:]
    color = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    return f"{look.name}: {total:,} images ({parts}), {wide}×{high} {color}, {_number(names, 'class', 'es')}."


def _parts(look: Look) -> str:
    """What the samples are for, each counted once."""
    split, training = look.split, np.unique(np.concatenate([*look.split.clients, look.split.server]))
    unused = len(look.source.y) - len(training) - len(split.validation) - len(split.test)
    counts = {
        "for training": len(training),
        "for validation": len(split.validation),
        "for testing": len(look.tests),
        "not used": unused,
    }
    return ", ".join(f"{count:,} {use}" for use, count in counts.items() if count)


def _untested(look: Look) -> str:
    """The classes that no test sample has."""
    seen = np.bincount(look.tests, minlength=len(look.source.classes))
    names = [visible(look.source.classes[label]) for label in np.flatnonzero(seen == 0)]
    if not names or not seen.any():
        return ""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"There is no test sample of {', '.join(names[:NAMED])}{more}."


def _server(look: Look) -> str:
    labels = _number(len(look.split.server), "label")
    each = f" ({span(look.server)} per class)" if look.server.any() else ""
    validation = " beside the samples for validation" if len(look.split.validation) else ""
    return f"The server has {labels}{each}{validation}."


def _clients(look: Look) -> str:
    labels = look.held.labeled.sum(axis=1)
    samples = span(look.held.all.sum(axis=1))
    sizes = f"{len(labels):,} clients ({look.config.data.partition}) hold {samples} samples each"
    if not labels.any():
        return f"{sizes} and no label."
    if not look.held.unlabeled.any():
        return f"{sizes}, all of them labeled."
    if labels.all():
        return f"{sizes}, {span(labels)} of them labeled."
    return f"{sizes}; {(labels > 0).sum():,} clients show labels, {span(labels[labels > 0])} each."


def _fewer(look: Look) -> str:
    """Where a client has fewer samples of a class than labels were asked for."""
    data, y = look.config.data, look.source.y.numpy()
    if data.labels not in ("client", "some") or data.per_class is None:
        return ""
    own = look.held.labeled[:, :-1] - np.bincount(y[look.split.shared], minlength=len(look.source.classes))
    holders = own if data.labels == "client" else own[own.any(axis=1)]
    if (holders >= data.per_class).all():
        return ""
    asked = f"{_number(data.per_class, 'label')} per class {'was' if data.per_class == 1 else 'were'} asked for"
    return f"{asked}; a client shows all it has where it has fewer."


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
        f"Unlabeled samples arrive in {arrival.steps} steps of {_number(arrival.rounds, 'round')}, "
        f"{span(each.ravel())} at each client in each step ({span(each.sum(axis=0))} in all), and {after}."
    )


def _number(count: int, name: str, many: str = "s") -> str:
    return f"no {name}{many}" if count == 0 else f"{count:,} {name}{many * (count != 1)}"


# --- what is drawn ----------------------------------------------------------------------------------------------------


def heat_map(look: Look) -> "Figure":
    """The samples of each client and class; where some of them show labels, these once more, unless all are alike."""
    data = look.config.data
    title = f"{look.name}, {data.partition}, {data.clients:,} clients, R = {look.heterogeneity:.2f}"
    return federation.dealt(look.held, look.server, title)


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
    """Positions of random samples: one of each class, or of some where there are many; of few classes more."""
    y = look.source.y.numpy()
    classes = np.unique(y[y >= 0])
    if len(classes) > COLUMNS:
        classes = classes[np.linspace(0, len(classes) - 1, COLUMNS).round().astype(int)]
    mixed = Streams(look.config.seed).numpy_at("look").permutation(len(y))
    of_class = [mixed[y[mixed] == each][:FEWEST] for each in classes]
    place = np.repeat(np.arange(len(classes)), [len(part) for part in of_class])
    turn = np.concatenate([np.arange(len(part)) for part in of_class])
    first = np.argsort(turn, kind="stable")[: max(FEWEST, len(classes))]  # one of each, then a second of each, …
    return torch.from_numpy(np.concatenate(of_class)[first[np.argsort(place[first], kind="stable")]])


def _refuse_file(folder: Path) -> None:
    """Before anything is loaded: figures need a folder."""
    with writable(folder):
        taken = folder.exists() and not folder.is_dir()
    if taken:
        raise TacitError(f"{folder} is not a folder: choose another --out")
