"""From a config to a job: load the data, split it, build the network, and refuse what cannot run before writing."""

from collections.abc import Callable
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import NamedTuple

from tacit import nets
from tacit.data import sources
from tacit.data.federate import federate, pooled
from tacit.data.folds import with_all_labels, without_fold
from tacit.data.gather import gathered, with_validation
from tacit.data.held_out import with_hold_out
from tacit.data.sources import Source
from tacit.data.split.config import DataConfig
from tacit.data.split.split import Split, draw_split
from tacit.data.unknown import with_unknown
from tacit.engines.job import Job
from tacit.engines.judging import can_judge
from tacit.engines.selection import SelectionRule
from tacit.errors import TacitError
from tacit.federation import Federation
from tacit.learn.central import Recipe
from tacit.method import Needs
from tacit.nets import Net
from tacit.objectives.supervised import Supervised, WeakAndStrong
from tacit.params import mean
from tacit.protect import rules, sample_dp
from tacit.protect.config import FEWEST
from tacit.protect.sample_budget import DELTA, Spent, epsilon
from tacit.random import Streams
from tacit.runs.config import Config
from tacit.runs.devices import devices, worker_count
from tacit.runs.net.config import start_of
from tacit.runs.net.options import check_options
from tacit.runs.protection import refuse_protection

# The guard's reference is the best of these on validation: two rates and initial weights, weak views with and without
# strong ones.
REFERENCE = (
    Recipe(Supervised(), 0.03),
    Recipe(Supervised(), 0.01, start=1),
    Recipe(WeakAndStrong(), 0.03),
    Recipe(WeakAndStrong(), 0.01, start=1),
)


def build_data(config: Config, loaded: Source | None = None) -> tuple[Source, Split]:
    """The samples that a config names, and who holds which of them; `loaded` are these samples, if they are at hand."""
    data, streams = config.data, Streams(config.seed)
    found = with_unknown(loaded or sources.load(data.name, *data.reading), data.unknown_classes)
    source = pooled(with_all_labels(found) if data.folds else found, data, streams)
    if data.bits is not None and source.inputs.bits is None and not data.at_sites:
        raise TacitError(f"{data.name} has no 16-bit grey images", "leave out data.bits", code="data.no-16-bit-images")
    if data.clients > len(source.y) and not data.at_sites:
        raise TacitError(
            f"{data.clients} clients cannot share {len(source.y)} samples",
            "lower --clients",
            code="data.too-many-clients",
        )
    if len(source.classes) == 1:
        raise TacitError(
            f"{data.name} has only one class, {source.classes[0]}",
            "add labeled samples of another class",
            code="data.one-class",
        )
    groups = None if source.groups is None else source.groups.numpy()
    y, classes, spare = source.y.numpy(), source.classes, len(source.y) - len(found.y)
    split = draw_split(y, len(classes), data, streams, groups, classes, whole_groups=source.whole_groups, spare=spare)
    return source, split


def build_job(config: Config, loaded: Source | None = None) -> tuple[Job, Split]:
    """The job that a config describes; refuses a method whose needs are not met. `loaded`: see `build_data`."""
    source, split = build_data(config, loaded)
    federation = federate(source, split, config.data)
    if gathers := getattr(config.build_method(), "gathers", None):
        federation = with_validation(gathered(federation, gathers), Streams(config.seed))
    elif config.log.select == "guard" and not config.data.folds:
        federation = with_validation(federation, Streams(config.seed))
    if config.data.folds and config.data.fold is not None:
        federation = without_fold(federation, config.data.folds, config.data.fold, Streams(config.seed))
    job = assemble(config, federation)
    _refuse_unmet_needs(config, job)
    refuse_protection(config, job)
    return job, split


def assemble(config: Config, federation: Federation) -> Job:
    """The job of a config on given data; checks no needs."""
    if config.data.hold_out is not None:
        federation = with_hold_out(federation, config.data.hold_out, Streams(config.seed))
    net = build_net(config, federation)
    if net.moments is not None and config.data.normalise == "data":
        federation = _normalised(federation, config.data, *net.moments)
    found = devices(config.engine)
    worker_count(config.engine, found)  # refuses a number that cannot be, before anything is written
    return Job(
        method=config.build_method(),
        net=net,
        federation=federation,
        streams=Streams(config.seed),
        rounds=config.rounds,
        cohort=config.cohort or config.data.clients,
        train=config.train,
        server_train=config.server_train,
        device=found[0],
        faults=config.faults,
        deadline=config.engine.deadline,
        min_clients=config.engine.min_clients,
        evaluate_every=config.log.evaluate_every,
        evaluate_local=config.log.local,
        selection=SelectionRule(config.log.select, config.train.patience, REFERENCE),
        metrics=config.log.metrics or (),
        limits=config.limits,
        protect=config.protect,
        rule=rules.parse(config.protect.combine) or mean,
        hold_out=config.data.hold_out is not None,
    )


