"""The base class of all attentions: tokens in, tokens out."""

from abc import ABC, abstractmethod
from typing import cast

from torch import Tensor, fx, nn

from .tokens import Grid, Place, as_grid, check_heads, check_tokens


def is_symbolic(tensor) -> bool:
    """Whether a tensor is a proxy of a symbolic tracer, without shape and value."""
    return isinstance(tensor, fx.Proxy)


class Attention(nn.Module, ABC):
    """A token mixer, module(tokens, grid) -> tokens. Subclasses implement `mix`.

    Tokens are (batch, N, dim) with their grid (H, W), or (batch, H, W, dim), whose shape includes it.
    """

    place: Place | None = None  # layout of tokens that come without a grid; set by `torchvars.convert`

    def __init__(self, dim: int, heads: int = 1):
        super().__init__()
        check_heads(dim, heads)
        self.dim, self.heads = dim, heads

    @abstractmethod
    def mix(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        """Checked tokens (batch, N, dim) -> (batch, N, dim)."""

    def forward(
        self,
        tokens: Tensor,
        grid: Grid | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Tokens in either form -> tokens in the same form.

        The last two arguments are passed by the blocks of timm; other values than the defaults raise a ValueError.
        """
        if is_symbolic(tokens):  # one node of the graph, like the layers of PyTorch
            given, tracer = (tokens, grid, attn_mask, is_causal), cast(fx.Tracer, cast(fx.Proxy, tokens).tracer)
            return cast(Tensor, tracer.create_proxy("call_module", tracer.path_of_module(self), given, {}))
        if attn_mask is not None or is_causal:
            raise ValueError(f"{type(self).__name__} mixes all tokens: attn_mask must be None and is_causal False")
        if tokens.ndim == 4:
            own = as_grid(tokens.shape[1:3])
            if grid is not None and grid not in (own, list(own)):
                raise ValueError(
                    f"tokens of shape {tuple(tokens.shape)} are on a grid of {own}, got grid={grid}: leave it out"
                )
            return self.forward(tokens.flatten(1, 2), own).unflatten(1, own)  # not self(...), so that hooks run once
        check_tokens(tokens, self.dim, grid)
        return self.mix(tokens, grid)

    def __prepare_scriptable__(self) -> nn.Module:
        """Called by `torch.jit.script`, which supports no generators, operator classes or custom gradients."""
        raise NotImplementedError(
            f"torch.jit.script cannot compile {type(self).__name__}: use torch.jit.trace, torch.compile or torch.export"
        )
