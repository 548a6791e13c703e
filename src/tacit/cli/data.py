"""`tacit data`: who holds which classes and labels, as a table and as figures, before any training."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from tacit.data.duplicates import count_copies, duplicates_sentence
from tacit.data.sources import Source
from tacit.data.split import partition
from tacit.data.split.apportion import Indices
from tacit.data.split.split import Split, class_counts
from tacit.errors import TacitError
from tacit.formatting import format_range
from tacit.random import Streams
from tacit.report import export, partition_plots, plots
from tacit.report.client_table import Holdings, headings, table, visible
from tacit.report.partition_plots import Images
from tacit.runs.auto import with_labels_present
from tacit.runs.build import build_data
from tacit.runs.config import Config
from tacit.runs.followers.progress import say
from tacit.storage import writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 10  # most samples in the grid, each of another class
FEWEST = 8  # fewest samples in the grid; with fewer classes, some classes appear again
FIGURES = ("partition", "samples")
NAMED = 8  # most classes named in a sentence
WRITTEN = 3  # samples that are written as text


@dataclass(frozen=True, eq=False)
class Overview:
    """The data of a config, split and counted."""

    config: Config
    source: Source
    split: Split
    held: Holdings

    @classmethod
    def of(cls, config: Config) -> "Overview":
        """Load and split the data of a config."""
        config, loaded = with_labels_present(config)
        source, split = build_data(config, loaded)
        labeled, unlabeled = class_counts(source.y.numpy(), len(source.every_class), split)
        return cls(config, source, split, Holdings(labeled, unlabeled, headings(source.every_class, source.unknown)))

    @property
    def name(self) -> str:
        """The data set, or the last part of its path, short enough for a title."""
        return partition_plots.shortened(Path(self.config.data.name).name, 30)

    @property
    def heterogeneity(self) -> float:
        """R, the heterogeneity of the clients, over the samples whose class is known."""
        return partition.heterogeneity(self.held.all[:, :-1])

    @property
    def server(self) -> Indices:
        """(classes,) labeled samples of the server."""
        return self.held_by(self.split.server)

    def held_by(self, samples: Indices) -> Indices:
        """(classes,) these samples by their true class."""
        return np.bincount(self.source.y.numpy()[samples], minlength=len(self.source.every_class))

    @property
    def tests(self) -> Indices:
        """The classes of the test samples."""
        drawn: Indices = self.source.y.numpy()[self.split.test]
        return drawn if len(drawn) else self.source.y_test.numpy()


def show(config: Config, folder: Path, form: str, console: Console) -> None:
    """Print what the server and the clients hold, and draw figures of it into a folder, replacing earlier ones."""
    export.check(form)
    _refuse_file(folder)
    overview = Overview.of(config)
    written = write(overview, folder, form)
    print_overview(overview, console)
    for path in written:
        say(f"figure: {path}", console)


def print_overview(overview: Overview, console: Console) -> None:
    """Print what the server and the clients hold."""
    lines, meaning = table(overview.held, console.width)
    for sentence in (*about(overview), ""):
        console.print(Text(sentence))
    for line in lines:
        console.print(line, soft_wrap=True)
    for sentence in (*notes(overview, meaning), ""):
        console.print(Text(sentence))
    for text in [] if overview.source.inputs.drawable else written(overview, console.width):
        say(text, console)


def write(overview: Overview, folder: Path, form: str) -> list[Path]:
    """Draw the heat map and, if they are pictures, the samples; returns the files written.

    Earlier figures in another format are removed, since they would seem to belong to the new ones.
    """
    draw = dict(zip(FIGURES, (heat_map, sample_grid), strict=True))
    figures = {
        folder / f"{name}.{form}": draw[name](overview)
        for name in FIGURES[: None if overview.source.inputs.drawable else 1]
    }
    for path, figure in figures.items():
        plots.save(figure, path)
    for name, other in product(FIGURES, export.FORMATS):
        if (old := folder / f"{name}.{other}") not in figures and old.is_file():
            old.unlink()
    return list(figures)


# --- text -------------------------------------------------------------------------------------------------------------


def about(overview: Overview) -> list[str]:
    """A sentence each on the data set, the server and the clients, and on anything unusual."""
    sentences = (
        f"{_data(overview)} {overview.source.note}".rstrip(),
        _untested(overview),
        _duplicates(overview),
        _server(overview),
        _clients(overview),
        _unknown(overview),
        _fewer(overview),
        _shared(overview),
        _stream(overview),
    )
    return [sentence for sentence in sentences if sentence]


def notes(overview: Overview, meaning: str) -> list[str]:
    """What the numbers in the table mean, and R."""
    held = overview.held
    hidden = " Unlabeled samples are counted under their true class, which no client sees."
    simulated = hidden if held.unlabeled[:, :-1].any() else ""
    unknown = " The model does not have the classes in parentheses." if overview.source.unknown else ""
    unknown += f" The class of {held.all[:, -1].sum():,} samples is unknown (?)." if held.unknown else ""
    over = " over the samples whose class is known" if held.unknown else ""
    distance = "mean distance between the class mixes of two clients: 0 if equal, 1 if no class in common"
    return [f"{meaning}{simulated}{unknown}", f"R = {overview.heterogeneity:.2f}{over} ({distance})"]


def written(overview: Overview, width: int) -> list[str]:
    """A few samples as text, plain and in the strong view, each with its class."""
    found, source = _chosen(overview), overview.source
    chosen = found[:: max(1, len(found) // WRITTEN)][:WRITTEN]
    views, x = source.inputs.views(overview.config.data), source.x[chosen]
    strong = views.strong(x, Streams(overview.config.seed).at("look", round=1))
    lines = []
    for row, label in enumerate(source.y[chosen].tolist()):
        follows = repr(source.every_class[label])
        for name, seen in (("plain", views.plain(x)[row]), ("strong", strong[row])):
            text = source.inputs.written(seen, width - len(f"{name:6}  → {follows}"))
            lines.append(f"{name:6} {text} → {follows}")
    return [*lines, ""]


def _data(overview: Overview) -> str:
    source, names = overview.source, len(overview.source.classes)
    total, parts = len(source.y) + len(source.y_test), _parts(overview)
    return f"{overview.name}: {source.inputs.describe(total, parts, names)}."


def _parts(overview: Overview) -> str:
    """What the samples are used for; each is counted once."""
    split, training = overview.split, np.unique(np.concatenate([*overview.split.clients, overview.split.server]))
    unused = len(overview.source.y) - len(training) - len(split.validation) - len(split.test)
    counts = {
        "for training": len(training),
        "for validation": len(split.validation),
        "for testing": len(overview.tests),
        "not used": unused,
    }
    return ", ".join(f"{count:,} {use}" for use, count in counts.items() if count)


def _untested(overview: Overview) -> str:
    """A sentence on the classes without a test sample."""
    seen = np.bincount(overview.tests, minlength=len(overview.source.classes))
    names = [overview.source.classes[label] for label in np.flatnonzero(seen == 0)]
    return f"No test sample has class {_listed(names)}." if names and seen.any() else ""


def _duplicates(overview: Overview) -> str:
    """A sentence on the test samples that are training samples too."""
    source, split = overview.source, overview.split
    test = source.x[torch.from_numpy(split.test)] if len(split.test) else source.x_test
    train = np.unique(np.concatenate([*split.clients, split.server]))
    return duplicates_sentence(count_copies(source.x[torch.from_numpy(train)], test), len(test))


def _server(overview: Overview) -> str:
    labels = _number(len(overview.split.server), "label")
    known = overview.server[: len(overview.source.classes)]
    each = f" ({format_range(known)} per class)" if known.any() else ""
    validation = " apart from the validation samples" if len(overview.split.validation) else ""
    return f"The server has {labels}{each}{validation}."


def _clients(overview: Overview) -> str:
    labels = overview.held.labeled.sum(axis=1)
    samples = format_range(overview.held.all.sum(axis=1))
    sizes = f"{len(labels):,} clients ({overview.config.data.partition}) hold {samples} samples each"
    if not labels.any():
        return f"{sizes}, without labels."
    if not overview.held.unlabeled.any():
        return f"{sizes}, all of them labeled."
    if labels.all():
        return f"{sizes}, {format_range(labels)} of them labeled."
    return f"{sizes}; {(labels > 0).sum():,} clients have labels, {format_range(labels[labels > 0])} each."


def _unknown(overview: Overview) -> str:
    """A sentence on samples of classes that the model does not have."""
    source = overview.source
    if not source.unknown:
        return ""
    held = overview.held.all[:, len(source.classes) : -1].sum()
    names, model = _listed(source.unknown), f"the model has the other {len(source.classes):,} classes"
    if overview.config.data.labels == "all":
        return f"With all labels shown, samples of {names} are left out; {model}."
    share = held / max(1, overview.held.unlabeled.sum())
    return f"{held:,} unlabeled samples ({share:.0%}) belong to {names}, which have no labels; {model}."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{', '.join(map(visible, names[:NAMED]))}{more}"


def _fewer(overview: Overview) -> str:
    """A sentence for a client that has fewer samples of a class than labels were asked for."""
    data, classes = overview.config.data, len(overview.source.classes)
    if data.labels not in ("client", "some") or data.per_class is None:
        return ""
    own = (overview.held.labeled[:, :-1] - overview.held_by(overview.split.shared))[:, :classes]
    holders = own if data.labels == "client" else own[own.any(axis=1)]
    if (holders >= data.per_class).all():
        return ""
    asked = f"{_number(data.per_class, 'label')} per class {'was' if data.per_class == 1 else 'were'} asked for"
    return f"{asked}; a client with fewer samples of a class has labels for all of them."


def _shared(overview: Overview) -> str:
    shared = len(overview.split.shared)
    return f"Every client has a copy of the same {_number(shared, 'labeled sample')}." if shared else ""


def _stream(overview: Overview) -> str:
    """A sentence on how many samples arrive in each step."""
    arrival = overview.split.arrival
    if arrival is None:
        return ""
    steps = [arrival.step.numpy()[part] for part in overview.split.clients]
    each = np.array([np.bincount(part[part >= 0], minlength=arrival.steps) for part in steps])
    after = "stay" if arrival.keep else "are gone in the next step"
    return (
        f"Unlabeled samples arrive in {arrival.steps} steps of {_number(arrival.rounds, 'round')}, "
        f"{format_range(each.ravel())} per client and step ({format_range(each.sum(axis=0))} per step in all), "
        f"and {after}."
    )


def _number(count: int, name: str, many: str = "s") -> str:
    return f"no {name}{many}" if count == 0 else f"{count:,} {name}{many * (count != 1)}"


# --- figures ----------------------------------------------------------------------------------------------------------


def heat_map(overview: Overview) -> "Figure":
    """The samples of each client and class, and a second map of the labeled ones unless it would be uniform."""
    data = overview.config.data
    title = f"{overview.name}, {data.partition}, {data.clients:,} clients, R = {overview.heterogeneity:.2f}"
    return partition_plots.partition_map(overview.held, overview.server, title)


def sample_grid(overview: Overview) -> "Figure":
    """A few images of different classes with one weak and two strong views of each."""
    chosen, streams = _chosen(overview), Streams(overview.config.seed)
    inputs, x = overview.source.inputs, overview.source.x[chosen]
    views = inputs.views(overview.config.data)

    def pixels(view: Tensor) -> Images:
        shown: Images = inputs.pictures(view, views).numpy()
        return shown

    rows = [("plain", pixels(views.plain(x))), ("weak", pixels(views.weak(x, streams.at("look", round=0))))]
    rows += [("strong", pixels(views.strong(x, streams.at("look", round=turn)))) for turn in (1, 2)]
    every = headings(overview.source.every_class, overview.source.unknown)
    names = [every[label] for label in overview.source.y[chosen].tolist()]
    return partition_plots.sample_grid(rows, names, f"{overview.name}, strong views: {overview.config.data.augment}")


def _chosen(overview: Overview) -> Tensor:
    """Positions of random samples, one per class; more if there are few classes, some classes if there are many."""
    y = overview.source.y.numpy()
    classes = np.unique(y[y >= 0])
    if len(classes) > COLUMNS:
        classes = classes[np.linspace(0, len(classes) - 1, COLUMNS).round().astype(int)]
    mixed = Streams(overview.config.seed).numpy_at("look").permutation(len(y))
    of_class = [mixed[y[mixed] == each][:FEWEST] for each in classes]
    place = np.repeat(np.arange(len(classes)), [len(part) for part in of_class])
    turn = np.concatenate([np.arange(len(part)) for part in of_class])
    first = np.argsort(turn, kind="stable")[: max(FEWEST, len(classes))]  # one of each, then a second of each, …
    return torch.from_numpy(np.concatenate(of_class)[first[np.argsort(place[first], kind="stable")]])


def _refuse_file(folder: Path) -> None:
    """Refuse a file in place of the folder for figures, before anything is loaded."""
    with writable(folder):
        taken = folder.exists() and not folder.is_dir()
    if taken:
        raise TacitError(f"{folder} is not a folder", "choose another --out", code="storage.not-a-folder")
