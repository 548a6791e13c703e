"""The updates in an upload: which of its fields they are, how far they lead from what was sent, and a changed copy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from tacit.engines.upload_form import UploadForm
from tacit.params import Params, Sparse
from tacit.updates import CountField, ModelField, Shaped

Updates = dict[str, Params]  # the difference from what was sent, by the path of its field


@dataclass(frozen=True)
class DeclaredField:
    """A field of an upload, as its method declares it."""

    path: str
    note: ModelField | Shaped | CountField | None  # None: a plain value, or one that nothing says anything about
    sparse: bool = False


def declared_fields(hint: Any, at: str = "") -> Iterator[DeclaredField]:
    """The fields of a declared type; one without a name if the type itself says nothing."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in (None, NoneType):
        return
    if origin in (Union, UnionType):
        for part in parts:
            yield from declared_fields(part, at)
    elif origin is Annotated:
        notes = [note for note in parts[1:] if isinstance(note, ModelField | Shaped | CountField)]
        sparse = get_args(parts[0])[1:] == (Sparse,)
        yield DeclaredField(at, notes[0] if notes else None, sparse)
    elif isinstance(hint, type) and is_dataclass(hint) and hint is not Sparse:
        hints = get_type_hints(hint, include_extras=True)
        for item in fields(hint):
            yield from declared_fields(hints[item.name], f"{at}.{item.name}".lstrip("."))
    else:
        yield DeclaredField(at, None)


def sent_for(path: str, down: object) -> Params:
    """What was sent for a field: the model in the field of the same name; tensors that it lacks, from other fields."""
    models = dict(_models(down, ""))
    same = [at for at in models if at.rpartition(".")[2] == path.rpartition(".")[2]]
    found: Params = {}
    for at in sorted(models, key=lambda at: at in same):  # the same name comes last, and wins
        found |= models[at]
    return found


def _models(value: object, at: str) -> Iterator[tuple[str, Params]]:
    """All models in a message, by their path."""
    if isinstance(value, dict) and value and all(isinstance(each, Tensor) for each in value.values()):
        yield at, value
    elif is_dataclass(value) and not isinstance(value, Sparse):
        for item in fields(value):
            yield from _models(getattr(value, item.name), f"{at}.{item.name}".lstrip("."))


def updates_of(form: UploadForm, up: object, down: object) -> Updates:
    """The update of every field that holds a model or a change of one."""
    found: Updates = {}
    for path, value, note in form.tensor_fields(up):
        if isinstance(note, ModelField) and not any(isinstance(each, Sparse) for each in value.values()):
            origin = {} if note.change else sent_for(path, down)
            found[path] = {name: each - origin[name] if name in origin else each for name, each in value.items()}
    return found


def with_updates(form: UploadForm, up: Any, down: object, updates: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """The upload with other updates; tensors that are not among them stay."""
    for path, value, note in list(form.tensor_fields(up)):
        if path in updates and isinstance(note, ModelField):
            origin = {} if note.change else sent_for(path, down)
            new = {name: origin[name] + each if name in origin else each for name, each in updates[path].items()}
            up = replaced(up, path, value | new)
    return up


def replaced(message: Any, path: str, value: object) -> Any:
    """The message with another value in one field."""
    first, _, rest = path.partition(".")
    return replace(message, **{first: replaced(getattr(message, first), rest, value) if rest else value})