def build_net(config: Config, federation: Federation) -> Net:
    """The network of a config for the samples of a federation."""
    net, inputs = config.net, federation.inputs
    options = check_options(net.name, net.options)
    return nets.build(
        net.name,
        inputs.shape,
        len(federation.classes),
        net.norm,
        net.width,
        options,
        inputs,
        start_of(net),
        bool(net.one_vs_all),
    )


def _normalised(
    federation: Federation, data: DataConfig, mean: tuple[float, ...], std: tuple[float, ...]
) -> Federation:
    """The federation with the normalisation that pretrained weights expect, in place of that of its samples."""
    inputs = federation.inputs.with_moments(mean, std)
    return replace(federation, inputs=inputs, views=inputs.views(data))


class Requirement(NamedTuple):
    """A need of a method or its objective: when it is unmet, what to say after the method's name, and the remedy."""

    need: str  # a field of `Needs`
    unmet: Callable[[Config, Job], bool]
    problem: str
    remedy: str
    code: str


REQUIREMENTS = (
    Requirement(
        "server_labels",
        lambda config, job: not len(job.federation.server.labeled),
        "needs labels at the server",
        "use --labels server",
        "method.needs-server-labels",
    ),
    Requirement(
        "validation",
        lambda config, job: not len(job.federation.server.validation),
        "needs validation samples at the server",
        "use --validation 200, or another number",
        "method.needs-validation",
    ),
    Requirement(
        "features",
        lambda config, job: not job.net.has_features,
        "needs a network with features, and {net} has none",
        "use --net {suggested}",
        "method.needs-features",
    ),
    Requirement(
        "linear_head",
        lambda config, job: job.net.head is None,
        "needs a linear last layer, which {net} does not have",
        "use --net {suggested}",
        "method.needs-linear-head",
    ),
    Requirement(
        "fresh_momentum",
        lambda config, job: config.train.optimizer == "keep",
        "does not work with momentum that is carried from round to round",
        "use train.optimizer = 'reset'",
        "method.needs-fresh-momentum",
    ),
    Requirement(
        "mixable",
        lambda config, job: not job.federation.inputs.mixable,
        "mixes samples, and those of {data} are {kind}",
        "use fedavg+fixmatch, or another method that does not mix samples",
        "method.needs-mixable-samples",
    ),
    Requirement(
        "simulation",
        lambda config, job: config.engine.name != "local",
        "shows samples of clients to others, so it is for simulations only",
        "use --engine local",
        "method.simulation-only",
    ),
    Requirement(
        "steady_data",
        lambda config, job: job.federation.arrivals is not None,
        "remembers the labels of samples, and with data.stream_steps above 1 samples come and go",
        "use data.stream_steps = 1",
        "method.needs-steady-data",
    ),
)


def _refuse_unmet_needs(config: Config, job: Job) -> None:
    """Refuse data, a network or settings that the method cannot work with."""
    federation = job.federation
    _refuse_held_out(config)
    if not len(federation.test) and not config.data.folds:
        raise TacitError(
            f"{config.data.name} has no labeled samples to test on",
            "add x_test and y_test to it",
            code="data.no-test-samples",
        )
    if not config.data.at_sites or config.data.labels == "server":
        refuse_missing_labels(config, job, labels_at_clients=bool((federation.pool.y >= 0).any()))
    words = {"net": config.net.name, "data": config.data.name, "kind": federation.inputs.kind}
    words["suggested"] = federation.inputs.suggested_net
    parts = [getattr(part, "needs", Needs()) for part in (job.method, getattr(job.method, "objective", None))]
    for each in REQUIREMENTS:
        if any(getattr(needs, each.need) for needs in parts) and each.unmet(config, job):
            problem = f"{config.method_name} {each.problem.format(**words)}"
            raise TacitError(problem, each.remedy.format(**words), code=each.code)
    if job.selection.needs_validation and not can_judge(job):
        setting = "train.patience" if config.train.patience else f"log.select = '{config.log.select}'"
        raise TacitError(
            f"{setting} needs validation samples at the server, or labels that clients hold out",
            "use --validation 200, or another number; with labels at clients, --set data.hold_out=0.2",
            code="config.needs-validation",
        )
    _refuse_buffers(config, job)
    refuse_unprotected(job)


