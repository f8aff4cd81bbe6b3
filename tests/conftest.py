import os

# Everything here is tiny: a second thread would mostly be waited for, by spinning, on CPUs that other processes want.
# Processes that tests start inherit it; set before NumPy and PyTorch are imported, which read it then.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)  # tables are as wide as that says

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchvars", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("torchvars")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """For what is tiny, or compared with processes of one thread: a second would mostly be waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
