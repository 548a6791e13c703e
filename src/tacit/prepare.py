"""From a config to a job: load, split, build, and refuse what can not run, before anything is written."""

import torch

from tacit import nets
from tacit.config import Config
from tacit.data import scenario, sources
from tacit.data.sources import Source
from tacit.engines.local import repeatable
from tacit.engines.loop import Job
from tacit.errors import TacitError
from tacit.federation import Federation
from tacit.random import Streams

_LABEL_SITES = "label some samples at a site and resume"


def build_data(config: Config) -> tuple[Source, scenario.Split]:
    """The samples a config names, and who holds which of them."""
    data, streams = config.data, Streams(config.seed)
    source = scenario.pooled(sources.load(data.name, data.size, data.bits), data, streams)
    if data.bits is not None and source.bits is None and not data.at_sites:
        raise TacitError(f"{data.name} has no grey images of 16 bits: leave data.bits out")
    if data.clients > len(source.y) and not data.at_sites:
        raise TacitError(f"{data.clients} clients can not share {len(source.y)} samples: lower --clients")
    if len(source.classes) == 1:
        raise TacitError(f"{data.name} has one class only, {source.classes[0]}: add labeled samples of another")
    groups = None if source.groups is None else source.groups.numpy()
    return source, scenario.split(source.y.numpy(), len(source.classes), data, streams, groups, source.classes)


def build_job(config: Config) -> tuple[Job, scenario.Split]:
    """The job a config describes; refuses what the method needs and the data lacks."""
    source, split = build_data(config)
    job = assemble(config, scenario.federation(source, split, config.data))
    _refuse_unmet_needs(config, job)
    return job, split


def assemble(config: Config, federation: Federation) -> Job:
    """The job of a config on this data, as it is."""
    shape = tuple(int(n) for n in federation.pool.x.shape[1:])
    return Job(
        method=config.build_method(),
        net=nets.build(config.net.name, shape, len(federation.classes), config.net.norm, config.net.width),
        federation=federation,
        streams=Streams(config.seed),
        rounds=config.rounds,
        cohort=config.cohort or config.data.clients,
        train=config.train,
        server_train=config.server_train,
        device=_device(config.engine.device),
        faults=config.faults,
        deadline=config.engine.deadline,
        min_clients=config.engine.min_clients,
        evaluate_every=config.log.evaluate_every,
        evaluate_local=config.log.local,
    )


def _refuse_unmet_needs(config: Config, job: Job) -> None:
    """One sentence with the remedy, before anything starts."""
    if not len(job.federation.test):
        raise TacitError(f"{config.data.name} has no labeled samples to test on: add x_test and y_test to it")
    needs, name, federation = job.method.needs, config.method_name, job.federation
    if not config.data.at_sites or config.data.labels == "server":
        refuse_missing_labels(config, job, labels_at_clients=bool((federation.pool.y >= 0).any()))
    if needs.server_labels and not len(federation.server.labeled):
        raise TacitError(f"{name} needs labels at the server: use --labels server")
    if needs.validation and not len(federation.server.validation):
        raise TacitError(f"{name} needs validation samples at the server: use --validation 200 or another number")
    if needs.features and not job.net.has_features:
        raise TacitError(f"{name} needs a network with features and {config.net.name} has none: use --net lenet")
    if needs.fresh_momentum and config.train.optimizer == "keep":
        raise TacitError(f"{name} can not work with momentum kept between rounds: use train.optimizer = 'reset'")
    mixes = needs.images or getattr(getattr(job.method, "objective", None), "images_only", False)
    if mixes and federation.test.x.dim() != 4:
        raise TacitError(
            f"{name} mixes images and {config.data.name} is text: use fedavg+fixmatch or another that does not"
        )
    if needs.simulation and config.engine.name != "local":
        raise TacitError(f"{name} shows samples of clients to others, for simulations only: use --engine local")
    if needs.steady_data and federation.arrivals is not None:
        raise TacitError(f"{name} remembers the labels of samples and these come and go: use data.steps = 1")
    _refuse_buffers(config, job)


def refuse_missing_labels(config: Config, job: Job, *, labels_at_clients: bool) -> None:
    """Refuse a run without the labels it needs; where sites hold data of their own, once these have said what."""
    sites = config.data.at_sites and config.data.labels != "server"
    if job.method.needs.client_labels and not labels_at_clients:
        choice = getattr(getattr(job.method, "objective", None), "labels_only", False)
        other = ", or an objective that learns without labels, such as +fixmatch" if choice else ""
        remedy = _LABEL_SITES if sites else f"set data.labels to client, some or all{other}"
        raise TacitError(f"{config.method_name} needs labels at the clients and these have none: {remedy}")
    if not labels_at_clients and not len(job.federation.server.labeled):
        choices = f"{_LABEL_SITES}, or start a run with labels at the server"
        remedy = choices if sites else "use --labels with --per-class, --n-labels or --label-fraction"
        raise TacitError(f"nobody has a label: {remedy}")


def _refuse_buffers(config: Config, job: Job) -> None:
    """BatchNorm statistics that nobody could make, or that the method would not treat as asked."""
    for section, train in (("train", config.train), ("server", config.server_train)):
        if job.method.needs.averaged_buffers and job.net.buffers and train.buffers != "average":
            raise TacitError(
                f"{config.method_name} averages BatchNorm statistics with the weights: leave {section}.buffers out"
            )
    keeps = "keep" in (config.train.buffers, config.server_train.buffers)
    if keeps and job.net.buffers and not len(job.federation.server.labeled):
        raise TacitError(
            "buffers = 'keep' leaves the common model without BatchNorm statistics: use 'average' or --labels server"
        )
    recompute = "recompute" in (config.train.buffers, config.server_train.buffers)
    if recompute and not len(job.federation.server.labeled):
        raise TacitError("buffers = 'recompute' needs samples at the server: use --labels server or 'average'")


def _device(name: str) -> torch.device:
    """The device, if it is here and dropout can be seeded on it; whoever builds a job is about to compute there."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise TacitError(f"runs on a device '{name}' would not be the same twice: use --device cpu or cuda")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise TacitError(f"there is no device '{name}' here: use --device cpu") from None
    repeatable(device)
    return device
