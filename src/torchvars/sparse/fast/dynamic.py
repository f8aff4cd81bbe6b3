"""The part of a dense dictionary in a run of ISTA beside a convolution."""

import torch
from torch import Tensor

from .units import Units


class Dynamic:
    """The codes of the atoms in a portion of the batch. It adds what it explains to what the filters do.

    Args:
        atoms: (batch heads, N, M), in the domain of the images.
        of_atoms: room for their gradient, in the backward pass.
        form: knows how images hold the heads.
    """

    def __init__(self, form, atoms: Tensor, units: Units, of_atoms: Tensor | None = None):
        self.form, self.atoms, self.units, self.of_atoms = form, atoms, units, of_atoms
        self.codes: list[Tensor] = []

    def begin(self, origin: Tensor, explained: Tensor) -> None:
        self.codes.append(torch.bmm(self.atoms.mT, self.form.by_head(origin)))
        self.form.add_by_head_(explained, self.atoms, self.codes[-1])

    def step(self, index: int, residual: Tensor, explained: Tensor) -> None:
        moved = torch.baddbmm(self.codes[-1], self.atoms.mT, self.form.by_head(residual), alpha=-1)
        self.codes.append(self.units.shrink_(moved))
        self.form.add_by_head_(explained, self.atoms, moved)

    def receive(self, index: int, gradient: Tensor, sign: int) -> None:
        signal = self.form.by_head(gradient)
        self.of_atoms.baddbmm_(signal, self.codes[index].mT, alpha=sign)
        if index == self.units.steps:
            self.of_code = torch.bmm(self.atoms.mT, signal)
        else:
            self.of_code.baddbmm_(self.atoms.mT, signal, alpha=sign)

    def through_step(self, index: int, residual: Tensor, origin: Tensor, explained: Tensor) -> None:
        self.units.keep_support_(self.of_code, self.codes[index + 1])
        self.of_atoms.baddbmm_(self.form.by_head(residual), self.of_code.mT, alpha=-1)
        self.form.add_by_head_(explained, self.atoms, self.of_code)

    def through_begin(self, origin: Tensor, gradient: Tensor, of_origin: Tensor) -> None:
        self.receive(0, gradient, -1)
        self.of_atoms.baddbmm_(self.form.by_head(origin), self.of_code.mT)
        self.form.add_by_head_(of_origin, self.atoms, self.of_code)
