import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchvars", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("torchvars")
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


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
