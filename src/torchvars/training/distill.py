"""Losses for distillation and for soft targets."""

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation_loss(logits: Tensor, teacher_logits: Tensor, kind: str, temperature: float) -> Tensor:
    """Distillation loss: logits (batch, classes) of a student and of its teacher -> a number.

    "soft": Kullback-Leibler divergence of the probabilities at a temperature, times its square (Hinton et al. 2015);
    "hard": cross-entropy with the teacher's decisions (DeiT).
    """
    if kind == "hard":
        return F.cross_entropy(logits, teacher_logits.argmax(-1))
    student, teacher = (F.log_softmax(each / temperature, dim=-1) for each in (logits, teacher_logits))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with soft targets: logits and targets (batch, classes) -> a number."""
    return -(targets * torch.log_softmax(logits, dim=-1)).sum(-1).mean()
