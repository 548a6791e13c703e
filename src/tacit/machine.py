"""The machine this process runs on."""

import os


def cores() -> int:
    """Those this process may use, which need not be all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
