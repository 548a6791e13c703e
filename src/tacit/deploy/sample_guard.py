"""Whether an upload shows samples of a site: samples themselves, or means of too few of them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor

from tacit.deploy.site_errors import ShareableError
from tacit.engines.job import Job
from tacit.updates import SampleMeans


def smallest_group(job: Job, up: object) -> int | None:
    """The fewest samples that anything in an upload is a mean of; 1 for a sample itself, None if it has neither."""
    return min(_groups(job, up), default=None)


def require_groups(job: Job, up: object, least: int) -> None:
    """Refuse to send means of fewer than `least` samples."""
    found = smallest_group(job, up)
    if found is not None and found < least:
        raise ShareableError(
            group_problem(found, least),
            "choose larger groups at the hub, or leave this site out",
            code="site.group-too-small",
        )


def group_problem(found: int, least: int) -> str:
    """The sentence for an upload with too small groups."""
    what = "single samples" if found == 1 else f"means of {found} samples"
    return f"this run sends {what}, and this site allows means of {least} or more"


def _groups(job: Job, part: object) -> Iterator[int]:
    if isinstance(part, SampleMeans):
        if (size := part.smallest_group) is not None:
            yield size
    elif isinstance(part, Tensor):
        shape = tuple(job.federation.pool.x.shape[1:])
        if part.numel() and tuple(part.shape[part.ndim - len(shape) :]) == shape:
            yield 1
    elif isinstance(part, Mapping):
        if not part.keys() <= set(job.net.names):  # else it is a model
            for value in part.values():
                yield from _groups(job, value)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _groups(job, getattr(part, field.name))
    elif isinstance(part, (list, tuple)):
        for value in part:
            yield from _groups(job, value)
