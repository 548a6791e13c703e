"""Settings for every test: one torch thread, and no deadline, since a busy machine is not a failure."""

import torch
from hypothesis import settings

settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")
torch.set_num_threads(1)
