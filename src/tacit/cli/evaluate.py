"""`tacit evaluate`: how good a trained model is, on its own test samples or on others."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tacit.errors import TacitError, unknown
from tacit.runs.directory import RunDirectory
from tacit.runs.directory.folders import safe
from tacit.runs.followers.progress import say
from tacit.storage import replacing

if TYPE_CHECKING:
    from tacit.metrics.evaluation import Evaluation

FORMS = (".json", ".csv")


def evaluate(
    run: Path,
    data: str | None,
    positive: str | None,
    seed: int,
    out: Path | None,
    console: Console,
    *,
    clients: bool,
    membership: bool,
    local_heads: bool,
    import_net: bool,
) -> None:
    """Print how good the model is on its own test samples or on others, and note it with the run."""
    check_output(out)
    if local_heads:
        if clients or data or membership or positive:
            problem = "--local-heads goes with --out only"
            raise TacitError(problem, "leave out the other options", code="evaluate.local-heads-alone")
        fit_local_heads(run, out, console)
        return
    if membership:
        if clients or positive:
            problem = "--membership goes with --data, --seed and --out only"
            raise TacitError(problem, "leave out the other options", code="evaluate.membership-alone")
        attack(run, data, seed, out, console, import_net=import_net)
        return
    if clients and data:
        raise TacitError("--clients has its own data", "leave out --data", code="evaluate.data-and-clients")
    if clients:
        found = of_clients(run, positive, seed)
    elif data:
        found = of_samples(run, data, positive, seed, import_net=import_net)
    else:
        found = of_test_samples(run, positive, seed)
    show(found, out, console)
    if clients or data:
        save(found, run)
    else:
        add_to_card(found, run)


def check_output(out: Path | None) -> None:
    """Refuse a file of another form before anything is computed."""
    if out is not None and out.suffix.lower() not in FORMS:
        raise TacitError(
            f"cannot write {out} as an evaluation",
            "use a name that ends in .json or .csv",
            code="evaluate.output-format",
        )


def of_test_samples(run: Path, positive: str | None, seed: int) -> "Evaluation":
    """The run's model on the run's own test samples, as saved when it finished."""
    from tacit.metrics.evaluation import evaluate

    directory = RunDirectory(run)
    directory.config()  # refuses what is no run
    found = directory.predictions()
    if found is None:
        raise TacitError(
            f"{run} has no saved outputs on its test samples",
            f"write them with `{directory.resume_command}`, or give samples with --data",
            code="evaluate.no-predictions",
        )
    about = f"{run} on its own test samples"
    return evaluate(found, about, positive=class_number(found.classes, positive), seed=seed)


def of_clients(run: Path, positive: str | None, seed: int) -> "Evaluation":
    """The run's model on the samples of each of its clients."""
    from tacit.runs.experiment import Experiment
    from tacit.runs.result import client_evaluation

    experiment = Experiment.reopen(run)
    number = class_number(experiment.job.federation.classes, positive)
    return client_evaluation.evaluate_clients(experiment, positive=number, seed=seed)


def of_samples(run: Path, data: str, positive: str | None, seed: int, *, import_net: bool) -> "Evaluation":
    """The run's model on other labeled samples."""
    from tacit.inference.labeled import evaluate
    from tacit.runs.result import saved_model

    model = saved_model.load(run, import_net=import_net)
    return evaluate(model, data, positive=class_number(model.classes, positive), seed=seed)


def attack(run: Path, data: str | None, seed: int, out: Path | None, console: Console, *, import_net: bool) -> None:
    """Attack the model: print how well its training samples can be recognised, and add it to the run's card."""
    from tacit.runs.result import card, saved_model
    from tacit.runs.result import membership as attacks

    _require_json(out)
    if data is None:
        found = attacks.of_run(run, seed)
    else:
        found = attacks.of_own_data(saved_model.load(run, import_net=import_net), data, seed)
    say(f"{found.about}", console, "bold")
    for line in card.membership_lines(found):
        say(f"– {line}", console)
    if out is not None:
        with replacing(out) as partial:
            partial.write_text(found.to_json() + "\n", encoding="utf-8")
        say(f"attacks: {out}", console)
    directory = RunDirectory(run)
    if directory.exists() and data is None:
        directory.write_membership(found.to_json() + "\n")
        if text := directory.card():
            directory.write_card(card.with_membership(text, found))


def fit_local_heads(run: Path, out: Path | None, console: Console) -> None:
    """Fit a head to the labels of each client: print, and note in the run's folder, what it brings."""
    from tacit.report.local_heads import to_rich
    from tacit.runs.result import local_heads as heads

    _require_json(out)
    found = heads.of_run(run)
    console.print(to_rich(found), highlight=False, soft_wrap=False)
    RunDirectory(run).write_local_heads(found.to_plain())
    if out is not None:
        with replacing(out) as partial:
            partial.write_text(found.to_json() + "\n", encoding="utf-8")
        say(f"local heads: {out}", console)


def _require_json(out: Path | None) -> None:
    if out is not None and out.suffix.lower() != ".json":
        raise TacitError(f"cannot write {out}", "use a name that ends in .json", code="evaluate.output-format")


def class_number(classes: tuple[str, ...], name: str | None) -> int | None:
    """The number of the class with this name; refuses one that is not of two classes."""
    if name is None:
        return None
    if len(classes) != 2:
        raise TacitError(
            f"the model has {len(classes)} classes, and --positive is for two",
            "leave it out",
            code="evaluate.not-two-classes",
        )
    if name not in classes:
        raise unknown("class", name, classes)
    return classes.index(name)


def show(found: "Evaluation", out: Path | None, console: Console) -> None:
    """Print the tables, or write a JSON or CSV file."""
    from tacit.report.evaluation_table import to_rich

    console.print(to_rich(found), highlight=False, soft_wrap=False)
    if out is not None:
        text = found.to_csv() if out.suffix.lower() == ".csv" else found.to_json() + "\n"
        with replacing(out) as partial:
            partial.write_text(text, encoding="utf-8")
        say(f"evaluation: {out}", console)


def save(found: "Evaluation", run: Path) -> None:
    """Note an evaluation in the folder of its run, for reports; a model file has no such folder."""
    directory = RunDirectory(run)
    if directory.exists():
        directory.write_evaluation(safe(found.about), found.to_json())


def add_to_card(found: "Evaluation", run: Path) -> None:
    """Add the scores on the run's own test samples to its card."""
    from tacit.runs.result.card import with_scores

    directory = RunDirectory(run)
    if text := directory.card():
        directory.write_card(with_scores(text, found))
