"""The command line. A user's mistake is one sentence and exit code 2; Ctrl-C loses nothing."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.cli import bench, exit, hub, site
from tacit.cli import run as runs
from tacit.cli.options import DATA_SETTINGS, SETTINGS, Config, From, Open, Port, Set, with_settings
from tacit.runs.assignments import assignments
from tacit.runs.followers.progress import say_wrapped

app = typer.Typer(
    help="Federated semi-supervised learning: train one model over many data holders when few samples have labels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench.app, name="bench")
app.add_typer(hub.app, name="hub")
app.add_typer(site.app, name="site")

# Options that several commands share.
Out = Annotated[Path | None, typer.Option(help="Folder for the run; default: a new one in runs/.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the last line.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per round, then one for the result.")]

ImportNet = Annotated[
    bool, typer.Option("--import-net", help="Import your own network module:name, which runs its code.")
]


def _version(asked: bool) -> None:
    if asked:
        from tacit import __version__

        print(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated semi-supervised learning: train one model over many data holders when few samples have labels."""


@app.command()
def demo(out: Out = None) -> None:
    """Compare training on few labels, with unlabeled images too, and on all labels, in a few minutes."""
    from tacit.cli import demo as demos

    with runs.place(out, "demo") as folder, exit.interruptible(shlex.join(["tacit", "demo", "--out", str(folder)])):
        demos.show(folder, Console())


@app.command()
def check(
    device: Annotated[str, typer.Option(help="Torch device: cpu, cuda, cuda:1, …")] = "cpu",
    limit: Annotated[float, typer.Option(help="Seconds after which no further method is tried.")] = 120.0,
) -> None:
    """Try every method on a device: does it run, how fast, and does it agree with the CPU?"""
    from tacit.cli import check as checks

    line = ""
    for line in checks.page(device, limit):
        print(line, flush=True)
    if not line.startswith("fine"):
        raise typer.Exit(1)


@app.command("ls")
def list_names(
    kind: Annotated[str | None, typer.Argument(help="What to list; default: all but splits.")] = None,
) -> None:
    """List methods, objectives, datasets, nets, partitions, or splits: the data settings of papers."""
    from tacit.runs.registry import KINDS, listing

    console = Console()
    for each in [kind] if kind else [name for name in KINDS if name != "splits"]:  # these are many
        table = Table(title=each, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True)
        for name, about in listing(each).items():
            table.add_row(escape(f"  {name}"), escape(about))
        console.print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `tacit ls`, a method+objective, or my_module:MyMethod.")],
) -> None:
    """Explain any name of `tacit ls`, a method+objective, or a section of a config, with all its settings."""
    from tacit.cli import show as explain

    explain.show(name, Console())


@app.command()
@with_settings(DATA_SETTINGS)
def data(
    given: dict[str, Any],
    config: Config = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures; default: a new one in runs/.")] = None,
    format: Annotated[str, typer.Option(help="File format of the figures: png, svg or pdf.")] = "png",
) -> None:
    """Show the data before training: who holds which classes and labels, and what the augmentations do.

    CONFIG is a TOML file with settings; options override it.
    """
    from tacit.cli import data as overview

    settings = runs.settings(config, given, set, "fedavg").config
    with runs.place(out, f"data-{Path(settings.data.name).stem}") as folder:
        overview.show(settings, folder, format, Console())


