"""GFNet, the Global Filter Network (Rao et al. 2021), with any attention in the place of its filter."""

from collections.abc import Sequence
from typing import cast

import torch
from timm.layers import Mlp, calculate_drop_path_rates
from torch import Tensor, fx, nn

from .backbone import Backbone, Block, ConvStem, add_positions, attention_names, build_attention, grid_of, initialize

fx.wrap("add_positions")


class GFNetBlock(Block):
    """Mixer and MLP in one residual branch: tokens + mlp(norm(mix(norm(tokens))))."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.drop_path(self.mlp(self.norm2(self.attn(self.norm1(tokens)))))


class GFNet(Backbone):
    """GFNet with any attention.

    Args:
        img_size: size of the training pictures in pixels.
        dim, depth, heads: width, number of blocks, and number of heads of an attention that has heads.
        attention: a name of `torchvars.attention.ATTENTIONS`, or one for each block.
        attention_options: options of all attentions.
    """

    def __init__(
        self,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        *,
        dim: int = 256,
        depth: int = 12,
        heads: int = 8,
        mlp_ratio: float = 4.0,
        attention: str | Sequence[str] = "global_filter",
        attention_options: dict | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        grid = grid_of(img_size, patch_size)
        # On the CPU, wherever the model is built
        rates = cast(list[float], calculate_drop_path_rates(drop_path_rate, depth))
        blocks = [
            GFNetBlock(
                dim,
                build_attention(name, dim, heads, grid, attention_options),
                Mlp(dim, int(dim * mlp_ratio), drop=proj_drop_rate),
                rate,
            )
            for name, rate in zip(attention_names(attention, depth), rates, strict=True)
        ]
        super().__init__(
            ConvStem(dim, patch_size, in_chans),
            blocks,
            [dim] * depth,
            [patch_size] * depth,
            num_classes=num_classes,
            in_chans=in_chans,
            global_pool=global_pool,
            drop_rate=drop_rate,
            norm_first=True,
        )
        self.grid = grid
        self.pos_embed = nn.Parameter(torch.zeros(1, grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.apply(initialize)

    def embed(self, images: Tensor) -> Tensor:
        return add_positions(self.patch_embed(images), self.pos_embed, self.grid)