def _refuse_held_out(config: Config) -> None:
    """Refuse labels that are held out where that cannot be, or would not mean anything."""
    data, protect = config.data, config.protect
    if data.hold_out is not None and data.labels == "server":
        raise TacitError(
            "data.hold_out is a share of the clients' labels, and the server has all of them",
            "use --validation",
            code="data.hold-out-at-server",
        )
    if data.hold_out is not None and protect.silences_clients:
        raise TacitError(
            "with data.hold_out clients return counts of right labels, which [protect] would not hide",
            "leave out data.hold_out",
            code="protect.hold-out",
        )
    if data.hold_out is not None and data.shared:
        raise TacitError(
            "with data.shared a label that one client holds out is one that others train on",
            "leave out data.hold_out or data.shared",
            code="data.hold-out-shared",
        )
    if data.folds and (data.at_sites or data.shared):
        raise TacitError(
            "data.folds needs to divide all labels, which is impossible with sites or data.shared",
            "leave out data.folds",
            code="data.folds-elsewhere",
        )
    if data.fold is not None and data.fold >= (data.folds or 0):
        raise TacitError(
            f"there is no fold {data.fold}, only {data.folds or 0} folds from 0",
            "set data.folds, and a lower data.fold",
            code="data.no-such-fold",
        )


def refuse_missing_labels(config: Config, job: Job, *, labels_at_clients: bool) -> None:
    """Refuse a run without the labels it needs; if sites hold the data, only once they have reported their labels."""
    at_sites = config.data.at_sites and config.data.labels != "server"
    label_a_site = "label some samples at a site"
    if job.method.needs.client_labels and not labels_at_clients:
        optional = getattr(getattr(job.method, "objective", None), "labels_only", False)
        other = ", or an objective that learns without labels, such as +fixmatch" if optional else ""
        raise TacitError(
            f"{config.method_name} needs labels at the clients, and they have none",
            label_a_site if at_sites else f"set data.labels to client, some or all{other}",
            code="method.needs-client-labels",
            resumable=at_sites,
        )
    if not labels_at_clients and not len(job.federation.server.labeled):
        elsewhere = f"start a run with labels at the server, or {label_a_site}"
        raise TacitError(
            "there are no labels at all",
            elsewhere if at_sites else "use --labels with --per-class, --n-labels or --label-fraction",
            code="data.no-labels",
            resumable=at_sites,
        )


def refuse_unprotected(job: Job) -> None:
    """Refuse a protection that this run could not give."""
    if job.protect.secure:
        refuse_insecure(job)
    if job.sample_noise is None:
        return
    sample_dp.refuse_unfit(job.method, job.net)
    sample_dp.refuse_unvectorised(job.net, job.federation.inputs.blank())
    if job.train.precision not in (None, "fp32"):
        raise TacitError(
            f"protect.sample_noise bounds gradients in full precision, not in {job.train.precision}",
            "leave out train.precision",
            code="protect.low-precision",
        )
    if job.federation.arrivals is not None:
        raise TacitError(
            "protect.sample_noise counts steps over the same samples, and with data.stream_steps above 1 they change",
            "use data.stream_steps = 1",
            code="protect.streaming-data",
        )
    epsilon([Spent(job.sample_noise.noise or 1.0, 0.5, 1)], DELTA)  # refuses if there is no accountant


def refuse_insecure(job: Job) -> None:
    """Refuse secure aggregation where it cannot work, or together with what needs to see single uploads."""
    _ = job.sum_form  # refuses what is no sum
    if find_spec("cryptography") is None:
        problem = "protect.secure needs the package cryptography"
        raise TacitError(problem, "run `pip install 'tacit[privacy]'`", code="protect.no-cryptography")
    singly = [f"limits.{item.name}" for item in fields(job.limits) if getattr(job.limits, item.name) is not None]
    singly += ["protect.combine"] if job.protect.combine != "mean" else []
    singly += ["protect.client_noise"] if job.protect.hides_clients else []
    singly += ["faults.hostile"] if job.faults.hostile else []
    if singly:
        raise TacitError(
            f"with protect.secure the server sees no single upload, and {', '.join(singly)} would have to change one",
            "let the clients bound their updates themselves, with train.clip or protect.sample_noise",
            code="protect.secure-and-limits",
        )
    if job.cohort < FEWEST:
        raise TacitError(
            f"protect.secure hides an upload among {FEWEST} or more, and a round has {job.cohort} clients",
            "use more clients per round",
            code="protect.secure-needs-clients",
        )


def _refuse_buffers(config: Config, job: Job) -> None:
    """Refuse BatchNorm statistics that nothing could compute, or that the method would not treat as asked."""
    at_server, has_buffers = len(job.federation.server.labeled) > 0, bool(job.net.buffers)
    for section, train in (("train", config.train), ("server", config.server_train)):
        if job.method.needs.averaged_buffers and has_buffers and train.buffers != "average":
            raise TacitError(
                f"{config.method_name} averages BatchNorm statistics with the weights",
                f"leave out {section}.buffers",
                code="method.needs-averaged-buffers",
            )
        if train.buffers == "keep" and has_buffers and not at_server:
            raise TacitError(
                f"{section}.buffers = 'keep' leaves the common model without BatchNorm statistics",
                "use 'average', or --labels server",
                code="net.no-common-buffers",
            )
        if train.buffers == "recompute" and not at_server:
            raise TacitError(
                f"{section}.buffers = 'recompute' needs samples at the server",
                "use --labels server, or 'average'",
                code="net.recompute-without-samples",
            )
