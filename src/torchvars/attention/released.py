"""The forms of the authors' code (github.com/bfshi/VARS, commit 651eb51), for their weights and for comparison.

They differ from the paper in these points: a GELU threshold (D, SD); a thresholded start; a row sum plus one in place
of the largest eigenvalue; a learned matrix on both sides of the Gram matrix; in SD a free matrix of atoms instead of
filters; in S unconstrained half spectra, a second filter and a BatchNorm before the output projection.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..sparse import ISTA, Convolution, Dense, Operator, Solver, gelu
from ..sparse.fourier import Spectrum
from ..sparse.precision import outside_autocast
from .baselines import filtered, refit
from .dictionaries import Dynamic
from .reconstruction import Reconstruction
from .tokens import Grid, check_grid, precise, resample, resolve_grid, without_format


class ReleasedDense(Dense):
    """Atoms P with the Gram matrix G replaced by K G K, and a learned step: L = (largest row sum + 1) / step."""

    def __init__(self, atoms: Tensor, inhibition: Tensor, step: Tensor):
        super().__init__(atoms)
        gram = atoms.mT @ atoms if self.gram_matrix is None else self.gram_matrix
        self.row_sum = gram.detach().abs().sum(-1).amax(-1)[..., None, None]
        self.inhibition, self.step = inhibition, step

    def gram(self, code: Tensor) -> Tensor:
        return self.inhibition @ super().gram(self.inhibition @ code)

    def find_bound(self) -> Tensor:
        return (self.row_sum + 1) / self.step

    magnitude = Operator.magnitude  # raises an error: K G K is not the Gram matrix of |P|


class ReleasedDynamic(Dynamic):
    """Random features of normalised queries, with a learned inhibition and step.

    Without `normalize` it is the form of commit 6aacabb, with which the authors announced their weights.
    """

    def __init__(self, dim: int, heads: int, *, atoms: float = 2, normalize: bool = True, bias: bool = True):
        super().__init__(dim, heads, atoms=atoms, orthogonal=False, normalize=normalize, bias=bias)
        self.inhibition = nn.Parameter(torch.eye(self.count))
        self.step = nn.Parameter(torch.ones(1))

    @property
    def count(self) -> int:
        """The number of atoms of a head."""
        return self.features.directions.shape[-1]

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> ReleasedDense:
        atoms = self.atoms(tokens, grid)
        with outside_autocast(tokens):
            return ReleasedDense(atoms, precise(self.inhibition), precise(self.step))


class ReleasedStaticDynamic(ReleasedDynamic):
    """Random features, and as many free atoms of the size of the grid, which are resampled on another grid."""

    def __init__(
        self, dim: int, heads: int, grid: Grid, *, atoms: float = 2, normalize: bool = True, bias: bool = True
    ):
        super().__init__(dim, heads, atoms=atoms, normalize=normalize, bias=bias)
        self.grid = check_grid(grid)
        self.inhibition = nn.Parameter(torch.eye(2 * self.count))
        self.templates = nn.Parameter(torch.randn(heads, self.grid[0] * self.grid[1], self.count))

    def atoms(self, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        grid = resolve_grid(tokens, grid, self.grid)
        dynamic = super().atoms(tokens)
        static = F.normalize(resample(precise(self.templates), self.grid, grid), dim=-2)
        return torch.cat([dynamic, static.expand(tokens.shape[0], -1, -1, -1)], dim=-1)


class Released(Reconstruction):
    """VARS-D and VARS-SD of the authors' code, with a GELU threshold and a learned factor on the strength."""

    threshold = staticmethod(gelu)

    def __init__(
        self, dim: int, heads: int, dictionary: nn.Module, solver: Solver, strength: float = 0.3, *, bias: bool = True
    ):
        super().__init__(dim, heads, dictionary, solver, strength, bias=bias)
        self.strength_factor = nn.Parameter(torch.ones(1))

    def penalty(self) -> Tensor:
        return self.strength * precise(self.strength_factor)


