"""The members that laws are tested on: small problems in double precision, one for each kind of operator."""

import torch
from torch import Tensor

from torchvars.sparse import Convolution, Dense, Joint, Operator, Partition, SoftPartition, SparseCoding

CHANNELS = 3
GRID = (4, 5)
POSITIONS = GRID[0] * GRID[1]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense() -> Dense:
    return Dense(random(2, POSITIONS, 12) / POSITIONS**0.5)


def wide() -> Dense:
    return Dense(random(2, POSITIONS, 50) / POSITIONS**0.5)


def positive() -> Dense:
    return Dense(torch.nn.functional.normalize(random(2, POSITIONS, 12).exp(), dim=-2), nonnegative=True)


def wide_positive() -> Dense:
    return Dense(torch.nn.functional.normalize(random(2, POSITIONS, 50).exp(), dim=-2), nonnegative=True)


def partition() -> Partition:
    return Partition((2 * random(2, POSITIONS, 8)).softmax(-1))


def soft_partition() -> SoftPartition:
    return SoftPartition(random(2, POSITIONS, 5), random(5, 8, seed=1))


def convolution() -> Convolution:
    return Convolution(random(CHANNELS, 2, 3, 2) / 6**0.5, GRID)


def static_dynamic() -> Joint:
    return Joint(convolution(), positive())


def dynamic_dynamic() -> Joint:
    return Joint(dense(), Dense(random(2, POSITIONS, 6, seed=1) / POSITIONS**0.5))


def static_static() -> Joint:
    return Joint(convolution(), Convolution(random(CHANNELS, 1, *GRID, seed=1) / POSITIONS**0.5, GRID))


OPERATORS = {
    maker.__name__: maker
    for maker in (
        dense,
        wide,
        positive,
        wide_positive,
        partition,
        soft_partition,
        convolution,
        static_dynamic,
        dynamic_dynamic,
        static_static,
    )
}


def signal(seed: int = 7) -> Tensor:
    return random(2, POSITIONS, CHANNELS, seed=seed)


def matrices(operator: Operator, channels: int = CHANNELS) -> Tensor:
    """The operator as one matrix for each batch entry and channel, (batch, channels, N, M), by its atoms."""
    code = torch.eye(operator.size, dtype=torch.float64)[:, None, :, None].expand(-1, 1, -1, channels)
    return operator.synthesize(code).permute(1, 3, 2, 0)


class Explicit(Dense):
    """An operator as its matrix, one for each batch entry and channel, with the step sizes of the operator.

    Thousands of steps on it cost little. Signals and codes are `columns` of those of the operator.
    """

    def __init__(self, operator: Operator):
        super().__init__(matrices(operator).expand(2, CHANNELS, -1, -1))
        self.operator = operator

    def find_bound(self) -> Tensor:
        return columns(self.operator.lipschitz().expand(2, 1, CHANNELS))

    def row_sums(self) -> Tensor:
        return columns(self.operator.row_sums().expand(2, self.size, CHANNELS))


def columns(tensor: Tensor) -> Tensor:
    """Each channel for itself: (..., N, C) -> (..., C, N, 1)."""
    return tensor.mT.unsqueeze(-1)


def explicit(problem: SparseCoding) -> SparseCoding:
    """The same problem, on the matrix of its operator."""
    return SparseCoding(Explicit(problem.operator), columns(problem.signal), problem.strength)
