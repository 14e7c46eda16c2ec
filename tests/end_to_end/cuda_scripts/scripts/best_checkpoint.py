"""A loop that works in a folder of its run, logs to a file, keeps the best checkpoint and reads it back at the end."""

import json
import logging
import os

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
os.makedirs("outputs/run1", exist_ok=True)
os.chdir("outputs/run1")
logging.basicConfig(filename="train.log", level=logging.INFO)
np.save("data.npy", np.random.default_rng(0).standard_normal((100, 32)).astype("float32"))
data = torch.from_numpy(np.load("data.npy"))
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
best, history = float("inf"), []
for epoch in range(3):
    model.train()
    for start in range(0, 100, 20):
        loss = model(data[start : start + 20].to("cuda")).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        predicted = model(data.to("cuda")).argmax(1).cpu().numpy()
    logging.info("epoch %d: %.3f of class 0", epoch, (predicted == 0).mean())
    if loss.item() < best:
        best = loss.item()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
    history.append(float(best))
    print(f"epoch {epoch} loss {loss.item():.6f}")
with open("history.json", "w") as file:
    json.dump(history, file)
model.load_state_dict(torch.load("best.pt", map_location="cuda")["model"])
print(f"peak memory: {torch.cuda.max_memory_allocated()}")
