"""BatchNorms over all processes, here of one: what they compute is what PyTorch's compute."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from torchvars.training.norms import share_statistics


@pytest.fixture
def _alone(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_they_are_those_of_pytorch_in_any_precision(dtype, momentum):
    """Half precision has too few digits to sum up in: 3 x 40 x 40 numbers around 5 with a deviation of .5."""
    plain = nn.BatchNorm2d(7, momentum=momentum)
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    if dtype == torch.float64:
        plain = plain.double()
    shared = deepcopy(plain)
    share_statistics(shared)
    for _ in range(2):
        tokens = (5 + torch.randn(3, 7, 40, 40) / 2).to(dtype)
        upstream = torch.randn_like(tokens)
        outputs, gradients = [], []
        for norm in (plain, shared):
            taken = tokens.clone().requires_grad_()
            outputs.append(norm(taken))
            gradients.append(torch.autograd.grad(outputs[-1], [taken, norm.weight, norm.bias], upstream))
        assert outputs[1].dtype == dtype
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(outputs[1], outputs[0], **close)
        for one, other in zip(gradients[1], gradients[0], strict=True):
            torch.testing.assert_close(one, other, rtol=close["rtol"], atol=10 * close["atol"])
        torch.testing.assert_close(shared.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-4)
