"""A sparse coding problem in the real Fourier basis of its grid, where a convolution is a product.

An orthonormal change of basis of the signals, x' = T x and P' = T P, changes neither P^T P nor P^T x. The same codes
solve the problem, and the solver is the same. With fixed filters a step is a transform of the code, two products, and
the inverse transform, which are few nodes in an exported graph.

Along an axis of n positions the basis is cos(2 pi k m / n) for k = 0 ... n / 2, then the sines that are not zero.
On a grid a signal is x = cc - i sc - j cs + i j ss with a unit i for the rows and another, j, for the columns, and so
is a filter k. At each position p of the coefficients their product has four terms,

    (k x)_p = k0_p x_p + kr_p x_r(p) + kc_p x_c(p) + krc_p x_rc(p)

where r(p), c(p) and rc(p) are the positions with cos and sin exchanged along the rows, the columns and both. In the
transposed product kr and kc have the opposite sign.
"""

import torch
from torch import Tensor, nn

from .bounds import rounded_up
from .fourier import coefficients, real_waves
from .operators import Operator, check_filters


class Basis(nn.Module):
    """The transform T of a grid, and the positions of the terms of a product.

    Args:
        grid: (H, W).
        like: a tensor whose precision and device are used.
    """

    rows: Tensor
    columns: Tensor
    rows_back: Tensor
    columns_back: Tensor
    partners: Tensor
    sources: Tensor
    signs: Tensor
    transposed: Tensor

    def __init__(self, grid: tuple[int, int], like: Tensor):
        super().__init__()
        self.grid = grid[0], grid[1]
        for name, size in zip(("rows", "columns"), grid, strict=True):
            waves = real_waves(size, torch.arange(size, device=like.device), like)
            self.register_buffer(name, waves / waves.norm(dim=1, keepdim=True), persistent=False)
            self.register_buffer(f"{name}_back", getattr(self, name).mT.contiguous(), persistent=False)
        row, column = (_axis(size, like) for size in grid)
        # Each (4, H W): the term without an exchange, and those with rows, columns and both exchanged.
        both = [(0, 0), (1, 0), (0, 1), (1, 1)]
        partners, sources, signs = (
            torch.stack([_on_grid(row[table][r], column[table][c], table, grid[1]) for r, c in both])
            for table in range(3)
        )
        self.register_buffer("partners", partners.flatten(), persistent=False)
        self.register_buffer("sources", sources.flatten(), persistent=False)
        self.register_buffer("signs", signs.to(like.dtype)[..., None], persistent=False)
        transposed = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=like.dtype, device=like.device)
        self.register_buffer("transposed", transposed[:, None, None], persistent=False)

    def transform(self, maps: Tensor) -> Tensor:
        """T of each map: (..., H W, C) -> (..., H W, C)."""
        return self._along_both(self.rows, self.columns, maps)

    def inverse(self, values: Tensor) -> Tensor:
        """T^-1 = T^T: (..., H W, C) -> (..., H W, C)."""
        return self._along_both(self.rows_back, self.columns_back, values)

    def factors(self, kernel: Tensor) -> Tensor:
        """k0, kr, kc and krc from the coefficients of filters: (..., H W, C) -> (..., 4, H W, C)."""
        return kernel.index_select(-2, self.sources).unflatten(-2, (4, -1)) * self.signs

    def exchanged(self, values: Tensor) -> Tensor:
        """x_p, x_r(p), x_c(p) and x_rc(p): (..., H W, C) -> (..., 4, H W, C)."""
        return values.index_select(-2, self.partners).unflatten(-2, (4, -1))

    def _along_both(self, rows: Tensor, columns: Tensor, maps: Tensor) -> Tensor:
        along_rows = columns @ maps.unflatten(-2, self.grid)
        return (rows @ along_rows.flatten(-2)).unflatten(-1, (self.grid[1], -1)).flatten(-3, -2)