class ReleasedConvolution(Convolution):
    """A convolution given by half spectra that need not be those of real filters, with a stored step size.

    P^T P u differs from analysis after synthesis at the self-conjugate frequencies.
    """

    def __init__(self, spectrum: Spectrum, grid: Grid, bound: Tensor):
        self.grid, self.given, self.bound = grid, spectrum, bound
        self.size = spectrum.real.shape[-4] * grid[0] * grid[1]

    @property
    def spectrum(self) -> Spectrum:
        return self.given

    def find_bound(self) -> Tensor:
        return self.bound


class ReleasedStatic(nn.Module):
    """Half spectra of filters for each channel, for one grid, with a running estimate of the step size.

    Like the statistics of a BatchNorm, the estimate is updated in training only. As in the authors' code it is computed
    from the real part of the Gram matrix, so it may be below the largest eigenvalue.
    """

    bound: Tensor

    def __init__(self, dim: int, heads: int, grid: Grid, *, filters: int = 5, rate: float = 0.1):
        super().__init__()
        self.grid, self.heads, self.rate = check_grid(grid), heads, rate
        half = grid[1] // 2 + 1
        kernel = torch.randn(dim, filters, grid[0], half, 2)
        kernel /= (2 * kernel.square().sum((2, 3, 4), keepdim=True) / (grid[0] * grid[1])).sqrt()
        self.kernel = nn.Parameter(kernel)
        self.register_buffer("bound", torch.empty(dim))
        self.update_bound(rate=1.0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return super()._apply(without_format(fn), recurse)

    @torch.no_grad()
    def update_bound(self, rate: float) -> None:
        """Updates the estimate by the largest eigenvalue of Re(k k*) = a a^T + b b^T with k = a + i b."""
        a, b = precise(self.kernel).unbind(-1)
        aa, bb, ab = a.square().sum(1), b.square().sum(1), (a * b).sum(1)
        largest = ((aa + bb + ((aa - bb).square() + 4 * ab.square()).sqrt()) / 2).amax((-2, -1))
        largest = largest.to(self.bound.dtype)
        self.bound.copy_(largest if rate == 1 else torch.lerp(self.bound, largest, rate))

    def forward(self, tokens: Tensor, grid: Grid | None = None) -> ReleasedConvolution:
        grid = resolve_grid(tokens, grid, self.grid)
        if self.training:
            self.update_bound(self.rate)
        with outside_autocast(tokens):
            # The kernel is that of the analysis, so the spectrum of the atoms is its conjugate.
            kernel = precise(self.kernel).unflatten(0, (self.heads, -1)).movedim(1, -2)
            spectrum = Spectrum(*kernel.unbind(-1)).conj()
            bound = precise(self.bound).unflatten(0, (self.heads, 1, -1))
            return ReleasedConvolution(refit(spectrum, self.grid, grid), grid, bound)


class ReleasedStaticReconstruction(Reconstruction):
    """VARS-S of the authors' code, with a second learned filter and a BatchNorm before the output projection.

    The authors' block has no normalisation of the tokens before it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        dictionary: ReleasedStatic,
        solver: Solver,
        strength: float = 3.5,
        *,
        bias: bool = True,
    ):
        super().__init__(dim, heads, dictionary, solver, strength, bias=bias)
        self.grid = dictionary.grid
        self.kernel2 = nn.Parameter(torch.randn(dim, self.grid[0], self.grid[1] // 2 + 1, 2) * 0.02)
        self.norm = nn.BatchNorm1d(dim)

    def reconstruct(self, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        grid = resolve_grid(tokens, grid, self.grid)
        reconstruction = super().reconstruct(tokens, grid)
        with outside_autocast(tokens):
            return filtered(precise(reconstruction), self.second_spectrum(grid), grid).to(tokens.dtype)

    def second_spectrum(self, grid: Grid) -> Spectrum:
        """The spectrum of the second filter on a grid: (H, W / 2 + 1, dim)."""
        return refit(Spectrum(*precise(self.kernel2).movedim(0, -2).unbind(-1)), self.grid, grid)

    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        return self.finish(self.reconstruct(tokens, grid))

    def finish(self, mixed: Tensor) -> Tensor:
        """The BatchNorm and the output projection: (batch, N, dim) -> (batch, N, dim)."""
        return self.proj(self.norm(mixed.mT).mT)


def vars_d_released(
    dim: int,
    heads: int,
    grid: Grid | None = None,
    *,
    atoms: float = 2,
    solver: Solver | None = None,
    strength: float = 0.3,
    normalize: bool = True,
    bias: bool = True,
) -> Released:
    """VARS-D of the authors' code. The grid is not used."""
    dictionary = ReleasedDynamic(dim, heads, atoms=atoms, normalize=normalize, bias=bias)
    return Released(dim, heads, dictionary, solver or ISTA(5, "thresholded"), strength, bias=bias)


def vars_sd_released(
    dim: int,
    heads: int,
    grid: Grid,
    *,
    atoms: float = 2,
    solver: Solver | None = None,
    strength: float = 0.3,
    normalize: bool = True,
    bias: bool = True,
) -> Released:
    """VARS-SD of the authors' code."""
    dictionary = ReleasedStaticDynamic(dim, heads, grid, atoms=atoms, normalize=normalize, bias=bias)
    return Released(dim, heads, dictionary, solver or ISTA(5, "thresholded"), strength, bias=bias)


def vars_s_released(
    dim: int,
    heads: int,
    grid: Grid,
    *,
    filters: int = 5,
    solver: Solver | None = None,
    strength: float = 3.5,
    bias: bool = True,
) -> ReleasedStaticReconstruction:
    """VARS-S of the authors' code, without the MLP of their block."""
    dictionary = ReleasedStatic(dim, heads, grid, filters=filters)
    return ReleasedStaticReconstruction(dim, heads, dictionary, solver or ISTA(3, "thresholded"), strength, bias=bias)


# The authors' names and ours. `L` of D and SD and `kernel_norm` of S have no effect.
_RELEASED_NAMES = {
    "rand_matrix": "dictionary.features.directions",
    "learned_k": "dictionary.inhibition",
    "learned_lam": "strength_factor",
    "learned_L": "dictionary.step",
    "kernel2": "kernel2",
    "v.weight": "value.weight",
    "v.bias": "value.bias",
    "proj.weight": "proj.weight",
    "proj.bias": "proj.bias",
    "norm1.bn.weight": "norm.weight",
    "norm1.bn.bias": "norm.bias",
    "norm1.bn.running_mean": "norm.running_mean",
    "norm1.bn.running_var": "norm.running_var",
    "norm1.bn.num_batches_tracked": "norm.num_batches_tracked",
}


def from_released(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of one attention of the authors' code, converted to ours.

    Args:
        state: of Attention, Performer_Attention, VARS_D, VARS_SD, or the first half of VARS_S_Block.

    Raises:
        KeyError: if none of them has a name.
    """
    if "qkv.weight" in state and len(state["qkv.weight"]) == 3 * state["qkv.weight"].shape[1]:
        return {"features.directions" if name == "rand_matrix" else name: tensor for name, tensor in state.items()}
    static = "kernel2" in state
    ours = {}
    for name, tensor in state.items():
        if name in ("qkv.weight", "qkv.bias"):
            kind = name.removeprefix("qkv.")
            ours[f"dictionary.query.{kind}"], ours[f"value.{kind}"] = tensor.chunk(2)
        elif name == "kernel":
            ours["dictionary.kernel" if static else "dictionary.templates"] = tensor.squeeze(2 if static else 0)
        elif name == "L" and static:
            ours["dictionary.bound"] = tensor
        elif name in _RELEASED_NAMES:
            ours[_RELEASED_NAMES[name]] = tensor.squeeze((1, 2)) if name == "kernel2" else tensor
        elif name not in ("L", "kernel_norm"):
            raise KeyError(f"{name!r} is no tensor of the authors' attention; known are {', '.join(_RELEASED_NAMES)}")
    return ours
