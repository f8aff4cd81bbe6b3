"""Shrinkage functions: what a step of a solver does to a code after moving down the gradient."""

import torch
import torch.nn.functional as F
from torch import Tensor


def soft(code: Tensor, amount: Tensor | float) -> Tensor:
    """Soft threshold S(a, t) = sign(a) (|a| - t)+, the proximal map of t |a|: exact zeros below t."""
    return torch.sign(code) * F.relu(code.abs() - amount)


def gelu(code: Tensor, amount: Tensor | float) -> Tensor:
    """The released code's threshold, sign(a) GELU(|a| - t).

    It is no proximal map: it jumps at zero and leaves no exact zeros. Only the released forms use it.
    """
    return torch.sign(code) * F.gelu(code.abs() - amount)
