"""
Converting a vision transformer
===============================

The attention of a trained model is replaced, and each new layer learns the output of the one it replaced,
without labels. Here a small model that ships stands for yours, and crops of one photograph for your images.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image

import torchvars

classifier = torchvars.Classifier.from_pretrained("rvt_micro_softmax.imagenette")
photograph = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1) / 255


def crops(count):
    """Normalised crops of the photograph, (count, 3, 112, 112)."""
    corners = [[int(torch.randint(0, size - 112, ())) for size in photograph.shape[1:]] for _ in range(count)]
    pixels = torch.stack([photograph[:, top : top + 112, left : left + 112] for top, left in corners])
    return (pixels - classifier.mean) / classifier.std


torch.manual_seed(0)
loader = [crops(4) for _ in range(5)]
held_out = crops(8)
with torch.no_grad():
    before = classifier.model(held_out).argmax(-1)

# %%
# `convert` keeps the pretrained projections; the prototypes are new. `match` trains the layers and returns the
# relative error of each. Few steps are taken here; on real images the command `torchvars convert` takes 400.

torchvars.convert(classifier.model, "vars_p")
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
total = 0
for steps in (1, 9):
    errors = torchvars.match(classifier.model, loader, steps=steps)
    total += steps
    axis.plot(range(1, len(errors) + 1), errors.values(), "o-", label=f"steps taken: {total}")
axis.set(xlabel="layer", ylabel="relative error of its output", ylim=0)
axis.legend(frameon=False)

with torch.no_grad():
    alike = (classifier.model(held_out).argmax(-1) == before).float().mean()
print(f"the same class as before for {100 * float(alike):.0f} % of held-out crops")
plt.show()