def _axis(size: int, like: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Three tables of an axis, each without and with an exchange of cos and sin: the partner of each position, the
    position of the factor in a filter, and its sign, 0 if there is no sine."""
    cosines, sines = size // 2 + 1, (size - 1) // 2
    here = torch.arange(size, device=like.device)
    is_sine = here >= cosines
    frequency = torch.where(is_sine, here - cosines + 1, here)
    paired = (frequency >= 1) & (frequency <= sines)
    sine = torch.where(paired, frequency + cosines - 1, here)
    partner = torch.where(is_sine, frequency, sine)
    sign = torch.where(is_sine, 1, -1) * paired
    return (here, partner), (frequency, sine.where(paired, frequency)), (torch.ones_like(here), sign)


def _on_grid(row: Tensor, column: Tensor, table: int, width: int) -> Tensor:
    """Positions of the grid from those of the axes (in table 2: signs): (H), (W) -> (H W)."""
    row, column = row[:, None], column[None, :]
    return (row * column if table == 2 else row * width + column).flatten()


class SpectralConvolution(Operator):
    """T P for a convolution P with fixed filters: code -> coefficients of the signal.

    Args:
        basis: of the grid.
        kernel: coefficients of the filters, (..., F, H W, C).
        power: coefficients of the sum over all filters of k k^T, (..., H W, C).
        bound: the largest eigenvalue of P^T P, (..., 1, C).
    """

    def __init__(self, basis: Basis, kernel: Tensor, power: Tensor, bound: Tensor):
        self.basis, self.power, self.bound = basis, power, bound
        self.count = kernel.shape[-3]
        self.size = self.count * kernel.shape[-2]
        self.factors = basis.factors(kernel)

    def analyze(self, signal: Tensor) -> Tensor:
        terms = self.basis.exchanged(signal) * self.basis.transposed
        return self.basis.inverse((self.factors * terms.unsqueeze(-4)).sum(-3)).flatten(-3, -2)

    def synthesize(self, code: Tensor) -> Tensor:
        maps = self.basis.transform(code.unflatten(-2, (self.count, -1)))
        return (self.factors * self.basis.exchanged(maps)).sum((-4, -3))

    def moments(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        image = (self.basis.factors(self.power) * self.basis.exchanged(direction)).sum(-3)
        mean = (direction * image).sum(-2, keepdim=True)
        return mean, (image - mean * direction).norm(dim=-2, keepdim=True)

    def find_bound(self) -> Tensor:
        return self.bound


class Rotated(Operator):
    """T^-1 P' for an operator P' in the basis: its signals are on the grid."""

    def __init__(self, operator: Operator, basis: Basis):
        self.operator, self.basis, self.size = operator, basis, operator.size

    def analyze(self, signal: Tensor) -> Tensor:
        return self.operator.analyze(self.basis.transform(signal))

    def synthesize(self, code: Tensor) -> Tensor:
        return self.basis.inverse(self.operator.synthesize(code))

    def gram(self, code: Tensor) -> Tensor:
        return self.operator.gram(code)

    def find_bound(self) -> Tensor:
        return self.operator.lipschitz()


class FixedFilters(nn.Module):
    """The constants of `SpectralConvolution`, computed once.

    Args:
        filters: (..., C, F, h, w), no larger than the grid.
        basis: of the grid.
    """

    kernel: Tensor
    power: Tensor
    bound: Tensor

    @torch.no_grad()
    def __init__(self, filters: Tensor, basis: Basis):
        super().__init__()
        check_filters(filters.shape[-2:], basis.grid)
        self.basis = basis
        kernel = coefficients(filters.movedim(-4, -1), basis.grid).flatten(-3, -2)
        terms = basis.exchanged(kernel) * basis.transposed
        power = (basis.factors(kernel) * terms).sum((-4, -3))
        self.register_buffer("kernel", kernel, persistent=False)
        self.register_buffer("power", power, persistent=False)
        self.register_buffer(
            "bound", rounded_up(self._gains().amax(-2, keepdim=True), kernel.shape[-2]), persistent=False
        )

    def _gains(self) -> Tensor:
        """The eigenvalues of P P^T for each channel: (..., 2 H W, C)."""
        same, _, _, both = self.basis.factors(self.power).unbind(-3)
        return torch.cat([same + both, same - both], dim=-2)

    def forward(self) -> SpectralConvolution:
        return SpectralConvolution(self.basis, self.kernel, self.power, self.bound)
