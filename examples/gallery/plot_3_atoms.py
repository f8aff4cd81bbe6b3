"""
The atoms of a trained model over a picture
===========================================

`torchvars.inspect` collects the sparse coding problem of every layer as a model runs: its dictionary, its code
and its reconstruction. Here the model is a small VARS-D that ships with the package, trained on Imagenette.
"""

import matplotlib.pyplot as plt
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import torchvars

classifier = torchvars.Classifier.from_pretrained("rvt_micro_vars_d.imagenette")
pixels = classifier.transform(Image.fromarray(load_sample_image("china.jpg")))
with torch.no_grad(), torchvars.inspect(classifier) as layers:
    confidence = classifier(pixels[None]).softmax(-1)[0]
for index in confidence.topk(3).indices:
    print(f"{100 * float(confidence[index]):5.1f} %  {classifier.classes[index]}")

# %%
# The names of the layers, and how much of each code is zero.

for name, layer in layers.items():
    print(f"{name}: {100 * float(layer.sparsity):.0f} % of the code is zero")

# %%
# For each of the four heads of one layer: the norm of the reconstruction over the picture, and the four atoms
# with the largest weights. An atom of VARS-D is a map over the picture: bright where tokens are similar.

layer = layers["model.blocks.0.attn"]
heads, tokens, atoms = layer.operator.atoms.shape[1:]
grid = 2 * (int(tokens**0.5),)
figure, axes = plt.subplots(heads, 6, figsize=(9, 6), layout="constrained")
for head, row in enumerate(axes):
    row[0].imshow(pixels.permute(1, 2, 0))
    row[1].imshow(layer.reconstruction[0, head].norm(dim=-1).unflatten(0, grid), cmap="viridis")
    weights = layer.code[0, head].norm(dim=-1)
    for axis, atom in zip(row[2:], weights.argsort(descending=True), strict=False):
        axis.imshow(layer.operator.atoms[0, head, :, atom].unflatten(0, grid), cmap="magma")
    for axis in row:
        axis.axis("off")
for axis, title in zip(axes[0], ("picture", "reconstruction", *(f"atom {n}" for n in range(1, 5))), strict=True):
    axis.set_title(title, fontsize=9)
plt.show()
