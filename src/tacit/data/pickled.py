"""Reads the pickles of CIFAR without running them.

A pickle is a program. This reader knows the few instructions that build dicts, lists, numbers, strings and plain
numpy arrays (protocol 2, as Python 2 and 3 write it), and calls nothing: any other instruction or name is refused.
"""

import pickletools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_ARRAY = {f"{module} _reconstruct" for module in ("numpy.core.multiarray", "numpy._core.multiarray")}
_NAMES = _ARRAY | {"numpy ndarray", "numpy dtype", "_codecs encode"}
_PLAIN = re.compile(r"[biuf][1248]")
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "BINSTRING", "SHORT_BINSTRING"}


@dataclass(frozen=True)
class _Name:
    """A global the pickle asks for; it is compared, never imported."""

    text: str


class _Mark:
    """Where a group of values begins on the stack."""


@dataclass
class _Pending:
    """A numpy array or dtype that still waits for its state."""

    code: str = ""  # of a dtype; an array has none
    value: Any = None


def read(raw: bytes) -> Any:
    """The value in a pickle; ValueError where it holds anything but plain data."""
    try:
        return _plain(_run(raw))
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no pickle of plain data: {error}") from None


def _run(raw: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for instruction, argument, _ in pickletools.genops(raw):
        name = instruction.name
        if name == "STOP":
            return stack.pop()
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        else:
            _step(name, argument, stack)
    raise ValueError("the pickle has no end")


def _step(name: str, argument: Any, stack: list[Any]) -> None:
    match name:
        case "PROTO":
            pass
        case "EMPTY_DICT" | "EMPTY_LIST":
            stack.append({} if name == "EMPTY_DICT" else [])
        case "MARK":
            stack.append(_Mark())
        case "GLOBAL":
            stack.append(_allowed(argument))
        case "APPEND" | "APPENDS":
            items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        case "SETITEM" | "SETITEMS":
            items = _since_mark(stack) if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple(_since_mark(stack) if name == "TUPLE" else _last(stack, int(name[-1]))))
        case "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_made(function, arguments))
        case "BUILD":
            state = stack.pop()
            _set_state(stack[-1], state)
        case _ if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        case _ if name in _VALUES:
            stack.append(argument)
        case _:
            raise ValueError(f"the pickle holds {name}, which plain data does not need")


def _allowed(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"the pickle asks for {name.replace(' ', '.')}, which is not plain data")
    return _Name(name)


def _since_mark(stack: list[Any]) -> list[Any]:
    start = max(place for place, item in enumerate(stack) if isinstance(item, _Mark))
    items = stack[start + 1 :]
    del stack[start:]
    return items


def _last(stack: list[Any], count: int) -> list[Any]:
    items = stack[-count:]
    del stack[-count:]
    return items


def _made(function: Any, arguments: Any) -> Any:
    """What a call would give: an array or dtype without state yet, or bytes that came as text."""
    if not isinstance(function, _Name):
        raise ValueError("the pickle calls something that is no function")
    if function.text == "_codecs encode":
        return arguments[0].encode("latin-1")
    if function.text == "numpy dtype" and _PLAIN.fullmatch(arguments[0]):
        return _Pending(code=arguments[0])
    if function.text in _ARRAY and arguments[0] == _Name("numpy ndarray"):
        return _Pending()
    raise ValueError(f"the pickle calls {function.text.replace(' ', '.')} in a way plain data does not need")


def _set_state(pending: Any, state: Any) -> None:
    if not isinstance(pending, _Pending):
        raise ValueError("the pickle sets the state of something that has none")
    if pending.code:
        pending.value = np.dtype(pending.code).newbyteorder("=" if state[1] == "|" else state[1])
        return
    _, shape, dtype, fortran, content = state
    content = content.encode("latin-1") if isinstance(content, str) else content
    array = np.frombuffer(content, dtype=dtype.value)
    pending.value = array.reshape(shape, order="F" if fortran else "C")


def _plain(value: Any) -> Any:
    """The value with finished arrays, and nothing in it that is not plain."""
    match value:
        case _Pending(value=np.ndarray() as array):
            return array
        case dict():
            return {_text(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
    raise ValueError("the pickle holds something that is not plain data")


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
