"""The cost of a model: trained parameters, and multiply-adds for one picture."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..attention.modes import evaluating
from ..sparse import fourier, plain
from ..sparse.fourier import Spectrum
from .backbone import sides
from .origin import image_size
from .registry import BACKBONES, MODELS

# The rows of the paper's main table, by their names here or in timm: its name, parameters in millions, and GFLOPs
# (multiply-adds). GFNet stands there with the figures of GFNet-Ti*; PVT, 13.2 and 1.9, is in neither.
PAPER = {
    "regnety_040": ("RegNetY-4GF", 20.6, 4.0),
    "resnet50": ("ResNet50", 25.6, 4.1),
    "resnext50_32x4d": ("ResNeXt50-32x4d", 25.0, 4.3),
    "inception_v3": ("InceptionV3", 27.2, 5.7),
    "pit_ti_224": ("PiT-Ti", 4.9, 0.7),
    "convit_tiny": ("ConViT", 5.7, 1.4),
    "deit_tiny_patch16_224": ("DeiT", 5.7, 1.3),
    "rvt_tiny_softmax": ("RVT", 8.6, 1.3),
    "deit_tiny_performer": ("DeiT*", 5.7, 1.3),
    "deit_tiny_vars_s": ("DeiT* VARS-S", 6.8, 1.0),
    "deit_tiny_vars_d": ("DeiT* VARS-D", 5.4, 1.4),
    "deit_tiny_vars_sd": ("DeiT* VARS-SD", 5.8, 1.4),
    "gfnet_tiny_global_filter": ("GFNet-Ti*", 7.5, 1.3),
    "gfnet_tiny_vars_s": ("GFNet-Ti* VARS-S", 7.5, 1.3),
    "gfnet_tiny_vars_d": ("GFNet-Ti* VARS-D", 9.8, 1.9),
    "gfnet_tiny_vars_sd": ("GFNet-Ti* VARS-SD", 10.4, 1.9),
    "rvt_tiny_performer": ("RVT*", 8.6, 1.3),
    "rvt_tiny_vars_s": ("RVT* VARS-S", 9.2, 1.0),
    "rvt_tiny_vars_d": ("RVT* VARS-D", 8.0, 1.2),
    "rvt_tiny_vars_sd": ("RVT* VARS-SD", 9.2, 1.5),
}


@dataclass(frozen=True)
class Cost:
    parameters: int
    multiply_adds: int


def cost(model: nn.Module, img_size: int | Sequence[int] | None = None) -> Cost:
    """Trained parameters, and multiply-adds for one picture in evaluation mode.

    Counted are products of matrices, convolutions, fused attention, and Fourier transforms: a real transform of a grid
    of N positions takes 2.5 N log2 N operations per channel by the usual formula, so 1.25 N log2 N multiply-adds, also
    if it runs as a product with matrices (`torchvars.sparse.fourier`). Elementwise operations are not counted:
    activations, norms, thresholds, and products of spectra. The model is not changed.

    Args:
        model: images (batch, channels, height, width) -> anything.
        img_size: size of the picture in pixels, (height, width) if it is not square; by default that of the model.
    """
    return Cost(_trained(model), _multiply_adds(_operations(model, img_size)))


def cost_of(name: str) -> Cost:
    """The cost of a model of this package as it is created by its name: `cost` in a small part of the time.

    Nothing is computed: tensors have shapes only. At most two blocks of each stage are built, the first and one for all
    others; of blocks that are alike one is counted.
    """
    options, depths = _shortened(name)
    with torch.device("meta"), _Uninitialized():
        model = timm.create_model(name, **options)
    blocks = model.blocks
    assert isinstance(blocks, nn.Sequential)
    kinds: dict[tuple, _Alike] = {}
    parameters = _trained(model)
    for block, count in zip(blocks, _repeats(depths), strict=True):
        alike = kinds.setdefault(_kind(block), _Alike(block))
        alike.count += count
        parameters += (count - 1) * _trained(block)
    model.blocks = nn.Sequential(*(alike.block for alike in kinds.values()))
    with _ShapesOnly():
        counter = _operations(model, None)
    by_module = counter.get_flop_counts()
    repeated = sum(
        (alike.count - 1) * sum(by_module[f"{type(model).__name__}.blocks.{index}"].values())
        for index, alike in enumerate(kinds.values())
    )
    return Cost(parameters, _multiply_adds(counter, repeated))


@dataclass
class _Alike:
    """A block, and the number of blocks of the model that cost the same."""

    block: nn.Module
    count: int = 0


def _shortened(name: str) -> tuple[dict, Sequence[int]]:
    """Options of a model with at most two blocks in each stage, and the depths of the stages of the whole model."""
    constructor, arguments = BACKBONES[MODELS[name][0]]
    if "depths" in arguments:
        return {"depths": [min(depth, 2) for depth in arguments["depths"]]}, arguments["depths"]
    depth = arguments.get("depth", signature(constructor).parameters["depth"].default)
    return {"depth": min(depth, 2)}, [depth]


def _repeats(depths: Sequence[int]) -> list[int]:
    """Number of blocks of the whole model for which each block of the shortened model stands.

    The first block of a stage may differ from the others, which are alike.
    """
    return [count for depth in depths for count in ([1, depth - 1] if depth > 1 else [1])]


class _Uninitialized(TorchFunctionMode):
    """Skips the initialisation of tensors, which have no values on the meta device."""

    FILLS = frozenset(["normal_", "uniform_", "fill_", "zero_", "clamp_", "erfinv_", "mul_", "add_"])

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.FILLS and args and args[0].device.type == "meta":
            return args[0]
        return func(*args, **(kwargs or {}))


class _ShapesOnly(TorchDispatchMode):
    """Elementwise operations give a tensor of the right shape, without PyTorch's slower rules for the meta device."""

    ELEMENTWISE = frozenset(
        {
            *(torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor, torch.ops.aten.mul.Tensor),
            *(torch.ops.aten.div.Tensor, torch.ops.aten.pow.Tensor_Scalar, torch.ops.aten.clamp_min.default),
            *(torch.ops.aten.gelu.default, torch.ops.aten.relu.default, torch.ops.aten.neg.default),
        }
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.ELEMENTWISE:
            tensors = [each for each in args if isinstance(each, Tensor)]
            first = tensors[0]
            if first.is_floating_point() and all(each.dtype == first.dtype for each in tensors):
                if all(each.shape == first.shape for each in tensors):
                    return torch.empty_like(first)
                return first.new_empty(torch.broadcast_shapes(*(each.shape for each in tensors)))
        return func(*args, **(kwargs or {}))


def _kind(block: nn.Module) -> tuple:
    """Key of the cost of a block: its modules, and the shapes of its tensors."""
    shapes = tuple((name, tensor.shape) for name, tensor in block.state_dict().items())
    return tuple((name, type(module)) for name, module in block.named_modules()), shapes


def _trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _operations(model: nn.Module, img_size: int | Sequence[int] | None) -> FlopCounterMode:
    """The counted operations of a model on one picture."""
    picture = _blank_picture(model, img_size)
    counter = FlopCounterMode(display=False, custom_mapping=_FOURIER)
    with torch.enable_grad(), evaluating(model), plain(), _transforms_by_fft(), counter:  # its hooks need gradients
        model(picture)
    return counter


def _multiply_adds(counter: FlopCounterMode, more: float = 0) -> int:
    """Number of multiply-adds; the counter counts each as two operations."""
    return round((counter.get_total_flops() + more) / 2)


def _blank_picture(model: nn.Module, img_size: int | Sequence[int] | None) -> Tensor:
    """One picture (1, channels, height, width) in the precision and on the device of the model."""
    if img_size is None:
        img_size = image_size(model)
        if img_size is None:
            raise ValueError(f"{type(model).__name__} does not say what pictures it takes: pass img_size in pixels")
    height, width = sides(img_size)
    like = next(model.parameters(), torch.empty(0))
    return like.new_zeros(1, getattr(model, "in_chans", 3), height, width)


@contextmanager
def _transforms_by_fft() -> Iterator[None]:
    """A context in which the transforms of `sparse.fourier` run as `torch.fft`, in all modules of the package.

    The numbers are the same, but the counter sees transforms instead of products with matrices.
    """
    package = __name__.split(".")[0]
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == package]
    swaps = [
        (module, function.__name__, function, by_fft)
        for function, by_fft in _BY_FFT.items()
        for module in modules
        if vars(module).get(function.__name__) is function
    ]
    try:
        for module, name, _, by_fft in swaps:
            setattr(module, name, by_fft)
        yield
    finally:
        for module, name, function, _ in swaps:
            setattr(module, name, function)


