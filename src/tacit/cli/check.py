"""`tacit check`: one page about a device, to read and to paste into a bug report."""

import time
from collections.abc import Iterator

from tacit.formatting import COLUMNS
from tacit.runs.device_check import (
    TOLERANCE,
    MethodCheck,
    PartCheck,
    check_methods,
    check_parts,
    device_of,
    machine,
)


def page(name: str, limit: float) -> Iterator[str]:
    """The lines of the page, as they are known; the last one begins with "fine" or with what is wrong."""
    device, until = device_of(name), time.monotonic() + limit
    yield from (f"{what:<8}{text}"[:COLUMNS] for what, text in machine(device))
    yield ""
    yield f"{'part':<36}{'on ' + name:>18}{'on one core':>18}"
    yield from map(_part_line, check_parts(device))
    yield ""
    yield "two rounds on tiny data: seconds, and the largest difference from the CPU"
    checked = list(check_methods(device, until))
    yield from _columns([each for each in checked if not each.problem])
    yield from (f"{each.name}: {each.problem}"[:COLUMNS] for each in checked if each.problem)
    yield ""
    yield verdict(checked)


def verdict(checked: list[MethodCheck]) -> str:
    """One line: how many methods agree with the CPU."""
    wrong = [each for each in checked if not each.fine]
    tried = sum(not each.problem or each in wrong for each in checked)
    if wrong:
        return f"{len(wrong)} of {tried} methods failed or differ by more than {TOLERANCE:.0%} from the CPU"
    left = f"; {len(checked) - tried} not tried" if tried < len(checked) else ""
    return f"fine: {tried} methods agree with the CPU within {TOLERANCE:.0%}{left}"


def _part_line(part: PartCheck) -> str:
    there, here = (f"{value:,.0f} {part.unit}/s" for value in (part.there, part.here))
    return f"{part.name:<36}{there:>18}{here:>18}"


def _columns(checked: list[MethodCheck]) -> Iterator[str]:
    """Two methods per line."""
    cells = [f"{each.name:<22}{each.seconds:>6.2f} {each.apart:>8.1e}" for each in checked]
    half = (len(cells) + 1) // 2
    for place in range(half):
        yield "   ".join(cells[place::half]).rstrip()
