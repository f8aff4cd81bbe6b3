"""Image classifiers saved by `save_pretrained` of transformers."""

import json
from pathlib import Path

from . import weights as stored
from .classifier import IMAGENET_MEAN, IMAGENET_STD, Classifier


def architecture_in(folder: Path) -> str | None:
    """transformers:CLASS for the class in the config.json of a folder; None if transformers did not write it."""
    try:
        config = json.loads((folder / stored.CONFIG).read_text())
    except (OSError, ValueError):  # reported where it is read
        return None
    if not isinstance(config, dict) or "model_type" not in config or "architecture" in config:
        return None
    return f"transformers:{(config.get('architectures') or [config['model_type']])[0]}"


def load_from_transformers(folder: Path, **changed) -> Classifier:
    """The image classifier in a folder; mean and std are those of its image processor."""
    if changed:
        raise ValueError(f"the model in {folder} is one of transformers: its {', '.join(changed)} cannot be changed")
    try:
        from transformers import AutoModelForImageClassification
    except ModuleNotFoundError as error:
        raise ValueError(f'the model in {folder} needs transformers: pip install "torchvars[hf]"') from error
    try:
        model, info = AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder} holds no image classifier of transformers that can be loaded: {error}") from error
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{folder} has no weights for {missing[0]}, so that it is no trained classifier")
    processor = folder / "preprocessor_config.json"
    if not processor.exists():
        raise ValueError(
            f"{folder} does not say the mean and deviation of its pixels: save the image processor of the model there"
        )
    normal = json.loads(processor.read_text())
    mean, std = normal.get("image_mean", IMAGENET_MEAN), normal.get("image_std", IMAGENET_STD)
    if normal.get("do_normalize") is False:
        mean, std = (0.0,) * len(mean), (1.0,) * len(std)
    # Names such as "tench, Tinca tinca" are not used; for 1000 classes `class_names` has those of ImageNet.
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    generic = len(names) == 1000 or all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return Classifier(model, mean, std, None if generic or len(set(names)) < len(names) else names).eval()
