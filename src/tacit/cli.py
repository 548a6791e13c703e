"""The command line. Every mistake of its user is one sentence and exit code 2; nothing is lost."""

import json
import math
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit import bench_cli, ending, hub_cli, site_cli, typed
from tacit.display import say
from tacit.errors import TacitError
from tacit.folders import fresh

app = typer.Typer(
    help="Federated semi-supervised learning: one model over many data holders when most data has no label.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench_cli.app, name="bench")
app.add_typer(hub_cli.app, name="hub")
app.add_typer(site_cli.app, name="site")
KINDS = ("methods", "objectives", "datasets", "nets", "partitions", "splits")

# Options that several commands share.
Config = Annotated[Path | None, typer.Argument(help="A TOML config; options on the command line win over it.")]
Data = Annotated[str | None, typer.Option(help="Data set, or a path: image folder, .csv manifest, .npz.")]
Split = Annotated[str | None, typer.Option(help="Data settings of a paper, of `tacit ls splits`.")]
Labels = Annotated[str | None, typer.Option(help="Who has labels: client, server, some, all.")]
PerClass = Annotated[int | None, typer.Option(help="Labels per class at each holder of labels.")]
NLabels = Annotated[int | None, typer.Option(help="Labels in total.")]
LabelFraction = Annotated[float | None, typer.Option(help="Labels as a share of the samples.")]
Validation = Annotated[int | None, typer.Option(help="Validation samples at the server.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Partition = Annotated[str | None, typer.Option(help="How samples are dealt, of `tacit ls partitions`.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all randomness.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. method.mu=0.1")]
Out = Annotated[Path | None, typer.Option(help="Run directory; a new one under runs/ when not given.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the last line.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per round, then one for the result.")]


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
    """Federated semi-supervised learning: one model over many data holders when most data has no label."""


@app.command()
def demo(out: Out = None) -> None:
    """Labels only, federated semi-supervised, all labels: side by side on real images in about a minute."""
    from tacit import demo as demos

    with _place(out, "demo") as folder:
        try:
            demos.show(folder, Console())
        except KeyboardInterrupt:
            print(f"stopped; go on with: {shlex.join(['tacit', 'demo', '--out', str(folder)])}", file=sys.stderr)
            raise


@app.command("ls")
def list_names(kind: Annotated[str | None, typer.Argument(help=", ".join(KINDS))] = None) -> None:
    """List methods, objectives, datasets, nets and partitions; with `splits`, the settings of the papers."""
    from tacit.catalog import listing

    console = Console()
    for each in [kind] if kind else KINDS[:-1]:  # the splits are many: on request
        table = Table(title=each, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True)
        for name, about in listing(each).items():
            table.add_row(escape(f"  {name}"), escape(about))
        console.print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="fedavg, fedavg+fixmatch, my_module:MyMethod, or any name of `tacit ls`")],
) -> None:
    """What a method is, and every hyper-parameter with its default and meaning; or what else has this name."""
    from tacit import manual

    manual.show(name, Console())


@app.command()
def data(
    config: Config = None,
    data: Data = None,
    split: Split = None,
    labels: Labels = None,
    per_class: PerClass = None,
    n_labels: NLabels = None,
    label_fraction: LabelFraction = None,
    validation: Validation = None,
    clients: Clients = None,
    partition: Partition = None,
    set: Set = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="For the figures; a new folder in runs/ when not given.")] = None,
    format: Annotated[str, typer.Option(help="Of the figures: png, svg or pdf.")] = "png",
) -> None:
    """Look before you train: who holds which classes and labels, and what the views do to a sample."""
    given = locals()
    from tacit import look

    settings = _settings(config, given, set)
    with _place(out, f"data-{Path(settings.data.name).stem}") as folder:
        look.show(settings, folder, format, Console())


