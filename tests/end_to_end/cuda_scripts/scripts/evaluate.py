"""A model evaluated on a data set, with its predictions kept on the GPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device).eval()
loader = DataLoader(TensorDataset(torch.rand(4000, 784), torch.randint(0, 10, (4000,))), batch_size=100)
correct, kept = 0, []
with torch.inference_mode():
    for images, labels in loader:
        found = model(images.to(device)).argmax(1)
        kept.append(found)
        correct += (found.cpu() == labels).sum().item()
print(f"accuracy {correct / 4000:.3f}", torch.cat(kept).shape)
print(f"peak memory: {torch.cuda.max_memory_allocated()}")
