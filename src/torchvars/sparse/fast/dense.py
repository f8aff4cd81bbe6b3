"""ISTA with a dense dictionary, forward and backward written together."""

import torch
from torch import Tensor

from ..once import once
from ..operators import Dense
from ..precision import precisely
from .units import Units


def reconstruct(operator: Dense, signal: Tensor, units: Units) -> Tensor:
    """P u after ISTA: signal (..., N, C) -> (..., N, C)."""
    batch = torch.broadcast_shapes(operator.atoms.shape[:-2], signal.shape[:-2])
    atoms, gram, signal, bound = (
        tensor.expand(*batch, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])
        for tensor in (operator.atoms, operator.gram_matrix.detach(), signal, operator.lipschitz())
    )
    return _Dense.apply(atoms, gram, signal, bound, units).view(*batch, *signal.shape[-2:])


class _Dense(torch.autograd.Function):
    """Between P^T x and P u there are small matrices only, M x M and M x C, so P is read but three times."""

    @staticmethod
    def forward(ctx, atoms: Tensor, gram: Tensor, signal: Tensor, bound: Tensor, units: Units) -> Tensor:
        gram = gram / bound
        drive = torch.bmm(atoms.mT, signal).div_(units.unit)  # P^T y / L
        codes = [drive * units.start_factor(bound)]
        for _ in range(units.steps):
            codes.append(units.shrink_((codes[-1] + drive).baddbmm_(gram, codes[-1], alpha=-1)))
        code = codes[-1] * (units.unit / bound)
        ctx.save_for_backward(atoms, gram, signal, bound, code, *codes)
        ctx.units = units
        return torch.bmm(atoms, code)

    @staticmethod
    @once()
    @precisely
    def backward(ctx, upstream: Tensor):
        atoms, gram, signal, bound, code, *codes = ctx.saved_tensors
        units = ctx.units
        of_atoms = torch.bmm(upstream, code.mT)
        of_code = torch.bmm(atoms.mT, upstream) * (units.unit / bound)
        of_gram, of_drive = torch.zeros_like(gram), torch.zeros_like(of_code)
        for after, before in zip(codes[:0:-1], codes[-2::-1], strict=True):
            units.keep_support_(of_code, after)
            of_gram.baddbmm_(of_code, before.mT, alpha=-1)
            of_drive += of_code
            of_code = torch.baddbmm(of_code, gram, of_code, alpha=-1)
        of_drive = (of_drive + of_code * units.start_factor(bound)) / units.unit
        of_gram = (of_gram + of_gram.mT) / bound
        of_atoms.baddbmm_(atoms, of_gram).baddbmm_(signal, of_drive.mT)
        return of_atoms, None, torch.bmm(atoms, of_drive), None, None
