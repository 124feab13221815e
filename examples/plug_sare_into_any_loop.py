"""The SARE loss in any PyTorch training loop, on synthetic vectors instead of photos; runs in seconds."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.losses import SARE, mean_over_pairs

TUPLES, NEGATIVES, PLACES = 4, 10, 200
torch.manual_seed(0)
looks = torch.randn(PLACES, 64)  # the appearance of each place
weather = torch.randn(8, 64)  # differences between photos of a place


def photograph(places: Tensor) -> Tensor:
    """Photos (..., 64) of these places, each with random weather."""
    return looks[places] + torch.randn(*places.shape, 8) @ weather


model = nn.Linear(64, 32)
loss = SARE(kernel="gaussian", joint=True)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

for block in range(5):
    total = 0.0
    for _ in range(100):
        places = torch.stack([torch.randperm(PLACES)[: 1 + NEGATIVES] for _ in range(TUPLES)])  # (B, 1 + N)
        photos = photograph(places[:, 0]), photograph(places[:, 0]), photograph(places[:, 1:])
        query, positive, negatives = (F.normalize(model(x), dim=-1) for x in photos)
        value = mean_over_pairs(loss(query, positive, negatives), NEGATIVES)  # the authors' reduction
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += value.item()
    print(f"steps {100 * block:3d}..{100 * block + 99}  loss {total / 100:.4f}")
