"""RVT, the Robust Vision Transformer (Mao et al. 2022), with any attention.

No class token and no position embedding: a convolutional stem and depthwise convolutions in the MLPs provide
positions. A second stage has a quarter of the tokens at twice the width.
"""

from collections.abc import Sequence

from timm.layers import Mlp
from torch import Tensor, nn

from ..attention.released import ReleasedStaticReconstruction
from .backbone import Backbone, Block, ConvStem, attention_names, build_attention, grid_of


class ConvMlp(nn.Module):
    """A pointwise, a depthwise and a pointwise convolution with their BatchNorms: tokens (batch, H, W, dim)."""

    def __init__(self, dim: int, hidden: int, drop: float = 0.0):
        super().__init__()
        self.fc1, self.bn1 = nn.Conv2d(dim, hidden, 1), nn.BatchNorm2d(hidden)
        self.dwconv, self.bn2 = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden), nn.BatchNorm2d(hidden)
        self.fc2, self.bn3 = nn.Conv2d(hidden, dim, 1), nn.BatchNorm2d(dim)
        self.act, self.drop = nn.GELU(), nn.Dropout(drop)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.act(self.bn1(self.fc1(tokens.permute(0, 3, 1, 2)))))
        x = self.act(self.bn2(self.dwconv(x)))
        return self.drop(self.bn3(self.fc2(x))).permute(0, 2, 3, 1)


class Downsample(nn.Module):
    """Half the grid and a wider token by a grouped 3 x 3 convolution."""

    def __init__(self, dim: int, wider: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, wider, kernel_size=3, stride=2, padding=1, groups=dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.conv(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class TokenBatchNorm(nn.Module):
    """BatchNorm over the channels of tokens (batch, H, W, dim)."""

    def __init__(self, dim: int):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim)  # a submodule, so that `convert_sync_batchnorm` can replace it

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bn(tokens.flatten(0, -2)).unflatten(0, tokens.shape[:-1])


class RVT(Backbone):
    """RVT with any attention.

    Args:
        img_size: size of the training pictures in pixels; attentions with filters of the size of the grid need it.
        widths: width of a head in each stage.
        heads: number of heads in each stage.
        depths: number of blocks in each stage.
        attention: a name of `torchvars.attention.ATTENTIONS`, or one for each block.
        attention_options: options of all attentions.
        conv_mlp: whether MLPs have depthwise convolutions, as in all but the widest RVT.
    """

    def __init__(
        self,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        *,
        widths: Sequence[int] = (32, 32),
        heads: Sequence[int] = (6, 12),
        depths: Sequence[int] = (10, 2),
        mlp_ratio: float = 4.0,
        attention: str | Sequence[str] = "softmax",
        attention_options: dict | None = None,
        conv_mlp: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        if not len(widths) == len(heads) == len(depths):
            raise ValueError(
                f"widths, heads and depths need one entry for each stage, got {widths}, {heads} and {depths}"
            )
        names = attention_names(attention, sum(depths))
        blocks, block_widths, strides = [], [], []
        for stage, depth in enumerate(depths):
            dim, stride = widths[stage] * heads[stage], patch_size * 2**stage
            grid = grid_of(img_size, stride)
            for index in range(depth):
                number = len(blocks)
                blocks.append(
                    Block(
                        dim,
                        build_attention(names[number], dim, heads[stage], grid, attention_options),
                        (ConvMlp if conv_mlp else Mlp)(dim, int(dim * mlp_ratio), drop=proj_drop_rate),
                        drop_path_rate * number / sum(depths),
                        Downsample(block_widths[-1], dim) if stage and index == 0 else None,
                    )
                )
                if isinstance(blocks[-1].attn, ReleasedStaticReconstruction):
                    # As in the authors' block: no norm before the attention, and a BatchNorm before the MLP.
                    blocks[-1].norm1, blocks[-1].norm2 = nn.Identity(), TokenBatchNorm(dim)
                block_widths.append(dim)
                strides.append(stride)
        super().__init__(
            ConvStem(widths[0] * heads[0], patch_size, in_chans),
            blocks,
            block_widths,
            strides,
            num_classes=num_classes,
            in_chans=in_chans,
            global_pool=global_pool,
            drop_rate=drop_rate,
            norm_first=False,
        )
