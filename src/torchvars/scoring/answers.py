"""Predictions of a classifier as columns: one value for each picture."""

import torch
from torch import Tensor


def answers(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Columns (B,) of logits (B, classes) and labels (B,): right, named, confidence and loss, on the CPU.

    `named` is the class with the largest logit, `confidence` its probability, `loss` the cross-entropy.
    """
    log_probabilities = logits.cpu().double().log_softmax(-1)
    labels = labels.cpu()
    confidence, named = log_probabilities.max(-1)
    loss = -log_probabilities.gather(-1, labels[:, None])[:, 0]
    return {"right": named == labels, "named": named, "confidence": confidence.exp(), "loss": loss}


UNREAD = {"right": False, "named": -1, "confidence": torch.nan, "loss": torch.nan}
"""Values for a picture that could not be read: it is not recognised, and has neither confidence nor loss."""
