"""Ways to apply a convolutional dictionary with PyTorch: by products, fast transforms, directly, as a matrix.

    python benchmarks/convolutions.py

Each applies P^T to signals of 192 channels and P to codes of 5 filters a channel, as one step of a solver does, on as
many positions in all: 14 x 14 at batch 16, 28 x 28 at batch 4, 56 x 56 at batch 1. Whatever depends on the filters only
is made before. Times are medians of interleaved rounds, in milliseconds; all forms are checked to agree.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from torchvars.models.speed import interleaved, seconds_of
from torchvars.sparse import Convolution

CHANNELS, FILTERS = 192, 5
Form = Callable[[], tuple[Tensor, Tensor]]  # the code P^T x, (batch, F, H, W, C), and the signal P u, (batch, H, W, C)


def half_spectrum(bank: Tensor, grid: tuple[int, int], signal: Tensor, code: Tensor) -> Form:
    """The plain operator: half spectra, real and imaginary parts apart, by matrices."""
    operator = Convolution(bank, grid)
    _ = operator.spectrum
    return lambda: (
        operator.analyze(signal.flatten(1, 2)).view_as(code),
        operator.synthesize(code.flatten(1, 3)).view_as(signal),
    )


def fft(bank: Tensor, grid: tuple[int, int], signal: Tensor, code: Tensor) -> Form:
    """torch.fft, on maps laid out as it likes them: (batch, C, F, H, W)."""
    spectrum = torch.complex(*Convolution(bank, grid).spectrum).permute(3, 0, 1, 2).contiguous()
    maps, codes = signal.movedim(-1, 1).contiguous(), code.movedim(-1, 1).contiguous()

    def run():
        analysed = torch.fft.irfft2(spectrum.conj() * torch.fft.rfft2(maps).unsqueeze(2), s=grid)
        explained = torch.fft.irfft2((spectrum * torch.fft.rfft2(codes)).sum(2), s=grid)
        return analysed.movedim(1, -1), explained.movedim(1, -1)

    return run


def direct(bank: Tensor, grid: tuple[int, int], signal: Tensor, code: Tensor) -> Form:
    """Depthwise convolutions, wrapped around the grid."""
    height, width = bank.shape[-2:]
    around = (width // 2, width - 1 - width // 2, height // 2, height - 1 - height // 2)
    mirrored = (around[1], around[0], around[3], around[2])
    maps, codes = signal.movedim(-1, 1).contiguous(), code.movedim(-1, 1).flatten(1, 2).contiguous()
    correlate = bank.flatten(0, 1).unsqueeze(1)
    convolve = bank.flip((-2, -1))

    def run():
        analysed = F.conv2d(F.pad(maps, around, mode="circular"), correlate, groups=CHANNELS)
        explained = F.conv2d(F.pad(codes, mirrored, mode="circular"), convolve, groups=CHANNELS)
        return analysed.unflatten(1, (CHANNELS, -1)).movedim(1, -1), explained.movedim(1, -1)

    return run


def matrix(bank: Tensor, grid: tuple[int, int], signal: Tensor, code: Tensor) -> Form:
    """One matrix (N, F N) for each channel."""
    positions = grid[0] * grid[1]
    atoms = Convolution(bank, grid).synthesize(
        torch.eye(FILTERS * positions)[:, :, None].expand(-1, -1, CHANNELS)
    )  # (F N, N, C)
    atoms = atoms.movedim(-1, 0).contiguous()
    signals, codes = (tensor.flatten(1, -2).permute(2, 1, 0).contiguous() for tensor in (signal, code))

    def run():
        analysed, explained = torch.bmm(atoms, signals), torch.bmm(atoms.mT, codes)
        return analysed.permute(2, 1, 0).view_as(code), explained.permute(2, 1, 0).view_as(signal)

    return run


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print("| grid | filters | half spectrum | FFT | direct | matrix |\n|---|---|---|---|---|---|")
    for side, batch in ((14, 16), (28, 4), (56, 1)):
        for size in (3, 7, side):
            grid = (side, side)
            bank = torch.randn(CHANNELS, FILTERS, size, size) / size
            signal, code = torch.randn(batch, *grid, CHANNELS), torch.randn(batch, FILTERS, *grid, CHANNELS)
            forms = {
                form.__name__: form(bank, grid, signal, code)
                for form in (half_spectrum, fft, direct, matrix)
                if not (form is matrix and side > 14) and not (form is direct and size > 14)
            }
            expected = forms["half_spectrum"]()
            for run in forms.values():
                for one, other in zip(run(), expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
            seconds = interleaved({name: partial(seconds_of, run) for name, run in forms.items()}, rounds)
            cells = [
                f"{1e3 * statistics.median(seconds[name]):.1f}" if name in seconds else ""
                for name in ("half_spectrum", "fft", "direct", "matrix")
            ]
            print(f"| {side} x {side}, batch {batch} | {size} x {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
