from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from PIL import Image


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """Twenty pictures to learn from and seven to be judged by, of two kinds: reddish and bluish noise."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 4)):
        for label, name in enumerate(("red", "blue")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count - (split == "val" and label)):
                noise = generator.integers(0, 128, (16, 16, 3))
                noise[..., 2 * label] += 100
                Image.fromarray(noise.astype(np.uint8)).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture
def accelerator() -> Accelerator:
    """In single precision, whatever the runs of other tests were in: the first one in a process decides for all."""
    AcceleratorState._reset_state()
    return Accelerator(mixed_precision="no", cpu=True)
