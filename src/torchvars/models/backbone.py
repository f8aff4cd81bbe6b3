"""Common parts of the backbones of this package, with the interface of timm."""

import copy
from collections.abc import Sequence

import torch
from timm.layers import DropPath
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from ..attention import Attention, create
from ..attention.tokens import as_grid, resample


class ConvStem(nn.Module):
    """The convolutional patch embedding of RVT and of the paper's starred models: images to tokens on their grid.

    A 7 x 7 convolution and a max-pool, each with stride 2, then a patch embedding.

    Args:
        patch_size: side of a patch in pixels, a multiple of 4.
    """

    def __init__(self, dim: int, patch_size: int = 16, in_chans: int = 3):
        super().__init__()
        if patch_size < 4 or patch_size % 4:
            raise ValueError(f"patch_size must be a multiple of 4, got {patch_size}: the stem halves pictures twice")
        self.patch_size = patch_size
        self.proj = nn.Sequential(
            nn.Conv2d(in_chans, 32, kernel_size=7, stride=2, padding=2),
            nn.BatchNorm2d(32),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Conv2d(32, dim, kernel_size=patch_size // 4, stride=patch_size // 4),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(batch, in_chans, height, width) -> (batch, height / patch_size, width / patch_size, dim)."""
        return self.proj(check_images(images, self.patch_size)).permute(0, 2, 3, 1)


@fx.wrap  # one node of a symbolically traced graph, which has no shapes
def check_images(images: Tensor, patch_size: int) -> Tensor:
    """Returns the images. Raises a ValueError if they do not divide into patches."""
    height, width = images.shape[-2:]
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"pictures of {height} x {width} pixels do not divide into patches of {patch_size}: "
            "resize or pad them to a multiple"
        )
    return images


def add_positions(tokens: Tensor, embedding: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (batch, H, W, dim) with position embeddings (1, N, dim) that were learned on a grid.

    Modules that call it wrap it by `fx.wrap`, as one node of a symbolically traced graph, which has no shapes.
    """
    here = as_grid(tokens.shape[1:3])
    return tokens + resample(embedding, grid, here).unflatten(1, here)


def sides(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, from one number for both or from two."""
    return as_grid(size) if isinstance(size, Sequence) else (size, size)


def grid_of(img_size: int | Sequence[int], stride: int) -> tuple[int, int]:
    """The grid of tokens of a picture, with a stride in pixels from token to token."""
    height, width = sides(img_size)
    if height % stride or width % stride:
        raise ValueError(f"img_size {height} x {width} is not a multiple of {stride}, the pixels from token to token")
    return height // stride, width // stride


def attention_names(attention: str | Sequence[str], depth: int) -> list[str]:
    """One name for each layer, from one name for all or a list."""
    names = [attention] * depth if isinstance(attention, str) else list(attention)
    if len(names) != depth:
        raise ValueError(f"attention names {len(names)} layers, but the model has {depth}: name one, or one for each")
    return names


class Block(nn.Module):
    """Attention and MLP, each behind its norm and with its residual connection: tokens (batch, H, W, dim).

    Args:
        downsample: module before the block, for the first block of a later stage.
    """

    def __init__(
        self,
        dim: int,
        attention: Attention,
        mlp: nn.Module,
        drop_path: float = 0.0,
        downsample: nn.Module | None = None,
    ):
        super().__init__()
        self.downsample = nn.Identity() if downsample is None else downsample
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.downsample(tokens)
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens)))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class Backbone(nn.Module):
    """A stem, blocks on tokens (batch, H, W, dim), a mean over tokens and a linear head, with the interface of timm.

    Args:
        stem: images -> tokens on their grid.
        blocks: tokens -> tokens.
        widths: width of the tokens of each block.
        strides: pixels from token to token after each block.
        norm_first: whether the last norm is before the mean over tokens, not after it.
    """

    output_fmt = "NHWC"

    def __init__(
        self,
        stem: nn.Module,
        blocks: Sequence[nn.Module],
        widths: Sequence[int],
        strides: Sequence[int],
        *,
        num_classes: int,
        in_chans: int,
        global_pool: str,
        drop_rate: float,
        norm_first: bool,
    ):
        super().__init__()
        self.num_classes, self.in_chans = num_classes, in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = widths[-1]
        self.grad_checkpointing = False
        self.patch_embed = stem
        self.blocks = nn.Sequential(*blocks)
        self.feature_info = [
            {"num_chs": width, "reduction": stride, "module": f"blocks.{index}"}
            for index, (width, stride) in enumerate(zip(widths, strides, strict=True))
        ]
        norm = nn.LayerNorm(self.num_features, eps=1e-6)
        self.norm, self.fc_norm = (norm, nn.Identity()) if norm_first else (nn.Identity(), norm)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)

    def embed(self, images: Tensor) -> Tensor:
        """Images -> tokens (batch, H, W, dim), with position embeddings if the model has any."""
        return self.patch_embed(images)

    def forward_features(self, images: Tensor) -> Tensor:
        """Tokens after the last block, (batch, H, W, dim)."""
        tokens = self.embed(images)
        for block in self.blocks:
            tokens = self.run(block, tokens)
        return self.norm(tokens)

    def run(self, block: nn.Module, tokens: Tensor) -> Tensor:
        return checkpoint(block, tokens, use_reentrant=False) if self.grad_checkpointing else block(tokens)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        if self.global_pool == "avg":
            tokens = tokens.mean((1, 2))
        tokens = self.head_drop(self.fc_norm(tokens))
        return tokens if pre_logits else self.head(tokens)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, in_chans, height, width), normalised -> logits (batch, num_classes)."""
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The tokens after some blocks, and those after the last one.

        Args:
            indices: indices of the blocks; the last n if a number, all if None.
            norm: apply the last norm to them.
            stop_early: skip the blocks that are not needed.
            output_fmt: "NCHW" or "NHWC".
            intermediates_only: leave out the last tokens.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt must be NCHW or NHWC, got {output_fmt!r}")
        wanted = chosen_blocks(indices, len(self.blocks))
        blocks = self.blocks[: max(wanted) + 1] if stop_early else self.blocks
        tokens = self.embed(x)
        intermediates = []
        for index, block in enumerate(blocks):
            tokens = self.run(block, tokens)
            if index in wanted:
                chosen = self.norm(tokens) if norm else tokens
                intermediates.append(chosen.permute(0, 3, 1, 2).contiguous() if output_fmt == "NCHW" else chosen)
        return intermediates if intermediates_only else (self.norm(tokens), intermediates)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes all parts that are not needed for some intermediates."""
        wanted = chosen_blocks(indices, len(self.blocks))
        self.blocks = self.blocks[: max(wanted) + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, "")
        return wanted

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            if global_pool not in ("avg", ""):
                raise ValueError(f"global_pool must be 'avg' or '' (no pooling), got {global_pool!r}")
            self.global_pool = global_pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = nn.Identity()
        if num_classes:
            self.head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
        self.head.train(self.training)

    def group_matcher(self, coarse: bool = False) -> dict:
        """Groups of parameters by depth, for layer decay."""
        return {
            "stem": r"^patch_embed|pos_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm|^fc_norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: position embeddings, and those of `undecayed`."""
        names = {"pos_embed"} if hasattr(self, "pos_embed") else set()
        return names | undecayed(self)


def chosen_blocks(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """Indices of blocks: all if None, the last n if a number, else those of a list (negative ones from the end)."""
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        indices = range(depth - indices, depth)
        if indices.start < 0:
            raise ValueError(f"the last {len(indices)} blocks are requested, and the model has {depth}")
    wanted = [index + depth if index < 0 else index for index in indices]
    if not wanted or min(wanted) < 0 or max(wanted) >= depth:
        raise ValueError(f"indices {list(indices)} are not among the {depth} blocks of the model")
    return wanted


def undecayed(model: nn.Module) -> set[str]:
    """Names of parameters of attentions that must not decay to zero: K of the released forms, and factors."""
    kinds = ("dictionary.inhibition", "dictionary.step", "strength_factor")
    return {name for name, _ in model.named_parameters() if name.endswith(kinds)}


def build_attention(name: str, dim: int, heads: int, grid: tuple[int, int], options: dict | None) -> Attention:
    """An attention by name, with a copy of the options, so that layers share no solver."""
    return create(name, dim, heads=heads, grid=grid, **copy.deepcopy(options or {}))


@torch.no_grad()
def initialize(module: nn.Module) -> None:
    """Truncated normal weights and zero biases for linear layers, as usual in vision transformers."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
