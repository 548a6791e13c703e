"""What `[protect]` can and cannot do for a run: refused before it starts, or said in a line."""

import math

from tacit.engines.job import Job
from tacit.engines.upload_updates import DeclaredField, declared_fields
from tacit.errors import TacitError
from tacit.protect import rules
from tacit.protect.accounting import Spent, example, spent
from tacit.protect.config import Protection
from tacit.runs.config import Config
from tacit.updates import CountField, ModelField

MANY = 100  # clients from which on one can hide among them
FEW = 5  # clients a round: with fewer, not even Krum with one hostile client is possible


def refuse_protection(config: Config, job: Job) -> None:
    """Refuse a rule that the method cannot work with or that has too few clients, and attacks without a meaning."""
    if config.faults.hostile:
        _refuse_attack(config, job)
    if config.protect.combine != "mean":
        _refuse_rule(config, job)
    _refuse_lone_settings(config.protect)
    if config.protect.hides_clients:
        _refuse_settings_without_privacy(config, job)
        _refuse_uploads_without_privacy(config, job)
        spent_by(config)  # the account is possible


def _models(job: Job) -> list[DeclaredField]:
    """The fields of an upload that hold models, or changes of them."""
    return [each for each in declared_fields(job.upload_form.declared) if isinstance(each.note, ModelField)]


def _refuse_attack(config: Config, job: Job) -> None:
    """Refuse hostile clients that are none, or all there are, or have nothing to attack with."""
    faults, name = config.faults, config.method_name
    if config.data.at_sites:
        raise TacitError("faults.hostile is for simulations", "leave it out", code="faults.real-sites")
    if faults.hostile >= job.federation.clients:
        raise TacitError(
            f"faults.hostile = {faults.hostile} leaves no honest one of {job.federation.clients} clients",
            "lower it",
            code="faults.all-hostile",
        )
    if faults.attack == "labels" and faults.strength is not None:
        raise TacitError("the attack 'labels' has no strength", "leave out faults.strength", code="faults.no-strength")
    if faults.attack == "labels" and not bool((job.federation.pool.y >= 0).any()):
        raise TacitError(
            "the attack 'labels' changes labels, and the clients have none",
            "use faults.attack = 'sign', or labels at the clients",
            code="faults.no-labels",
        )
    if faults.attack != "labels" and all(each.sparse for each in _models(job)):
        raise TacitError(
            f"the clients of {name} send no whole models, so the attack '{faults.attack}' has nothing to change",
            "use faults.attack = 'labels', or another method",
            code="faults.nothing-to-attack",
        )


def _refuse_rule(config: Config, job: Job) -> None:
    text, name = config.protect.combine, config.method_name
    models = _models(job)
    if not models:
        raise TacitError(
            f"the clients of {name} send no models, so protect.combine = '{text}' has nothing to combine",
            "leave it out",
            code="protect.nothing-to-combine",
        )
    if job.method.needs.true_mean:
        raise TacitError(
            f"{name} needs the mean of what clients send, and protect.combine = '{text}' is another rule",
            "use protect.combine = 'mean', or a method such as fedavg+fixmatch",
            code="protect.needs-true-mean",
        )
    rule = rules.parse(text)
    if rule is not None and rule.chooses and len(models) > 1:
        raise TacitError(
            f"{name} combines {len(models)} models of each client, and {text} could take each from another client",
            "use clipped, median or trimmed:0.2",
            code="protect.several-models",
        )
    least = rules.least_clients(text)
    if job.cohort < least:
        raise TacitError(
            f"protect.combine = '{text}' needs {least} clients a round, and there are {job.cohort}",
            "use clipped or median"
            if job.cohort >= rules.FEWEST
            else "use mean: of so few, it is unknown which one is odd",
            code="protect.too-few-clients",
        )


def _refuse_lone_settings(protect: Protection) -> None:
    """Refuse a part of client-level privacy without the rest."""
    if not protect.hides_clients and (protect.client_clip is not None or protect.delta is not None):
        name = "client_clip" if protect.client_clip is not None else "delta"
        raise TacitError(
            f"protect.{name} belongs to client-level privacy, and protect.client_noise is not set",
            "set it, or use protect.combine = 'clipped' against hostile clients",
            code="protect.without-noise",
        )
    if protect.client_noise and protect.client_clip is None:
        raise TacitError(
            "protect.client_noise is in units of protect.client_clip, which is not set",
            "set it to a usual length of an update, such as 1.0",
            code="protect.without-clip",
        )


