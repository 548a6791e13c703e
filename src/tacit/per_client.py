"""Something for each client as a field of a method's state, stored client by client."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Cell(Generic[Value]):
    """One client's value: in RAM, or read each time it is needed."""

    __slots__ = ("_read", "_value", "place")

    def __init__(self, value: Value) -> None:
        """A new value, stored nowhere yet."""
        self._value: Value | None = value
        self._read: Callable[[], Value] | None = None
        self.place: object = None  # where the engine has stored it, in the engine's terms

    def get(self) -> Value:
        """The value."""
        if self._read is not None:
            return self._read()
        return self._value  # type: ignore[return-value]

    def stored(self, place: object, read: Callable[[], Value]) -> None:
        """Note that the value is at `place`, from where `read` gets it, and forget it here."""
        self.place, self._read, self._value = place, read, None


class PerClient(Mapping[int, Value]):
    """A value for each client, for a field of a method's state: `held: PerClient[Model] = PerClient()`.

    It is used like a dict that never changes: `held | {7: model}` is a new one that shares the other values. A
    checkpoint writes each value to a file of its own, once, so a round costs what it changed and not what everyone
    holds. A stored value leaves the RAM and is read again when it is needed; values must not be changed in place.
    """

    __slots__ = ("cells",)

    def __init__(self, values: Mapping[int, Value] | None = None) -> None:
        """The values by client; none if not given."""
        self.cells: dict[int, Cell[Value]] = {client: Cell(value) for client, value in (values or {}).items()}

    @classmethod
    def of(cls, cells: Mapping[int, Cell[Any]]) -> "PerClient[Any]":
        """The values of existing cells."""
        made: PerClient[Any] = cls()
        made.cells.update(cells)
        return made

    def __getitem__(self, client: int) -> Value:
        """The value of a client."""
        return self.cells[client].get()

    def __contains__(self, client: object) -> bool:
        """Whether a client has one; reads nothing."""
        return client in self.cells

    def __iter__(self) -> Iterator[int]:
        """The clients that have one."""
        return iter(self.cells)

    def __len__(self) -> int:
        """How many clients have one."""
        return len(self.cells)

    def __or__(self, changed: Mapping[int, Value]) -> "PerClient[Value]":
        """The same values, with new ones for some clients."""
        return PerClient.of(self.cells | {client: Cell(value) for client, value in changed.items()})

    def __repr__(self) -> str:
        """The clients, not their values, which may be large."""
        return f"PerClient({sorted(self.cells)})"

    def unstored(self) -> dict[int, Value]:
        """The values that no checkpoint has stored yet."""
        return {client: cell.get() for client, cell in self.cells.items() if cell.place is None}
