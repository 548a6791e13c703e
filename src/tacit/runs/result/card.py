"""The card of a run: what a person should know before using its model, in plain words. It holds counts, no samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit import __version__
from tacit.engines.job import Job
from tacit.formatting import format_range, printable
from tacit.method import SampleNoise
from tacit.metrics.bootstrap import DRAWS
from tacit.metrics.evaluation import Estimate, Evaluation, evaluate
from tacit.metrics.membership import Membership
from tacit.metrics.predictions import Predictions
from tacit.metrics.scores import ABOUT
from tacit.metrics.wilson import wilson
from tacit.runs import registry
from tacit.runs.central import CENTRAL
from tacit.runs.config import Config
from tacit.runs.protection import protection_notes

SHOWN = 10  # classes that are named
REVEALS = "\n## What the model reveals\n\n"
SCORES = "\n## All scores"
DRAWN = 2_000  # outputs up to which all scores get intervals when a run ends, in well under a second
LABELS_ONLY = "labels only"  # what the guard saves if the rounds are no better


def card(
    config: Config,
    job: Job,
    accuracy: float | None,
    local_accuracy: float | None,
    outputs: Predictions | None = None,
    sample_privacy: Mapping[str, float | None] | None = None,
    *,
    rounds: int | None = None,
    selected: Mapping[str, Any] | None = None,
) -> str:
    """The card of a finished run, as Markdown, from the test accuracy of its model, or the mean of clients' own.

    `outputs` are those of the model on the test samples; with them the card also tells how each class fares.
    `sample_privacy` is the account of DP-SGD after the last round. `rounds` is how many there were, if the run ended
    early. `selected` says which model was chosen on validation samples, and why, as in the record of the last round.
    """
    sections = {
        "Purpose": _purpose(config, job, selected),
        "Data": _data(config, job),
        "Who held what": _holders(config, job),
        "Training": [*_training(config, job), *_selection(selected)],
        "Accuracy": [*_accuracy(job, accuracy, local_accuracy), *_each_class(outputs)],
        "Privacy": _privacy(config, job, rounds, sample_privacy),
        "Pretrained weights": _pretrained(job),
        "Known limits": _limits(config),
        "Repeat it": _repeat(config),
    }
    title = f"# Model card: {_plain(config.method_name)} on {_plain(Path(config.data.name).name)}"
    parts = [title, *(f"## {name}\n\n" + "\n".join(f"- {line}" for line in lines) for name, lines in sections.items())]
    text = "\n\n".join(parts) + "\n"
    return text if outputs is None else with_scores(text, evaluate(outputs, draws=DRAWS if _drawn(outputs) else 0))


def _drawn(outputs: Predictions) -> bool:
    return outputs.logits.size <= DRAWN


def with_scores(text: str, found: Evaluation) -> str:
    """A card with a last section of all scores, which replaces an earlier one."""
    lines = [
        f"- {ABOUT[name].title}: {_estimate(each, ABOUT[name].share)}; {ABOUT[name].meaning}."
        for name, each in found.scores.items()
    ]
    known = any(math.isfinite(each.low) for each in found.scores.values())
    title = SCORES + (", with 95 % intervals" if known else "")
    return f"{text.partition(SCORES)[0]}{title}\n\n" + "\n".join(lines) + "\n"


def with_membership(text: str, found: Membership) -> str:
    """A card with a section about attacks on the model, which replaces an earlier one; scores stay the last section."""
    head, mark, scores = text.partition(SCORES)
    lines = [f"- {line}" for line in membership_lines(found)]
    return head.partition(REVEALS)[0] + REVEALS + "\n".join(lines) + "\n" + mark + scores


def membership_lines(found: Membership) -> Iterator[str]:
    """What the attacks found, one sentence each."""
    yield (
        f"Membership inference with {found.others:,} held-out samples; 0.5 is guessing, 1 is certainty "
        "(area under the ROC curve, 95 % interval)."
    )
    for kind, attacks in found.attacks.items():
        for name, attack in attacks.items():
            caught = attack.found
            more = "" if caught is None else f"; at 1 % false alarms it finds {_estimate(caught, share=True)} of them"
            count = f"{found.members[kind]:,} {kind} training samples"
            yield f"By {name}, on {count}: {_estimate(attack.auc, share=False)}{more}."
    yield "Stronger attacks exist, such as those that train many models like this one. A small number is no proof."


def _estimate(given: Estimate, share: bool) -> str:
    shown = [f"{value:.1%}" if share else f"{value:.3f}" for value in (given.value, given.low, given.high)]
    if not math.isfinite(given.value):
        return "not defined on these samples"
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if math.isfinite(given.low) else shown[0]


def _purpose(config: Config, job: Job, selected: Mapping[str, Any] | None) -> Iterator[str]:
    classes = job.federation.classes
    yield f"The model tells {len(classes)} classes apart: {_names(classes)}."
    if selected is not None and selected["what"] == LABELS_ONLY:
        yield (
            f"Tacit {__version__} trained it on the server's labels only. The model of the federated rounds is not "
            "saved, because it was worse on validation samples."
        )
    elif config.method_name in CENTRAL:
        yield f"Tacit {__version__} trained it with all its samples in one place, as a bound for federated methods."
    else:
        yield f"Tacit {__version__} trained it for {config.rounds} rounds of federated semi-supervised learning."
    yield "It was not checked for any use outside research. For medical use it needs a validation of its own."


def _data(config: Config, job: Job) -> Iterator[str]:
    federation = job.federation
    classes, kind = federation.classes, federation.inputs.kind
    if not config.data.at_sites:
        labeled = int((federation.pool.y >= 0).sum()) + len(federation.server.labeled)
        samples = len(federation.order) + len(federation.server.labeled) + len(federation.server.validation)
        yield f"Training: {samples:,} samples ({kind}), {labeled:,} of them with a label."
    if federation.left_out:
        yield f"Left out, since they cannot be read: {federation.left_out:,} file{'s' * (federation.left_out != 1)}."
    if len(federation.server.labeled):
        yield f"Labels at the server: {_counts(federation.server.labeled.y, classes)}."
    if len(federation.test):
        yield f"Test: {len(federation.test):,} samples: {_counts(federation.test.y, classes)}."
    else:
        yield "Test: no samples of its own; every label was held out once, by a run that did not learn from it."
    yield f"The network sees {federation.inputs.kind} of shape {'×'.join(map(str, federation.inputs.shape))}."


def _holders(config: Config, job: Job) -> Iterator[str]:
    federation = job.federation
    if config.data.at_sites:
        yield f"{config.data.clients} sites hold data of their own on their own machines; this card does not count it."
    else:
        sizes = (federation.starts[1:] - federation.starts[:-1]).tolist()
        shown = f"partition {_plain(config.data.partition)}"
        yield f"{len(sizes):,} simulated clients with {format_range(sizes)} samples each ({shown})."
        yield "All data was on one machine: this is a simulation of a federation."
    held = len(federation.server.labeled), len(federation.server.validation)
    tests = ", and the test samples" if len(federation.test) else ""
    yield f"The server held {held[0]:,} labeled samples and {held[1]:,} for validation{tests}."


def _training(config: Config, job: Job) -> Iterator[str]:
    method, objective = registry.method_kinds(config.method_name)
    yield f"Method {_plain(config.method_name)}: {_plain(registry.sentence(method))}"
    if objective is not None:
        yield f"Objective: {_plain(registry.sentence(objective))}"
    yield f"Network {_plain(config.net.name)} with {job.net.size():,} trained parameters."
    asked = f"{job.cohort} of {config.data.clients}" if job.cohort < config.data.clients else f"all {job.cohort}"
    train = f"learning rate {config.train.lr:g}, batches of {config.train.batch}"
    yield f"{config.rounds} rounds with {asked} clients; {train}."


def _selection(selected: Mapping[str, Any] | None) -> Iterator[str]:
    """Which model is saved and why, if it was chosen on validation samples."""
    if selected is None:
        return
    yield f"Saved model: {_plain(selected['what'])}, since {_plain(selected['why'])}."
    if found := selected.get("validation"):
        around = f"95 % interval: {found['low']:.1%} to {found['high']:.1%}"
        yield f"It was chosen on {found['samples']:,.0f} validation samples: {found['accuracy']:.1%} ({around})."


def _accuracy(job: Job, accuracy: float | None, local_accuracy: float | None) -> Iterator[str]:
    test = job.federation.test
    if not len(test):
        yield from _cross_validated(job, accuracy)
        return
    chance = int(test.y.bincount().max()) / len(test)
    if accuracy is not None:
        low, high = wilson(accuracy * len(test), len(test))
        yield f"{accuracy:.1%} of {len(test):,} test samples (95 % interval: {low:.1%} to {high:.1%})."
    elif local_accuracy is not None:
        yield f"There is no common model. The clients' own models reach {local_accuracy:.1%} on average."
    yield f"Always answering the most frequent class would reach {chance:.1%}."


def _cross_validated(job: Job, accuracy: float | None) -> Iterator[str]:
    """The accuracy of a model that learned from every label."""
    if accuracy is None or job.crossed is None:
        yield "It was not measured: there are no test samples."
        return
    count = job.crossed.last.count
    low, high = wilson(accuracy * count, count)
    yield f"Cross-validated accuracy: {accuracy:.1%} of {count:,} labels (95 % interval: {low:.1%} to {high:.1%})."
    yield (
        "That is the accuracy of models like this one, each trained without the labels it is judged by; this one "
        "learned from all of them. The model that is saved was chosen by the same number, which makes it a little high."
    )


def _each_class(outputs: Predictions | None) -> Iterator[str]:
    """How often each class is found, and how often the answer is right; recall and precision, with intervals."""
    if outputs is None:
        yield "Accuracy hides how errors are shared among the classes; look at each class before you rely on it."
        return
    for number, name in enumerate(outputs.classes[:SHOWN]):
        true, said = outputs.y == number, outputs.predicted == number
        right = int((true & said).sum())
        found, correct = _share(right, int(true.sum())), _share(right, int(said.sum()))
        yield f"{_plain(name)}: the model finds {found} of its samples; {correct} of such answers are right."
    if rest := _more(outputs.classes):
        yield f"The table of `tacit evaluate` has{rest.removeprefix(' and')}."
    if not _drawn(outputs):
        yield "`tacit evaluate` with the run's folder adds the intervals of all other scores to this card."


def _share(part: int, whole: int) -> str:
    if not whole:
        return "none"
    low, high = wilson(part, whole)
    return f"{part / whole:.1%} ({low:.1%} to {high:.1%})"


def _privacy(
    config: Config, job: Job, rounds: int | None, sample_privacy: Mapping[str, float | None] | None
) -> Iterator[str]:
    if job.method.needs.simulation:
        yield "The method shows samples of clients to others, so it is for simulations only."
    else:
        yield (
            "Samples stay with their holders. Only what the method declares travels: models, changes of models, or "
            "statistics such as means."
        )
    for line in protection_notes(config, job, rounds):
        yield f"{line[0].upper()}{line[1:]}."
    if config.protect.hides_clients:
        yield (
            "The promise is about this model and all models of the rounds, for anyone who gets them. The hub saw every "
            "update before the noise, and the run's folder names who took part: neither is covered."
        )
    if (given := job.sample_noise) is not None:
        yield from _sample_noise(given, sample_privacy or {})
    if job.protect.secure:
        yield "Secure aggregation: in each round the server saw the sum of at least three uploads, and no single one."
    private = given is not None or config.protect.hides_clients
    missing = "" if private else "no differential privacy"
    missing += "" if job.protect.secure else f"{', ' if missing else ''}no secure aggregation"
    if missing:
        yield f"No other protection is in force: {missing}."
    if not private:
        yield "What is sent, and the model itself, can reveal something about the training samples."


def _sample_noise(given: SampleNoise, found: Mapping[str, float | None]) -> Iterator[str]:
    epsilon, delta = found.get("epsilon"), found.get("delta")
    how = f"noise {given.noise:g}, clip {given.clip:g}"
    if epsilon is None or delta is None:
        yield f"Clients train with DP-SGD ({how}), but without noise, so no ε holds."
        return
    yield (
        f"Clients train with DP-SGD ({how}): each sample of a client is protected against everybody who sees its "
        f"uploads or the model, with ε ≤ {epsilon:.3g} and δ = {delta:.0e} (add or remove one sample; the largest ε of "
        "a client, all rounds)."
    )
    yield "Not protected: how many samples each client has, and the labeled and validation samples of the server."


def _pretrained(job: Job) -> Iterator[str]:
    about = {name: _plain(value) for name, value in job.net.pretrained.items()}
    if about:
        yield "; ".join(f"{_plain(name)}: {value}" for name, value in about.items())
        if "licence" not in about and "license" not in about:
            yield "Their licence is not stated."
    elif job.net.frozen:
        yield "The network has frozen weights, whose origin and licence are not stated."
    else:
        yield "None: training began with random weights."


def _limits(config: Config) -> Iterator[str]:
    yield "The accuracy holds for samples like the test samples. Other devices, places or people can give another one."
    yield "The model answers with one of its classes, whatever it is shown."
    yield "Its probabilities are not calibrated, unless they were when it was exported."
    if not config.data.at_sites:
        yield "Real holders of data differ more from each other than simulated clients do."


def _repeat(config: Config) -> Iterator[str]:
    command = "tacit hub run config.toml" if config.data.at_sites else "tacit run config.toml"
    yield f"`{command}`, with the `config.toml` of the run's folder and the same data (seed {config.seed})."


def _counts(y: Tensor, classes: Sequence[str]) -> str:
    counts = y[y >= 0].bincount(minlength=len(classes)).tolist()
    shown = ", ".join(f"{_plain(name)} {count:,}" for name, count in zip(classes[:SHOWN], counts, strict=False))
    return shown + _more(classes)


def _names(classes: Sequence[str]) -> str:
    return ", ".join(map(_plain, classes[:SHOWN])) + _more(classes)


def _more(classes: Sequence[str]) -> str:
    return f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""


def _plain(text: str) -> str:
    """Text of others on one line, without control characters and Markdown's backticks."""
    return printable(text).replace("`", "'")
