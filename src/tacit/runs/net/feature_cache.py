"""`net.views`: what frozen layers make of each image is computed once and stored on the holder's own disk.

The plain image and a number of weak and of strong views pass through the layers below what trains. Every method then
trains on that, with the layers above. Random views come from streams with a name and depend on no seed of a run, so
runs share the files. A file has its name from the weights, the images and the views; only its owner can read it.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.inputs import ImageInputs
from tacit.data.sources import pixel_cache
from tacit.data.views.cached import CachedViews
from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.federation import Samples, ServerData, Views
from tacit.method import Needs
from tacit.nets.border import UpperNet, border_of
from tacit.process import cores, one_thread, use_one_thread
from tacit.random import Streams
from tacit.runs.config import Config
from tacit.runs.net.config import NetConfig

PART = 16  # images that pass through at once; fixed, since the last bits may depend on it
FOLDER = "features"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class CachedImages(ImageInputs):
    """Images of which a network sees stored activations."""

    net: UpperNet | None = None
    seen: Views | None = None  # the views of the images themselves

    def noise(self, kind: str, views: Views, stream: torch.Generator) -> Tensor:
        """What the layers below make of an image of noise."""
        assert self.net is not None
        assert self.seen is not None
        return self.net.below(super().noise(kind, self.seen, stream))


def with_cached_features(config: Config, job: Job) -> Job:
    """The job on stored activations, if the config asks for it; the same job otherwise."""
    count = config.net.views
    if count is None:
        return job
    low_rank = (config.net.train or "").startswith("lora")  # its changes begin right above the first layer
    border = None if low_rank else border_of(job.net)
    if border is None or job.net.buffers or not job.federation.inputs.drawable:
        raise TacitError(
            "net.views needs images and frozen layers below all that trains",
            "use net.train = 'head', or last:N with efficientnet-lite0; or leave out net.views",
            code="net.nothing-to-cache",
        )
    if any(getattr(part, "needs", Needs()).mixable for part in (job.method, getattr(job.method, "objective", None))):
        problem = f"{config.method_name} mixes images, and net.views caches features of single images"
        raise TacitError(problem, "leave out net.views", code="net.views-cannot-be-mixed")
    if config.engine.name != "local":
        problem = "net.views does not work with Flower's simulation"
        raise TacitError(problem, "use --engine local", code="net.views-with-flower")
    net = UpperNet(job.net, border)
    data = job.federation
    key = _key(config.net, net, data.views, count)

    def stored(samples: Samples, views: int = count) -> Samples:
        return Samples(_activations(net, data.views, samples.x, views, key), samples.y, samples.group)

    inputs = CachedImages(**vars(data.inputs), net=net, seen=data.views)
    with one_thread():
        federation = replace(
            data,
            pool=stored(data.pool),
            server=ServerData(stored(data.server.labeled), stored(data.server.validation)),
            test=stored(data.test, 0),
            inputs=inputs,
            views=CachedViews(count),
        )
    return replace(job, net=net, federation=federation)


def _key(config: NetConfig, net: UpperNet, views: Views, count: int) -> str:
    """A hash of everything but the images: the layers below, the views and their number."""
    built = (config.name, config.norm, config.width, sorted(config.options.items()), net.border)
    digest = sha256(f"{built} {views!r} {count} {PART} {torch.__version__}".encode())
    for name, value in sorted(net.frozen_tensors().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def _activations(net: UpperNet, views: Views, x: Tensor, count: int, key: str) -> Tensor:
    """(n, …) stored images -> (n, 1 + 2·count, …) activations, from disk if they are there."""
    form = net.below(views.plain(x.new_zeros(1, *x.shape[1:]))).shape[1:]
    shape = (len(x), 1 + 2 * count, *form)
    if not len(x):
        return torch.empty(shape)
    digest = sha256(f"{key} {count}".encode())
    for part in x.split(1024):
        digest.update(part.contiguous().numpy())

    def put(start: int, out: Floats) -> None:
        def one(at: int) -> None:
            rows = slice(at, min(at + PART, len(out)))
            out[rows] = _views_of(net, views, x[start + rows.start : start + rows.stop], count, start + at)

        with ThreadPoolExecutor(cores(), initializer=use_one_thread) as pool:
            list(pool.map(one, range(0, len(out), PART)))

    found = pixel_cache.mapped(digest.hexdigest()[:32], shape, put, np.float32, FOLDER)
    return torch.from_numpy(found)


def _views_of(net: UpperNet, views: Views, x: Tensor, count: int, at: int) -> Floats:
    """(k, …) -> (k, 1 + 2·count, …): plain, weak ones, strong ones; `at` is the position of the first image."""
    streams = Streams(0)
    seen = [views.plain(x)]
    for kind in ("weak", "strong"):
        look = views.weak if kind == "weak" else views.strong
        seen += [look(x, streams.at(f"cached {kind} {number}", round=at)) for number in range(count)]
    found: Floats = torch.stack([net.below(each) for each in seen], dim=1).numpy()
    return found
