"""DeiT (Touvron et al. 2021) on timm's VisionTransformer, with any attention.

The paper's starred form: a convolutional patch embedding, no class token, and the mean over tokens. Inside, tokens keep
their grid, (batch, H, W, dim), so that every attention knows it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, fx, nn

from .backbone import ConvStem, add_positions, attention_names, build_attention, grid_of, sides, undecayed

fx.wrap("add_positions")


class DeiT(VisionTransformer):
    """DeiT* with any attention.

    Args:
        img_size: size of the training pictures in pixels.
        attention: a name of `torchvars.attention.ATTENTIONS`, or one for each block.
        attention_options: options of all attentions.
        options: options of timm's VisionTransformer, except those of its attention and its tokens.
    """

    def __init__(
        self,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        num_classes: int = 1000,
        global_pool: Literal["", "avg", "avgmax", "max", "token", "map"] = "avg",
        *,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        attention: str | Sequence[str] = "softmax",
        attention_options: dict | None = None,
        **options,
    ):
        own = ("attn_drop_rate", "qk_norm", "scale_attn_norm", "reg_tokens", "patch_drop_rate")
        if refused := [name for name in own if options.get(name)]:
            raise ValueError(
                f"{refused[0]} is an option of timm's attention or tokens, which this model does not have: leave it out"
            )
        grid = grid_of(img_size, patch_size)
        block = partial(_block, names=attention_names(attention, depth), grid=grid, attention_options=attention_options)
        super().__init__(
            img_size=sides(img_size),
            patch_size=patch_size,
            num_classes=num_classes,
            global_pool=global_pool,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            class_token=False,
            dynamic_img_size=True,
            embed_layer=_Stem,
            block_fn=block,  # pyright: ignore[reportArgumentType]  # timm calls it, and takes any function
            **options,
        )

    def _pos_embed(self, x: Tensor) -> Tensor:
        if self.pos_embed is None:  # pos_embed="none"
            return self.pos_drop(x)
        return self.pos_drop(add_positions(x, self.pos_embed, self.patch_embed.grid_size))

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens after the last block, (batch, N, dim)."""
        return super().forward_features(x, attn_mask, is_causal).flatten(1, 2)

    def forward_intermediates(self, x: Tensor, indices=None, *, output_fmt: str = "NCHW", **options):
        """The same as that of timm's VisionTransformer."""
        result = cast(Any, super().forward_intermediates(x, indices, output_fmt=output_fmt, **options))
        if options.get("output_dict"):
            names = ("image_intermediates", "image_features")
            return {name: _flat(result[name], output_fmt) for name in names if name in result}
        if options.get("intermediates_only"):
            return _flat(result, output_fmt)
        return result[0].flatten(1, 2), _flat(result[1], output_fmt)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | undecayed(self)


def _flat(tokens: Tensor | list[Tensor], output_fmt: str) -> Tensor | list[Tensor]:
    """Tokens on their grid, flattened to a sequence if that is the output format."""
    if isinstance(tokens, list):
        return [part.flatten(1, 2) if output_fmt == "NLC" else part for part in tokens]
    return tokens.flatten(1, 2)


class _Stem(ConvStem):
    """The stem with the interface of a patch embedding of timm's VisionTransformer."""

    def __init__(self, img_size: int | Sequence[int], patch_size: int, in_chans: int, embed_dim: int, **_):
        super().__init__(embed_dim, patch_size, in_chans)
        self.set_input_size(img_size)

    def set_input_size(self, img_size: int | Sequence[int], patch_size: int | None = None) -> None:
        if patch_size not in (None, self.patch_size):
            raise ValueError(f"the patch size of a convolutional stem is fixed: {self.patch_size}, got {patch_size}")
        self.grid_size = grid_of(img_size, self.patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        return self.patch_size if as_scalar else (self.patch_size, self.patch_size)

    def dynamic_feat_size(self, img_size: Sequence[int]) -> tuple[int, int]:
        return img_size[0] // self.patch_size, img_size[1] // self.patch_size


def _block(
    *,
    dim: int,
    num_heads: int,
    qkv_bias: bool,
    depth: int,
    names: list[str],
    grid: tuple[int, int],
    attention_options: dict | None,
    **options,
) -> nn.Module:
    """A block of timm with an attention of this package."""
    block = Block(dim=dim, num_heads=num_heads, qkv_bias=qkv_bias, depth=depth, **options)
    bias = {} if qkv_bias else {"bias": False}
    block.attn = build_attention(names[depth], dim, num_heads, grid, {**bias, **(attention_options or {})})
    return block