@app.command()
@with_settings(SETTINGS)
def run(
    given: dict[str, Any],
    config: Config = None,
    set: Set = None,
    out: Out = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what is decided for this data and why, then stop.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train one model and save the run.

    If you give no method, Tacit picks method, views, steps and rates for your data; --explain shows them.
    """
    mode = runs.mode(quiet, json)
    asked = runs.settings(config, given, set, tell=say_wrapped if mode == "auto" else None)
    runs.run(asked, out, mode, explain=explain)


@app.command()
def resume(
    folder: Path,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Extend the run, finished or not, to this number of rounds.")
    ] = None,
    start: From = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="CLIENT", help="Leave out this client, by its number, from now on; can be repeated."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue the run in FOLDER; the result is the same as without the interruption.

    `--from 0 --without CLIENT` replays the whole run without that client's data.
    """
    runs.resume(folder, rounds, start, without or (), runs.mode(quiet, json))


@app.command()
def compare(
    config: Path,
    methods: Annotated[
        str, typer.Option(help="Comma-separated methods, or the bounds labels-only, pooled, all-labels.")
    ],
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds; default: the seed of the config.")] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; default: runs/compare-CONFIG.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")] = False,
) -> None:
    """Run several methods with several seeds on one config; finished runs are not repeated.

    CONFIG is a TOML file with settings. A setting of a method or an objective goes to the methods that have it.
    """
    from tacit.cli import compare as comparison

    comparison.compare(config, methods, seeds, set, out, Console(), quiet=quiet)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or an exported .safetensors file.")],
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Images, folders, patterns, or CSV, Parquet and .npz files."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write.")] = Path("predictions.csv"),
    proba: Annotated[bool, typer.Option("--proba", help="Also write the probability of every class.")] = False,
    top: Annotated[int, typer.Option(help="Also write this many of the most likely classes.")] = 0,
    threshold: Annotated[
        float | None, typer.Option(help="Answer unsure where the confidence is below this, such as 0.9.")
    ] = None,
    to_label: Annotated[int, typer.Option(help="Also list this many samples that are worth labeling next.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Worker processes, 0 for none; default: one per core.")] = None,
    import_net: ImportNet = False,
) -> None:
    """Predict the class of new samples with the model of RUN. Run it again after an interruption to continue."""
    from tacit.cli import predict as predictions

    with exit.interruptible():
        predictions.predict(
            run,
            paths,
            out,
            Console(),
            proba=proba,
            top=top,
            threshold=threshold,
            label=to_label,
            workers=workers,
            import_net=import_net,
        )


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or an exported .safetensors file.")],
    format: Annotated[str, typer.Option(help="onnx, pt2 (PyTorch) or safetensors (Tacit).")] = "onnx",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: model.FORMAT.")] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Fit the probabilities to these labeled samples by temperature scaling."),
    ] = None,
    check: Annotated[
        str | None, typer.Option(metavar="PATH", help="Samples to compare file and model on; default: invented ones.")
    ] = None,
    import_net: ImportNet = False,
) -> None:
    """Export the model of RUN for other programs, samples in, probabilities out, and verify the file against it."""
    from tacit.cli import export as exports

    exports.export(run, format, out, Console(), calibrate=calibrate, check=check, import_net=import_net)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, comparisons or benchmarks.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write; default: report.html, of a single run in its folder, else here."
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write every plot into this folder.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="File format of these plots: png, svg or pdf.")] = None,
    mistakes: Annotated[
        int,
        typer.Option(min=0, help="Pictures of this many confident mistakes of each run; needs its data."),
    ] = 0,
) -> None:
    """Write one self-contained HTML page about the runs, comparisons or benchmarks in folders."""
    from tacit.cli import report as reports

    reports.report(folders, out, plots, format, mistakes)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a model file.")],
    data: Annotated[
        str | None,
        typer.Option(help="Labeled samples: a folder with a folder per class, .csv, .parquet, .npz, or a data set."),
    ] = None,
    clients: Annotated[
        bool, typer.Option("--clients", help="The samples of each client of a simulated run, by their true labels.")
    ] = False,
    membership: Annotated[
        bool,
        typer.Option(
            "--membership", help="Attack the model: can its training samples be recognised among held-out ones?"
        ),
    ] = False,
    local_heads: Annotated[
        bool,
        typer.Option("--local-heads", help="Fit a last layer to the labels of each client of a simulated run."),
    ] = False,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Positive class, for sensitivity and specificity.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap draws.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write everything as .json or .csv.")] = None,
    import_net: Annotated[
        bool, typer.Option("--import-net", help="Import your own network module:name, which runs its code.")
    ] = False,
) -> None:
    """Show how good a model is: scores with intervals, per class, confusion, calibration, per group.

    Without --data, on the run's own test samples. A later `tacit report` shows every evaluation of a run.
    """
    from tacit.cli import evaluate as evaluation

    evaluation.evaluate(
        run,
        data,
        positive,
        seed,
        out,
        Console(),
        clients=clients,
        membership=membership,
        local_heads=local_heads,
        import_net=import_net,
    )


@app.command()
def tune(
    config: Path,
    space: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUES", help="A range, train.lr=0.003..0.3, or values, train.batch=16,32."),
    ],
    trials: Annotated[int, typer.Option(min=1, help="How many settings to try, with those tried before.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the trials; default: runs/tune-CONFIG.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")] = False,
) -> None:
    """Search for better settings, chosen on validation samples; weak trials are stopped early.

    CONFIG is a TOML file with settings. The same command continues a search, or adds trials to it. The best config is
    best.toml in the folder.
    """
    from tacit.cli import tune as searches
    from tacit.runs import config as configs
    from tacit.runs.space import parse
    from tacit.runs.tune import Search

    folder = out or Path("runs") / f"tune-{config.stem}"
    search = Search(configs.read(config), assignments(set), parse(space), trials, folder, seed)
    with exit.interruptible(shlex.join(["tacit", *sys.argv[1:]])):
        searches.run(search, Console(), quiet=quiet)


@app.command()
def watch(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER...", help="Folders with runs or hubs; default: runs/.")
    ] = None,
    port: Port = None,
    open: Open = False,
) -> None:
    """Show a live page about all runs, comparisons, benchmarks, searches and hubs in folders, until Ctrl-C.

    The page is for this machine only and never changes anything.
    """
    from tacit.cli import watch as watching

    watching.serve(folders or [], port, show=open, of_hub=watching.hub_panel())


def main() -> None:
    """Run the program; a user's mistake ends in one sentence on standard error and exit code 2."""
    exit.call(app)
