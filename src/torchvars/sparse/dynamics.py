"""The recurrent equations of the paper, integrated by Euler steps.

Their stationary point is the solution that a solver approximates in a few steps.
"""

from collections.abc import Iterator

from torch import Tensor

from .checks import not_negative, positive_or_none, setting
from .problem import SparseCoding
from .solvers import Solver


class NeuralDynamics(Solver):
    """The paper's coupled differential equations for the signal z and the code u, by Euler steps.

        g(a) = S(a, threshold)
        dz/dt = -alpha z + P g(u) + x
        du/dt = -beta u - gamma (P^T P - I) g(u) + P^T z

    With alpha = 1 and beta = gamma = 2, v = g(u) at the stationary point solves the problem with strength = 2
    threshold, so the threshold is half the strength. For any beta = gamma with c = alpha gamma - 1 > 0, v solves it for
    the signal x / c and the strength alpha beta threshold / c.

    Without inhibition (gamma 0), with beta 1, no strength and one step of size 1 from z = x, z becomes P P^T x + x:
    linear self-attention and its residual.

    Args:
        alpha, beta, gamma: rates of the equations, zero or positive.
        time_step: the Euler step; if None, one at which no mode of the equations overshoots.
    """

    alpha, beta, gamma = (setting(name, not_negative) for name in ("alpha", "beta", "gamma"))
    time_step = setting("time_step", positive_or_none)

    def __init__(
        self,
        steps: int = 100,
        start: str = "analysis",
        tolerance: float | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 2.0,
        gamma: float = 2.0,
        time_step: float | None = None,
    ):
        super().__init__(steps, start, tolerance)
        self.alpha, self.beta, self.gamma, self.time_step = alpha, beta, gamma, time_step

    def fire(self, problem: SparseCoding, u: Tensor) -> Tensor:
        """v = g(u)."""
        return problem.shrink(u, 0.5)

    def states(self, problem: SparseCoding) -> Iterator[tuple[Tensor, Tensor]]:
        """The infinite sequence of pairs (z, u), beginning with z = x."""
        operator, x = problem.operator, problem.signal
        time_step = self.time_step
        if time_step is None:
            # While the set of active neurons stays the same, the equations are linear, and this bounds all rates.
            active = self.alpha + max(self.beta - self.gamma, 0) + self.gamma * operator.lipschitz()
            time_step = 1 / active.clamp_min(self.beta)
        z, u = x, self.begin(problem)
        while True:
            yield z, u
            v = self.fire(problem, u)
            dz = -self.alpha * z + operator.synthesize(v) + x
            du = -self.beta * u - self.gamma * (operator.gram(v) - v) + operator.analyze(z)
            z, u = z + time_step * dz, u + time_step * du

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        for _, u in self.states(problem):
            yield self.fire(problem, u)

    def energy(self, problem: SparseCoding, z: Tensor, u: Tensor) -> Tensor:
        """F(z, v) = 1/2 |z|^2 - z.(P v + x) + |P v|^2 + strength |v|_1: (..., C).

        It never rises along the equations with alpha = 1, beta = gamma = 2. At z = P v + x it is the objective of the
        problem minus |x|^2.
        """
        v = self.fire(problem, u)
        explained = problem.operator.synthesize(v)
        smooth = z.square() / 2 - z * (explained + problem.signal) + explained.square()
        return smooth.sum(-2) + problem.penalty.value(v)


class LCA(Solver):
    """Rozell's locally competitive algorithm (2008), by Euler steps.

        a = S(u, strength)
        du/dt = P^T x - u - (P^T P - I) a

    At the stationary point, a solves the problem.

    Args:
        time_step: the Euler step; if None, 1 / L, and 1 at most.
    """

    time_step = setting("time_step", positive_or_none)

    def __init__(
        self,
        steps: int = 100,
        start: str = "analysis",
        tolerance: float | None = None,
        *,
        time_step: float | None = None,
    ):
        super().__init__(steps, start, tolerance)
        self.time_step = time_step

    def iterates(self, problem: SparseCoding) -> Iterator[Tensor]:
        time_step = self.time_step
        if time_step is None:
            time_step = 1 / problem.operator.lipschitz().clamp_min(1)
        u = self.begin(problem)
        while True:
            a = problem.shrink(u, 1.0)
            yield a
            u = u + time_step * (problem.analysis - u - (problem.operator.gram(a) - a))