def _refuse_settings_without_privacy(config: Config, job: Job) -> None:
    """Refuse settings by which one client changes what another one adds to the sum, or which show single clients."""
    protect, clients = config.protect, job.federation.clients
    if protect.combine != "mean":
        raise TacitError(
            f"protect.combine = '{protect.combine}' and protect.client_noise exclude each other: the noise hides one "
            "client in a sum, and a rule in its place is not covered by the account",
            "leave out one of them",
            code="protect.rule-and-noise",
        )
    for name, value in (("norm_factor", config.limits.norm_factor), ("max_share", config.limits.max_share)):
        if value is not None:
            raise TacitError(
                f"limits.{name} compares clients with each other, so one changes what another counts, which "
                "protect.client_noise must exclude",
                f"leave out limits.{name}; client_clip bounds every update",
                code="protect.limits-and-noise",
            )
    if config.log.local:
        raise TacitError(
            "log.local records the accuracy of single clients' models, which protect.client_noise is to hide",
            "leave it out",
            code="protect.local-models",
        )
    if protect.delta is not None and protect.delta >= 1 / clients:
        raise TacitError(
            f"protect.delta = {protect.delta:g} is no promise: publishing one of {clients} clients at random keeps it",
            f"use less than {1 / clients:.1g}",
            code="protect.delta-too-large",
        )


def _refuse_uploads_without_privacy(config: Config, job: Job) -> None:
    """Refuse a method whose uploads hold more than updates, or that cannot live with their sum."""
    name, needs = config.method_name, job.method.needs
    other = "use a method that averages models, such as fedavg+fixmatch, semifl or anchor"
    if not _models(job):
        raise TacitError(
            f"the clients of {name} send no models, so protect.client_noise has no sum to act on",
            other,
            code="protect.nothing-to-combine",
        )
    if needs.true_mean:
        raise TacitError(
            f"{name} needs the mean of what clients send, and clipping and noise change it",
            other,
            code="protect.needs-true-mean",
        )
    for each in declared_fields(job.upload_form.declared):
        whole = isinstance(each.note, ModelField) and not each.sparse and each.note.names != "some"
        if not whole and not isinstance(each.note, CountField):
            raise TacitError(
                f"the clients of {name} also send '{each.path}', which is no update of the whole model, so "
                "protect.client_noise does not cover it",
                other,
                code="protect.not-an-update",
            )
    if needs.separate_uploads:
        raise TacitError(
            f"the server of {name} looks at the uploads of single clients, and protect.client_noise gives it their sum",
            other,
            code="protect.separate-uploads",
        )
    if job.net.buffers and config.server_train.buffers == "average":
        raise TacitError(
            f"{config.net.name} has BatchNorm statistics, and their mean over clients is not covered by "
            "protect.client_noise",
            "use --set net.norm=group, or server.buffers = 'recompute' with labels at the server",
            code="protect.batchnorm",
        )


def spent_by(config: Config, rounds: int | None = None) -> Spent:
    """What client-level privacy has spent after some rounds of a run, or after all of them."""
    protect, clients = config.protect, config.data.clients
    rate = (config.cohort or clients) / clients
    return spent(rate, protect.client_noise or 0.0, rounds or config.rounds, protect.delta_for(clients))


def privacy_lines(config: Config, rounds: int | None = None) -> list[str]:
    """What is promised to a client, and to whom not, a line each; none without client-level privacy."""
    protect, clients = config.protect, config.data.clients
    if not protect.hides_clients:
        return []
    found = spent_by(config, rounds)
    asked = f"each of {clients} clients takes part with probability {(config.cohort or clients) / clients:.3g}"
    lines = [f"client-level privacy: {found.text} after {rounds or config.rounds} rounds ({asked})"]
    if not math.isfinite(found.epsilon):
        lines.append("without noise nothing is promised: ε is infinite")
    elif clients < MANY:
        lines.append(f"client-level privacy hides one client among many, and {clients} are few: {example()}")
    return lines


def protection_notes(config: Config, job: Job, rounds: int | None = None) -> list[str]:
    """What to know about the protection of a run, a line each."""
    notes = privacy_lines(config, rounds)
    if config.protect.combine != "mean" and job.cohort < FEW:
        notes.append(
            f"protect.combine = '{config.protect.combine}' with {job.cohort} clients a round: of so few, only clipped "
            "and median mean anything, and neither withstands more than one hostile client"
        )
    return notes
