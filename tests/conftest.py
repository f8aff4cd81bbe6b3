import os

# Everything here is tiny: a second thread would mostly be waited for, and by spinning where other processes want the CPU.
# Processes that tests start inherit it; set before NumPy and PyTorch are imported, which read it then.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchvars", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("torchvars")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