def _transform_by_fft(image: Tensor) -> Spectrum:
    spectrum = torch.fft.rfft2(image, dim=(-3, -2))
    return Spectrum(spectrum.real, spectrum.imag)


def _inverse_by_fft(spectrum: Spectrum, grid: tuple[int, int]) -> Tensor:
    return torch.fft.irfft2(torch.complex(*spectrum), s=grid, dim=(-3, -2))


def _coefficients_by_fft(filters: Tensor, grid: tuple[int, int]) -> Tensor:
    height, width = filters.shape[-3:-1]
    padded = F.pad(filters, (0, 0, 0, grid[1] - width, 0, grid[0] - height))
    spectrum = torch.fft.rfft2(padded.roll((-(height // 2), -(width // 2)), dims=(-3, -2)), dim=(-3, -2))
    above = spectrum[..., : grid[0] // 2 + 1, :, :]
    below = spectrum[..., -torch.arange(above.shape[-3]) % grid[0], :, :]
    rows, columns = (slice(1, 1 + (size - 1) // 2) for size in grid)  # with a sine
    top = torch.cat([(above + below).real, -(above + below).imag[..., columns, :]], dim=-2)
    bottom = torch.cat([(below - above).imag, (below - above).real[..., columns, :]], dim=-2)
    return torch.cat([top, bottom[..., rows, :, :]], dim=-3) / 2


_BY_FFT = {
    fourier.transform: _transform_by_fft,
    fourier.inverse: _inverse_by_fft,
    fourier.coefficients: _coefficients_by_fft,
}


def _fft_operations(shape: Sequence[int], dims: Sequence[int]) -> float:
    """Operations of a complex transform over some dimensions, 5 N log2 N each; a real one takes half."""
    return 5 * math.prod(shape) * math.log2(math.prod(shape[dim] for dim in dims))


# Operations by the shapes of what goes in and what comes out, as the counter asks for them.
_FOURIER = {
    torch.ops.aten._fft_r2c: lambda image, dims, *_, out_shape: _fft_operations(image, dims) / 2,
    torch.ops.aten._fft_c2r: lambda spectrum, dims, *_, out_shape: _fft_operations(out_shape, dims) / 2,
    torch.ops.aten._fft_c2c: lambda image, dims, *_, out_shape: _fft_operations(image, dims),
}
