"""Type and help text of every option that stands for a setting.

Generated from the fields of the config by `make tables`: edit the fields, not this file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option of `tacit run`."""

    path: str  # the setting it stands for, by its dotted name
    kind: type[str] | type[int] | type[float]
    help: str


TABLE = {
    "method": Option("method.name", str, "Method, or method+objective; see `tacit ls methods`."),
    "data": Option("data.name", str, "See `tacit ls datasets`; or a path: an image folder, .csv, .npz, .parquet."),
    "split": Option(
        "data.split",
        str,
        "Settings of a paper, see `tacit ls splits`; any other setting given here overrides them.",
    ),
    "labels": Option("data.labels", str, "Who has labels: client, server, some, all."),
    "per_class": Option("data.per_class", int, "Labels per class, at each holder of labels."),
    "n_labels": Option("data.n_labels", int, "Labels in total."),
    "label_fraction": Option("data.label_fraction", float, "Labels as a fraction of the samples."),
    "validation": Option("data.validation", int, "Labeled samples the server holds out for validation."),
    "clients": Option("data.clients", int, "Number of clients."),
    "partition": Option("data.partition", str, "How clients share the samples; see `tacit ls partitions`."),
    "cohort": Option("cohort", int, "Clients per round; all when not given."),
    "net": Option(
        "net.name",
        str,
        "See `tacit ls nets`; hf:FOLDER; or your own `module:factory`; by the data when not given.",
    ),
    "rounds": Option("rounds", int, "Rounds of communication."),
    "epochs": Option("train.epochs", int, "Passes over the local data per round."),
    "batch": Option("train.batch", int, "Labeled samples per step."),
    "lr": Option("train.lr", float, "Learning rate at the start."),
    "workers": Option(
        "engine.workers",
        int,
        "Worker processes, 0 for none; when not given, one per core, or 1 with a GPU.",
    ),
    "device": Option(
        "engine.device",
        str,
        "Torch device: cpu, cuda, cuda:1, …; several with commas share the clients.",
    ),
    "engine": Option("engine.name", str, "`local`: worker processes; `flower`: Flower simulation on Ray."),
    "seed": Option("seed", int, "Seed of all randomness."),
}
