"""Settings for every test: one torch thread, and no deadline, since a busy machine is not a failure.

Elsewhere each run tries new examples. In CI the examples follow from the test itself, so that the same commit has the
same outcome.
"""

import os

import torch
from hypothesis import settings

settings.register_profile("tacit", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("tacit")
torch.set_num_threads(1)
