"""Local heads against the common one, as a table for a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacit.metrics.local_heads import LocalHead, LocalHeads
from tacit.report.client_table import visible
from tacit.report.evaluation_table import score_text

MOST = 20  # clients that are listed


def to_rich(found: LocalHeads) -> RenderableType:
    """A row per client, and the outcome in words."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("client")
    for title in ("labels", "held out", "common head", "local head"):
        table.add_column(title, justify="right")
    for each in found.heads[:MOST]:
        table.add_row(visible(each.name), f"{each.labels:,}", f"{each.held_out:,}", *accuracies(each))
    if len(found.heads) > MOST:
        table.add_row("…", "", "", "", "")
    return Group(Text(f"{found.about}: accuracy on each client's own samples", "bold"), table, Text(found.sentence()))


def accuracies(each: LocalHead) -> tuple[str, str]:
    """With the common head and with its own."""
    return score_text("accuracy", each.common), score_text("accuracy", each.local)
