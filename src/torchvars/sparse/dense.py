"""ISTA with a dense dictionary, forward and backward written together.

A run in the units of its own threshold: with codes v = u L / strength and signals y = x L / strength the step reads

    v <- S(v - P^T (P v - y) / L, 1)

so that the threshold is one number for all, and its gradient is read off the code: it passes where v is not zero.
Without a penalty nothing is shrunk, and the units are those of strength 1.
"""

import torch
from torch import Tensor

from .once import once
from .operators import Dense
from .precision import precisely

# The starts that are a multiple of P^T y / L, and the multiple.
STARTS = {"analysis": lambda bound: bound, "scaled": lambda bound: 1.0, "zero": lambda bound: 0.0}


def takes(operator: Dense, start: str) -> bool:
    """Whether there is this form: with the Gram matrix, from a start that is a multiple of P^T x."""
    return operator.gram_matrix is not None and start in STARTS


def reconstruct(operator: Dense, signal: Tensor, strength: float, start: str, steps: int) -> Tensor:
    """P u after ISTA: signal (..., N, C) -> (..., N, C)."""
    batch = torch.broadcast_shapes(operator.atoms.shape[:-2], signal.shape[:-2])
    atoms, gram, signal, bound = (
        tensor.expand(*batch, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])
        for tensor in (operator.atoms, operator.gram_matrix.detach(), signal, operator.lipschitz())
    )
    return _Dense.apply(atoms, gram, signal, bound, strength, start, steps).view(*batch, *signal.shape[-2:])


class _Dense(torch.autograd.Function):
    """Between P^T x and P u there are small matrices only, M x M and M x C, so P is read but three times."""

    @staticmethod
    def forward(ctx, atoms, gram, signal, bound, strength: float, start: str, steps: int) -> Tensor:
        ctx.unit, ctx.start, ctx.penalized = strength or 1.0, start, strength > 0
        gram = gram / bound
        drive = torch.bmm(atoms.mT, signal).div_(ctx.unit)  # P^T y / L
        codes = [drive * STARTS[start](bound)]
        for _ in range(steps):
            code = (codes[-1] + drive).baddbmm_(gram, codes[-1], alpha=-1)
            codes.append(torch._C._nn.softshrink(code, 1.0, out=code) if ctx.penalized else code)
        code = codes[-1] * (ctx.unit / bound)
        ctx.save_for_backward(atoms, gram, signal, bound, code, *codes)
        return torch.bmm(atoms, code)

    @staticmethod
    @once()
    @precisely
    def backward(ctx, upstream: Tensor):
        atoms, gram, signal, bound, code, *codes = ctx.saved_tensors
        of_atoms = torch.bmm(upstream, code.mT)
        of_code = torch.bmm(atoms.mT, upstream) * (ctx.unit / bound)
        of_gram, of_drive = torch.zeros_like(gram), torch.zeros_like(of_code)
        for after, before in zip(codes[:0:-1], codes[-2::-1], strict=True):
            if ctx.penalized:
                torch.ops.aten.softshrink_backward.grad_input(of_code, after, 0.0, grad_input=of_code)
            of_gram.baddbmm_(of_code, before.mT, alpha=-1)
            of_drive += of_code
            of_code = torch.baddbmm(of_code, gram, of_code, alpha=-1)
        of_drive = (of_drive + of_code * STARTS[ctx.start](bound)) / ctx.unit
        of_gram = (of_gram + of_gram.mT) / bound
        of_atoms.baddbmm_(atoms, of_gram).baddbmm_(signal, of_drive.mT)
        return of_atoms, None, torch.bmm(atoms, of_drive), None, None, None, None