@app.command()
def run(
    config: Config = None,
    method: Annotated[str | None, typer.Option(help="Method, or method+objective.")] = None,
    data: Data = None,
    split: Split = None,
    labels: Labels = None,
    per_class: PerClass = None,
    n_labels: NLabels = None,
    label_fraction: LabelFraction = None,
    validation: Validation = None,
    clients: Clients = None,
    partition: Partition = None,
    cohort: Annotated[int | None, typer.Option(help="Clients per round.")] = None,
    net: Annotated[str | None, typer.Option(help="Network.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs per round.")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    set: Set = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; one per core when not given.")] = None,
    device: Annotated[str | None, typer.Option(help="Torch device.")] = None,
    engine: Annotated[str | None, typer.Option(help="local, or flower: its simulation on Ray.")] = None,
    seed: Seed = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train one model and save the run."""
    given = locals()
    _refuse_both(quiet, json)
    from tacit.experiment import Experiment

    settings = _settings(config, given, set)
    with _place(out, f"{settings.method_name}-{Path(settings.data.name).stem}") as folder:
        experiment = Experiment.create(settings, folder)
    _play(experiment, quiet, json)


@app.command()
def resume(folder: Path, quiet: Quiet = False, json: Json = False) -> None:
    """Go on with an interrupted run; the result is the same as without the interruption."""
    _refuse_both(quiet, json)
    from tacit.experiment import Experiment

    _play(Experiment.reopen(folder), quiet, json)


@app.command()
def compare(
    config: Path,
    methods: Annotated[
        str, typer.Option(help="Comma-separated methods; also the bounds labels-only, all-labels, all-labels-strong.")
    ],
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds; the config's when not given.")] = None,
    set: Set = None,
    out: Annotated[Path | None, typer.Option(help="For the runs; runs/compare-CONFIG when not given.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the table.")] = False,
) -> None:
    """Run several methods over several seeds on the same config; what is finished already is not run again.

    Of the settings of methods and objectives each method takes those that it has.
    """
    from tacit import config as configs
    from tacit.compare import compare as play_all
    from tacit.compare import unequal_steps
    from tacit.report import page, tables

    base = configs.read(config)
    extra = configs.assignments(set)
    folder = out or Path("runs") / f"compare-{config.stem}"
    console = Console()
    names = typed.names(methods, "--methods")
    numbers = [base.get("seed", 0)] if seeds is None else typed.seeds(seeds)
    try:
        runs = play_all(base, extra, names, numbers, folder, "quiet" if quiet else "auto", console)
    except KeyboardInterrupt:
        print("stopped; go on with the same command", file=sys.stderr)
        raise
    console.print(tables.to_rich(tables.summarise(runs), f"{config.stem}, seeds {', '.join(map(str, numbers))}"))
    if note := unequal_steps(runs):
        say(note, console)
    page.write_with_command(runs, folder, shlex.join(["tacit", *sys.argv[1:]]))
    say(f"report: {folder / 'report.html'}", console)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, comparisons, or the runs of a benchmark.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    plots: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also every plot as a file, in here.")] = None,
    format: Annotated[str | None, typer.Option(help="Of these files: png, svg or pdf.")] = None,
) -> None:
    """One self-contained HTML page about one or more runs."""
    from tacit.report import page, pictures, read

    if format and not plots:
        raise TacitError("--format is that of the plots: give --plots FOLDER too")
    format = format or "png"
    pictures.check(format)
    page.refuse_others(out)
    loaded = {folder: read.load_all(folder) for folder in folders}
    again = [read.noted_command(folder) or page.commands(runs) for folder, runs in loaded.items()]
    runs = read.told_apart([run for some in loaded.values() for run in some])
    page.write(runs, out, "\n".join(again))
    written = pictures.write(runs, plots, format) if plots else []
    for path in written:
        say(f"plot: {path}")
    say(f"report: {out}")


def main() -> None:
    """Run the program; mistakes of its user end in one sentence on standard error and exit code 2."""
    ending.call(app)


def _place(out: Path | None, name: str) -> AbstractContextManager[Path]:
    """The folder that was asked for, or a new one of this name."""
    return nullcontext(out) if out else fresh(name)


def _settings(config: Path | None, given: dict[str, Any], set: list[str] | None) -> Any:
    """The config a file, the options among `given` and the assignments make, each winning over those before."""
    from tacit import config as configs

    options = {name: value for name, value in given.items() if name in configs.OPTIONS}
    base = configs.read(config) if config else {}
    made = configs.from_options(options | configs.assignments(set), base)
    configs.refuse_sites(made)
    return made


def _refuse_both(quiet: bool, as_json: bool) -> None:
    if quiet and as_json:
        raise TacitError("--json prints every round and --quiet none: leave out one of them")


def _play(experiment: Any, quiet: bool, as_json: bool) -> None:
    """Play a run to its end and say how to go on where it is interrupted."""
    from tacit import display

    console, folder = Console(), experiment.folder
    mode: display.Mode = "json" if as_json else "quiet" if quiet else "auto"
    try:
        display.play(experiment, mode, console)
    except KeyboardInterrupt:
        done = experiment.finished_rounds()
        again = shlex.join(["tacit", "resume", str(folder)])
        print(f"stopped after round {done} of {experiment.job.rounds}; go on with: {again}", file=sys.stderr)
        raise
    accuracy = experiment.result().accuracy
    if as_json:
        print(json.dumps({"accuracy": accuracy if math.isfinite(accuracy) else None, "folder": str(folder)}))
    else:
        say(f"accuracy {accuracy:.1%}  saved in {folder}", console)
