"""Maps by forward operations only, without autograd, for exported graphs.

The derivative of an "implicit" map is computed explicitly. A softmax or linear attention is linear in its values, so
the derivative is its kernel. Steps of shrinkage are linear for the entries that stay active: the backward pass of a
step u <- S(u - s (P^T P u - P^T x), t) maps a derivative g to

    h = g where u is active, else 0        g <- h - P^T P s h        and adds s h to the derivative by P^T x,

from g = R^T q at the last step to the start. The derivative by x is P applied to the sum of all s h.
"""

import torch
from torch import Tensor, nn

from ..attention.folded import Folded
from ..attention.tokens import Grid
from ..models.classifier import Classifier
from ..sparse import ISTA, L1, LearnedISTA
from .mixing import FilterMixing, LinearMixing, Mixing, SoftmaxMixing, SparseMixing, mixing_of
from .observe import Run, observe

TRACED = ("implicit", "energy")


class WithMaps(nn.Module):
    """A classifier that also returns maps of its attentions, by forward operations only.

        pixels (batch, channels, height, width), query (2,) -> logits, maps, sparsity

    Maps are (batch, layers, steps + 1, H, W): of each layer at the start and after each recurrent step. If a layer
    takes fewer steps than others, its last map is repeated. The query is the (row, column) of a pixel, or (-1, -1) for
    the mean over all positions; "energy" has no query. For models with recurrent layers, `sparsity` (batch, layers,
    steps + 1) is the share of zeros in the code. Heads are averaged as in `attention_maps`.

    Args:
        classifier: the classifier, in evaluation mode.
        pixels: a batch of images of the size of later inputs; the batch size may differ.
        kind: "implicit" or "energy".

    Raises:
        ValueError: if a layer has no such map by forward operations.
    """

    def __init__(self, classifier: Classifier, pixels: Tensor, kind: str = "implicit"):
        super().__init__()
        if kind not in TRACED:
            raise ValueError(f"maps of an exported model are of kind {' or '.join(TRACED)}, got {kind!r}")
        self.classifier, self.kind, self.size = classifier, kind, tuple(pixels.shape[-2:])
        observation = observe(classifier, pixels)
        last = observation.run(observation.name(-1))
        self.grid, self.prefix, self.tokens = last.grid, last.prefix, last.tokens.shape[1]
        self.layers = {}
        for name in observation.names:  # layers on the same tokens as the last one
            run = observation.runs.get(name)
            if isinstance(run, Run) and (run.grid, run.prefix) == (self.grid, self.prefix):
                mixing = observation.mixing(name)
                check(mixing, kind, name)
                self.layers[name] = mixing.steps
        self.solves = any(steps is not None for steps in self.layers.values())

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Example inputs other than pixels, by name."""
        return {"query": torch.tensor([-1, -1])} if self.kind == "implicit" else {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs other than logits."""
        return ("maps", "sparsity") if self.solves else ("maps",)

    @property
    def metadata(self) -> dict[str, object]:
        """The kind and the grid of the maps, and the number of steps of each layer by name."""
        return {"kind": self.kind, "grid": self.grid, "layers": self.layers}

    def forward(self, pixels: Tensor, query: Tensor | None = None) -> tuple[Tensor, ...]:
        weights = None if query is None else self._weights(query, pixels)
        maps, shares = {}, {}

        def hook_of(name: str):
            def hook(layer: nn.Module, args: tuple, kwargs: dict, output):
                tokens = args[0] if args else kwargs["hidden_states"]
                if tokens.ndim == 4:
                    tokens = tokens.flatten(1, 2)
                elif not getattr(layer, "batch_first", True):
                    tokens = tokens.transpose(0, 1)
                mixing = mixing_of(layer, tokens, self.grid)
                codes = codes_of(mixing)
                maps[name] = FIND[self.kind](mixing, codes, weights)
                shares[name] = share_of_zeros(mixing, codes)
                if codes is None or not isinstance(mixing, SparseMixing):
                    return output
                # The output is computed from these codes, so that the graph solves each problem once.
                return mixing.finish(mixing.read(codes[-1])).to(output.dtype).view_as(output)

            return hook

        hooks = [
            self.classifier.get_submodule(name).register_forward_hook(hook_of(name), with_kwargs=True)
            for name in self.layers
        ]
        try:
            logits = self.classifier(pixels)
        finally:
            for handle in hooks:
                handle.remove()
        steps = max((count for count in self.layers.values() if count is not None), default=0)
        found = torch.stack([lengthened(maps[name], steps) for name in self.layers], 1)
        found = found[..., self.prefix :].unflatten(-1, self.grid)
        if not self.solves:
            return logits, found
        return logits, found, torch.stack([lengthened(shares[name], steps) for name in self.layers], 1)

    def _weights(self, query: Tensor, like: Tensor) -> Tensor:
        """The weights of a query for each token, (N,)."""
        place = torch.arange(self.tokens, device=like.device) - self.prefix
        mean = (place >= 0).to(like.dtype) / (self.grid[0] * self.grid[1])
        row, column = (query[axis] * self.grid[axis] // self.size[axis] for axis in range(2))
        return torch.where(query[0] < 0, mean, (place == row * self.grid[1] + column).to(like.dtype))


def lengthened(values: Tensor, steps: int) -> Tensor:
    """Pads values after each step to (batch, steps + 1, ...) by repeating the last one."""
    missing = steps + 1 - values.shape[1]
    return torch.cat([values, *[values[:, -1:]] * missing], 1)


# Maps (batch, steps + 1, N) of one layer

Codes = list[Tensor] | None  # the start and the code after each step; None for an attention that is not recurrent


def codes_of(mixing: Mixing) -> Codes:
    if not isinstance(mixing, SparseMixing):
        return None
    return list(mixing.solver.trajectory(mixing.problem(mixing.values)))


def implicit(mixing: Mixing, codes: Codes, query: Tensor) -> Tensor:
    """1/C sum_c |d (q . o_c) / d v_jc|, as in `maps.kinds.implicit`."""
    query = query.to(mixing.values.dtype)
    if isinstance(mixing, SparseMixing):
        assert codes is not None
        seed = mixing.reader.analyze(query.unsqueeze(-1).expand_as(mixing.values))
        return backward(mixing, codes, seed).abs().mean((2, -1)).movedim(0, 1)
    weights = mixing.weights()
    if weights is None:
        return mixing.kernel(query).abs().mean((1, -1)).unsqueeze(1)
    return (query @ weights).mean(1).unsqueeze(1)


def backward(mixing: SparseMixing, codes: list[Tensor], seed: Tensor) -> Tensor:
    """The gradient of sum(seed * u) by the values, for the code u after each step: (steps + 1, *shape of values)."""
    solver, problem = mixing.solver, mixing.problem(mixing.values)
    assert isinstance(solver, ISTA)
    operator = problem.operator
    lengths = [size for (size, _), _ in zip(solver.step.sizes(operator), codes[1:], strict=False)]
    # All numbers of steps in one backward pass: the run of k steps is appended once the later steps are undone.
    slope, total = seed.unsqueeze(0), torch.zeros_like(seed).unsqueeze(0)
    for code, length in zip(codes[:0:-1], lengths[::-1], strict=True):
        if problem.strength > 0:  # otherwise all entries are active
            slope = slope * (code != 0).to(slope.dtype)
        moved = length * slope
        slope = torch.cat([slope - operator.gram(moved), seed.unsqueeze(0)])
        total = torch.cat([total + moved, torch.zeros_like(seed).unsqueeze(0)])
    return operator.synthesize(total + BY_ANALYSIS[solver.start](operator, codes[0]) * slope).flip(0)


# The derivative of each start in `sparse.solvers.STARTS` by P^T x
BY_ANALYSIS = {
    "analysis": lambda operator, code: 1.0,
    "zero": lambda operator, code: 0.0,
    "scaled": lambda operator, code: 1 / operator.lipschitz(),
    "thresholded": lambda operator, code: (code != 0).to(code.dtype),
}


def energy(mixing: Mixing, codes: Codes, query: None) -> Tensor:
    """|o_j|, as in `maps.kinds.energy`."""
    if codes is None or not isinstance(mixing, SparseMixing):
        passed_on = [mixing.mix(mixing.values)]
    else:
        passed_on = [mixing.read(code) for code in codes]
    return torch.stack([each.norm(dim=-1).square().mean(1).sqrt() for each in passed_on], 1)


FIND = {"implicit": implicit, "energy": energy}


def share_of_zeros(mixing: Mixing, codes: Codes) -> Tensor:
    """The share of zeros in the code after each step, (batch, steps + 1); 0 if there is no code."""
    if codes is None:
        return torch.zeros_like(mixing.values[:, :1, 0, 0])
    return torch.stack([(code == 0).to(code.dtype).mean((1, 2, 3)) for code in codes], 1)


def check(mixing: Mixing, kind: str, name: str) -> None:
    """Raises a ValueError unless a layer has a map of this kind by forward operations."""
    if kind != "implicit" or isinstance(mixing, SoftmaxMixing | LinearMixing | FilterMixing):
        return
    fits = (
        type(mixing) is SparseMixing
        and type(mixing.solver) in (ISTA, LearnedISTA)
        and isinstance(mixing.penalty, L1 | int | float)
    )
    if not fits:
        raise ValueError(
            f"{name} has no implicit map in a forward pass: that needs softmax or linear attention, or ISTA or "
            "LearnedISTA with the L1 penalty; take kind 'energy'"
        )


@mixing_of.register
def _of_folded(layer: Folded, tokens: Tensor, grid: Grid | None) -> Mixing:
    return SparseMixing(layer, tokens, grid)
