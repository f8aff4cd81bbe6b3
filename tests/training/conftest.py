import pytest
from accelerate.state import AcceleratorState


@pytest.fixture(autouse=True)
def _forget_precision():
    """What accelerate remembers of a run in the same process."""
    AcceleratorState._reset_state()
