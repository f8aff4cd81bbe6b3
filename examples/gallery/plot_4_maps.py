"""
Attention maps under corruption
===============================

What the last attention of two models looks at, and whether it still does when the picture is corrupted. The
implicit map of a position is how much the mean token depends on the value there. It is defined for every
attention: for softmax it equals the attention weights.
"""

import matplotlib.pyplot as plt
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import torchvars
from torchvars.evaluation import corrupt

names = ("rvt_micro_softmax.imagenette", "rvt_micro_vars_sd.imagenette")
models = {name: torchvars.Classifier.from_pretrained(name) for name in names}
pixels = models[names[0]].transform(Image.fromarray(load_sample_image("china.jpg")))[None]
pictures = {"clean": pixels}
for corruption in ("gaussian_noise", "defocus_blur", "jpeg_compression", "fog"):
    pictures[corruption] = corrupt(pixels, corruption, severity=3, identities=["china"])
batch = torch.cat(list(pictures.values()))

# %%
# One call gives the maps of a batch. The correlation with the map of the clean picture says how stable they are.

maps = {name: torchvars.attention_maps(model, batch) for name, model in models.items()}
for name, found in maps.items():
    correlations = torch.corrcoef(found.flatten(1))[0]
    print(name, {title: round(float(each), 2) for title, each in zip(pictures, correlations, strict=True)})

# %%
# Maps are divided by their mean, and each model has one scale of colours. That of softmax is concentrated on a few
# tokens. That of VARS-SD is nearly flat: what reaches the mean token comes from everywhere.

figure, axes = plt.subplots(3, 5, figsize=(9, 5.8), layout="constrained")
for axis, (title, picture) in zip(axes[0], pictures.items(), strict=True):
    axis.imshow(picture[0].permute(1, 2, 0))
    axis.set_title(title.replace("_", " "), fontsize=9)
for row, (name, found) in zip(axes[1:], maps.items(), strict=True):
    relative = found / found.mean((1, 2), keepdim=True)
    low, high = relative.min(), relative.quantile(0.995)
    for axis, each in zip(row, relative, strict=True):
        drawn = axis.imshow(each, cmap="inferno", vmin=low, vmax=high, interpolation="bilinear")
    figure.colorbar(drawn, ax=row, label=name.split(".")[0].removeprefix("rvt_micro_"))
for axis in axes.flat:
    axis.set_xticks([])
    axis.set_yticks([])
plt.show()
