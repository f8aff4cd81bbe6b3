"""Comparison of a converted model with the original, of each layer or of the whole model; without labels.

In `Matching` each layer is trained by itself, on the inputs of the attention that it replaces in the original model, so
that it does not depend on the errors of the layers before it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Prototypes, Reconstruction
from ..attention.modes import evaluating
from ..attention.tokens import split_heads
from .classifier import Classifier, run_model
from .convert import Interpolated, converted_layers, originals_in
from .head import linear_heads


class Call(NamedTuple):
    """Arguments of a call of a layer, and the tokens it returned."""

    args: tuple
    kwargs: dict
    output: Tensor


@contextmanager
def calls_of(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, Call]]:
    """Collects the call of every layer while a model runs, by its name."""
    calls: dict[str, Call] = {}

    def note(name: str):
        def hook(layer: nn.Module, args: tuple, kwargs: dict, output: Tensor | tuple) -> None:
            calls[name] = Call(args, kwargs, tokens_of(output))

        return hook

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(note(name), with_kwargs=True).remove)
        # torch.nn.TransformerEncoderLayer would compute attention without calling the layer.
        before = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, before)
        torch.backends.mha.set_fastpath_enabled(False)
        yield calls
        if missing := [name for name in layers if name not in calls]:
            raise ValueError(f"{missing[0]} did not run: convert only layers that take part in classification")


def tokens_of(output: Tensor | tuple) -> Tensor:
    """The tokens in the output of an attention, which may include weights in torch and transformers."""
    return output[0] if isinstance(output, tuple) else output


class Matching(nn.Module):
    """The converted layers of a model, each beside the attention it replaces.

    Its parameters are those of the converted layers. The rest of the model only runs with the originals, in evaluation
    mode and without gradients.

    Args:
        model: images -> logits, converted, with its originals.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        found = converted_layers(model)
        if not found:
            raise ValueError(
                f"no attention of this {type(model).__name__} was converted: call convert(model, ...) first"
            )
        if any(isinstance(layer, Interpolated) for layer in found.values()):
            raise ValueError("layers that interpolate begin at the original: convert without interpolate to match them")
        if not all(layer.replaced for layer in found.values()):
            raise ValueError(
                "the original attentions are not there: a saved model holds the converted ones only. Convert the "
                "original model anew"
            )
        self.names = tuple(found)
        self.layers = nn.ModuleList(found.values())
        self.whole = (model,)  # in a tuple, so that its other parameters are not trained

    @torch.no_grad()
    def run_original(self, images: Tensor) -> tuple[Tensor, dict[str, Call]]:
        """The logits of the original model, and its calls of the attentions that were replaced."""
        (model,) = self.whole
        with evaluating(model), originals_in(model) as originals, calls_of(originals) as calls:
            logits = run_model(model, images)
        return logits, calls

    @torch.no_grad()
    def settle(self, images: Tensor) -> None:
        """Initialises the prototypes of `vars_p` from the keys of some images, before training.

        Softmax over keys in clusters is softmax over the centres of the clusters, so queries are compared with the
        centres, scaled as attention scales its keys. If there are fewer tokens than prototypes, they are not changed.
        """
        _, calls = self.run_original(images)
        for name, layer in self.named():
            for part in layer.modules():
                if not isinstance(part, Reconstruction):
                    continue
                dictionary, reader = part.dictionary, part.reader
                if isinstance(dictionary, Prototypes) and isinstance(reader, Prototypes):
                    with outputs_of(dictionary.project) as outputs:
                        layer(*calls[name].args, **calls[name].kwargs)
                    keys = split_heads(outputs[0].float(), part.heads).movedim(1, 0).flatten(1, 2)
                    if keys.shape[1] >= dictionary.prototypes.shape[-1]:
                        place_at_keys(dictionary.prototypes, reader.prototypes, keys)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, channels, H, W) -> relative error of each layer, (layers)."""
        _, calls = self.run_original(images)
        return self.errors(calls)

    def errors(self, calls: Mapping[str, Call]) -> Tensor:
        """Relative error of each layer on the inputs of these calls: (layers)."""
        outputs = (layer(*calls[name].args, **calls[name].kwargs) for name, layer in self.named())
        return torch.stack(
            [
                relative_error(tokens_of(each), calls[name].output)
                for each, name in zip(outputs, self.names, strict=True)
            ]
        )

    def named(self) -> Iterator[tuple[str, nn.Module]]:
        """The layers with their names in the model."""
        return zip(self.names, self.layers, strict=True)


def relative_error(output: Tensor, expected: Tensor) -> Tensor:
    """|output - expected|^2 / |expected|^2, a number in single precision."""
    expected = expected.float()
    return (output.float() - expected).square().sum() / expected.square().sum().clamp_min(1e-12)


def place_at_keys(of_keys: Tensor, of_queries: Tensor, keys: Tensor) -> None:
    """Sets prototypes (heads, width, M) of keys and of queries to centres of keys (heads, N, width); in place."""
    centres = cluster(keys, of_keys.shape[-1])
    spread = torch.cdist(keys, centres).amin(-1).square().mean(-1)[:, None, None]
    centred = centres - keys.mean(1, keepdim=True)  # a common offset does not change softmax
    of_keys.copy_((centred / spread.clamp_min(1e-6)).mT)
    of_queries.copy_((centred * keys.shape[-1] ** -0.5).mT)


def cluster(points: Tensor, count: int, rounds: int = 8) -> Tensor:
    """Centres by k-means++: (heads, N, width) -> (heads, count, width), with a fixed seed."""
    generator = torch.Generator(points.device).manual_seed(0)
    centres, distances = points[:, :1], torch.full(points.shape[:-1], torch.inf, device=points.device)
    for _ in range(count - 1):  # drawn with probability proportional to the squared distance
        distances = torch.minimum(distances, torch.cdist(points, centres[:, -1:]).squeeze(-1).square())
        drawn = torch.multinomial(distances + 1e-9, 1, generator=generator)
        centres = torch.cat([centres, points.gather(1, drawn.unsqueeze(-1).expand(-1, -1, points.shape[-1]))], 1)
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(-1, keepdim=True)
        sums = torch.zeros_like(centres).scatter_add_(1, nearest.expand_as(points), points)
        sizes = torch.zeros_like(centres[..., :1]).scatter_add_(1, nearest, torch.ones_like(points[..., :1]))
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    return centres


@contextmanager
def outputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the outputs of a layer whenever it runs."""
    outputs = []
    hook = layer.register_forward_hook(lambda layer, args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


class Joining(nn.Module):
    """A converted model, whole, beside the original one.

    Of the layers that are joined the errors are those within the converted model, which has its own inputs there. Where
    only some are joined, the model has the original attention in the others, and each of these goes on to be matched by
    itself, on the inputs that the original model gives it.

    Args:
        student: converted, with its originals.
        teacher: the same model as it was before; it is neither trained nor part of the state.
    """

    def __init__(self, student: Classifier, teacher: Classifier):
        super().__init__()
        self.student, self.teacher = student, (teacher.eval().requires_grad_(False),)
        self.names = Matching(student).names

    @torch.no_grad()
    def run_teacher(self, pixels: Tensor) -> tuple[Tensor, Tensor, dict[str, Call]]:
        """Logits, final features and calls of the attentions that were replaced."""
        return self._run(self.teacher[0], pixels)

    def _run(self, model: Classifier, pixels: Tensor) -> tuple[Tensor, Tensor, dict[str, Call]]:
        layers = {name: model.get_submodule(name) for name in self.names}
        with features_of(model.model) as features, calls_of(layers) as calls:
            logits = model(pixels)
        return logits, features[-1], calls

    def forward(self, pixels: Tensor, joined: Iterable[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pixels, and names of the joined layers -> logits of both, errors of the features and of each layer."""
        taught, known, expected = self.run_teacher(pixels)
        joined = set(joined)
        layers = {name: self.student.get_submodule(name) for name in self.names}
        with originals_in(self.student, set(self.names) - joined):
            logits, features, calls = self._run(self.student, pixels)
        errors = []
        for name, layer in layers.items():
            call = expected[name]
            output = calls[name].output if name in joined else tokens_of(layer(*call.args, **call.kwargs))
            errors.append(relative_error(output, call.output))
        return logits, taught, relative_error(features, known), torch.stack(errors)


@contextmanager
def features_of(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the inputs of the head of a model: the final features of the pictures."""
    head, features = next(iter(linear_heads(model).values())), []
    hook = head.register_forward_pre_hook(lambda module, args: features.append(args[0]))
    try:
        yield features
    finally:
        hook.remove()


def match(
    model: nn.Module,
    loader: Iterable[Tensor | Sequence[Tensor]],
    *,
    steps: int = 400,
    learning_rate: float = 1e-3,
    warmup: int = 30,
) -> dict[str, float]:
    """Trains every converted layer of a model to match the attention it replaces; in place.

        model = torchvars.convert(timm.create_model("deit_tiny_patch16_224", pretrained=True), "vars_p")
        errors = torchvars.match(model, loader)

    Each layer is trained by itself, on its inputs in the original model. Labels are not used, and only the converted
    layers are changed. There are no checkpoints: for runs that can be resumed, or on several processes, use `torchvars
    convert`, which trains the same module.

    Args:
        model: converted by `convert`, with its originals still there (not loaded from a file).
        loader: batches of normalised images, or tuples that begin with them. It is repeated as often as necessary.
        steps: number of steps.
        learning_rate: peak learning rate of AdamW, which falls to zero along a cosine.
        warmup: number of steps of linear warm-up.

    Returns:
        The relative error |own - original|^2 / |original|^2 of each layer by its name, a mean over the last tenth of
        the steps.

    Raises:
        FloatingPointError: a loss is not finite; the layers keep the weights of the last finite loss.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    matching = Matching(model)
    parameters = [parameter for parameter in matching.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, learning_rate, weight_decay=0.0)
    device, modes = parameters[0].device, [layer.training for layer in matching.layers]
    matching.train()
    last, good = [], None
    try:
        for step, images in zip(range(steps), _endless(loader), strict=False):
            images = images.to(device)
            if step == 0:
                matching.settle(images)
            rise, fall = min(1, (step + 1) / max(warmup, 1)), (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * rise * fall
            errors = matching(images)
            if not errors.isfinite().all():
                if good is not None:
                    matching.load_state_dict(good)
                worst = matching.names[int(errors.isfinite().logical_not().int().argmax())]
                raise FloatingPointError(
                    f"the error of {worst} is not a number at step {step}: a lower learning_rate may help"
                )
            good = {name: tensor.clone() for name, tensor in matching.state_dict().items()}
            optimizer.zero_grad()
            errors.sum().backward()
            optimizer.step()
            last = [*last, errors.detach()][-max(1, steps // 10) :]
    finally:
        for layer, mode in zip(matching.layers, modes, strict=True):
            layer.train(mode)
    return dict(zip(matching.names, torch.stack(last).mean(0).tolist(), strict=True))


def _endless(loader: Iterable) -> Iterator[Tensor]:
    """Yields the images of a loader, which is repeated without end."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch if isinstance(batch, Tensor) else batch[0]
        if empty:
            raise ValueError("the loader gives no pictures (an iterator gives its own only once)")
