"""The uploads of a round: checked before they count, decoded when they are needed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacit.engines import failures
from tacit.engines.job import ClientOutcome, ClientResult
from tacit.engines.upload_form import BadUploadError, UploadForm
from tacit.engines.wire import Encoded, WireError, finite


@dataclass(frozen=True)
class Changed:
    """An upload that is changed at every access; the change takes the decoded message."""

    up: object
    change: Callable[[Any], Any]


def decoded(up: object) -> Any:
    """The message itself."""
    if isinstance(up, Changed):
        return up.change(decoded(up.up))
    return up.decode() if isinstance(up, Encoded) else up


class Uploads(Mapping[int, Any]):
    """The uploads of a round by client, in ascending order; one that is still encoded is decoded at every access."""

    def __init__(
        self, ups: Mapping[int, object], form: UploadForm | None = None, counts: Mapping[int, int | None] | None = None
    ) -> None:
        """`ups` holds checked messages, also `Encoded` or `Changed`; `counts` is what each stands for at most."""
        self._ups, self._form, self._counts = dict(sorted(ups.items())), form, counts or {}

    def __getitem__(self, client: int) -> Any:
        """The client's upload."""
        message, most = decoded(self._ups[client]), self._counts.get(client)
        return message if most is None or self._form is None else self._form.capped(message, most)

    def __iter__(self) -> Iterator[int]:
        """The clients."""
        return iter(self._ups)

    def __len__(self) -> int:
        """Number of uploads."""
        return len(self._ups)


def check_upload(form: UploadForm, result: ClientResult, keep_decoded: bool) -> ClientOutcome:
    """A result whose upload has the declared form and only finite numbers; otherwise the failure of its sender."""
    down, sent = result.bytes_down, result.bytes_up
    if sent > form.longest:
        return failures.too_large(sent, form.longest).with_bytes(down, sent)
    try:
        up = decoded(result.up)
        form.check(up, result.metrics, result.held)
    except WireError as error:
        return failures.unreadable(error).with_bytes(down, sent)
    except BadUploadError as error:
        return failures.bad_upload(str(error)).with_bytes(down, sent)
    if not finite(up):
        return failures.not_finite().with_bytes(down, sent)
    return replace(result, up=up if keep_decoded else result.up, count=form.count(up))
