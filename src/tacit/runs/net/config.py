"""The section `[net]` of a config: which network, which weights it starts from, pinned by their hash, what trains."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit import nets
from tacit.data.sources.fetch import data_folder
from tacit.errors import TacitError
from tacit.method import Count, Positive
from tacit.nets import weights
from tacit.nets.start import NONE, Start, Trains
from tacit.nets.weights import Published
from tacit.runs.net.options import as_settings

HF = "hf"


@dataclass(frozen=True)
class NetConfig:
    """The network."""

    name: str = "lenet"  # see `tacit ls nets`; hf:FOLDER; or your own `module:factory`; by the data when not given
    norm: nets.Norm | None = None  # normalisation layers; the network's default when not given
    width: Positive = 1.0  # factor on the number of channels
    options: dict[str, Any] = field(default_factory=dict)  # more arguments of this network's factory, by name
    weights: str | None = None  # start from a file or a run; none: from scratch; the published ones when not given
    sha256: str | None = None  # of the file of weights; filled in, and checked wherever the run goes
    train: str | None = None  # what trains: all, head, last:N (blocks, and the head), lora:R; all when not given
    views: Count | None = None  # compute frozen layers once, for the image and this many weak and strong views of it
    one_vs_all: bool | None = None  # a second head, a yes and a no for each class; given where the objective has a use
    zero_head: bool | None = None  # the head starts at zero, so that an untrained network is never confident


def completed(net: NetConfig) -> NetConfig:
    """The section with checked options, full paths, and the hash of its weights; refuses what cannot be built."""
    if net.name.startswith(f"{HF}:"):
        net = _from_folder(net, Path(net.name.removeprefix(f"{HF}:")).expanduser().absolute())
    net = replace(net, options=as_settings(net.name, net.options))
    Trains.parse(net.train or "all")
    published = _published(net)
    if published is not None:
        return _pinned(net, published.sha256, published.name)
    if net.weights in (None, NONE):
        return replace(net, sha256=None)  # of another network, where a config is reused
    net = replace(net, weights=str(Path(str(net.weights)).expanduser().absolute()))
    if net.sha256 is not None:  # checked once the file is read, which may be on another machine
        return net
    return replace(net, sha256=weights.digest(weights.locate(str(net.weights))))


def start_of(net: NetConfig) -> Start:
    """Where the network starts; refuses weights that this machine lacks."""
    trains, zero_head = Trains.parse(net.train or "all"), bool(net.zero_head)
    if (published := _published(net)) is not None:
        return Start(published.find(), published.sha256, True, trains, zero_head, published.about)
    if net.weights in (None, NONE):
        return Start(trains=trains, zero_head=zero_head)
    file = _file(str(net.weights), net.sha256)
    about = {"name": file.name, "source": f"SHA-256 {net.sha256}", "licence": "as its file says"}
    return Start(file, net.sha256, False, trains, zero_head, about)


def skeleton_of(net: dict[str, Any]) -> Start:
    """How to build the network of a saved model, whose file has all weights: `net` is the section as it was saved."""
    return Start(trains=Trains.parse(str(net.get("train") or "all")))


def _published(net: NetConfig) -> Published | None:
    """The published weights of the network, if it starts from them."""
    found: Published | None = getattr(nets.NETS.get(net.name), "published", None)
    return found if net.weights is None else None


def _pinned(net: NetConfig, sha256: str, name: str) -> NetConfig:
    if net.sha256 not in (None, sha256):
        problem = f"this version of Tacit starts {net.name} from other weights of {name} than the config pins"
        raise TacitError(problem, "use the version that wrote the config", code="nets.other-weights")
    return replace(net, sha256=sha256)


def _file(name: str, sha256: str | None) -> Path:
    """The file of weights at its path, or, on another machine, under its hash in the folder of data sets."""
    by_hash = data_folder() / "weights" / str(sha256)
    if not Path(name).exists() and by_hash.is_file():
        return by_hash
    if not Path(name).exists() and sha256:
        problem = f"the weights {Path(name).name} with the SHA-256 {sha256} are not on this machine"
        raise TacitError(problem, f"put the file there as {by_hash}", code="nets.no-weights")
    return weights.locate(name)


def _from_folder(net: NetConfig, folder: Path) -> NetConfig:
    """`hf:FOLDER` in full: the architecture as text, the normalisation of its processor, and its file of weights."""
    try:
        config = json.dumps(json.loads((folder / "config.json").read_text(encoding="utf-8")), sort_keys=True)
    except (OSError, ValueError):
        problem = f"{folder} has no readable config.json"
        raise TacitError(problem, "give a folder as save_pretrained writes it", code="nets.not-hugging-face") from None
    options: dict[str, Any] = {"config": config}
    processor = folder / "preprocessor_config.json"
    if processor.is_file():
        about = json.loads(processor.read_text(encoding="utf-8"))
        if about.get("image_mean") and about.get("image_std"):
            options |= {"mean": list(about["image_mean"]), "std": list(about["image_std"])}
    file = net.weights or str(folder / weights.RUN_FILE)
    return replace(net, name=HF, options=options | dict(net.options), weights=file)
