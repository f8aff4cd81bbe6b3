"""Shrinkage functions, which a solver applies to the code after the gradient step."""

import torch
import torch.nn.functional as F
from torch import Tensor


def soft(code: Tensor, amount: Tensor | float) -> Tensor:
    """Soft threshold S(a, t) = sign(a) (|a| - t)+, the proximal map of t |a|. Entries below t become exactly zero."""
    return torch.sign(code) * F.relu(code.abs() - amount)


def gelu(code: Tensor, amount: Tensor | float) -> Tensor:
    """The threshold of the authors' code, sign(a) GELU(|a| - t).

    It is not a proximal map: it is discontinuous at zero and leaves no exact zeros. Only the released forms use it.
    """
    return torch.sign(code) * F.gelu(code.abs() - amount)
