"""MFU and tokens per second of a training loop: `python examples/mfu.py`."""

import torch
from torch import nn

import roofmark

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1000))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 1000, (4, 128), device=device)
meter = roofmark.Meter(model, ids)
for _ in range(100):
    with meter.step(ids):
        logits = model(ids)
        nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
print(meter)
