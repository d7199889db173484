"""A few steps of DistributedDataParallel on a small transformer, compared with the same steps computed plainly."""

from __future__ import annotations

import copy
import hashlib
import math

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plan import RANKS

WORDS, WIDTH, HEADS, LAYERS = 512, 256, 4, 3
SEQUENCES, LENGTH = 4, 32
STEPS, LEARNING_RATE = 5, 0.5

# A bucket of 4 MiB, so that gradients travel in several.
BUCKET_MIB = 4

# The allowed distance between the parameters, as a share of how far training moved them. The same kernels on the same
# data give the same bits; this leaves room for a library that adds in another order.
MOST_APART = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


class Block(nn.Module):
    """Attention and a perceptron, each added to its input. Attention is spelt out, so that it is repeatable."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        sequences, length, _ = x.shape
        split = self.project(self.before_attention(x)).view(sequences, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.join(mixed.transpose(1, 2).reshape(sequences, length, WIDTH))
        return x + self.perceptron(self.before_perceptron(x))


class Transformer(nn.Module):
    """Predicts the next word."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        places = torch.arange(words.shape[1], device=words.device)
        return self.out(self.norm(self.blocks(self.words(words) + self.places(places))))


def train(element: torch.dtype, rank: int, device: str, damaged: bool) -> dict:
    """Trains with DistributedDataParallel and plainly; returns the distance between the two.

    `damaged` changes one byte of the result before it is compared, as a trial of the check.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    begin = Transformer().to(element).to(device)
    data = batches(device)
    spread = DistributedDataParallel(copy.deepcopy(begin), bucket_cap_mb=BUCKET_MIB)
    losses = []
    steps(spread, lambda step: losses.append(backward(spread, data[step][rank])))
    plain = copy.deepcopy(begin)
    steps(plain, lambda step: average_of_all(plain, data[step]))
    result = parameters(spread)
    if damaged:
        result.view(torch.uint8)[result.numel()] ^= 64
    return {
        "apart": apart(result, parameters(plain), parameters(begin)),
        "most_apart": MOST_APART[element],
        "digest": hashlib.sha256(result.view(torch.uint8).numpy()).hexdigest(),
        "losses": [losses[0], losses[-1]],
        "parameters": result.numel(),
    }


def batches(device: str) -> list[list[torch.Tensor]]:
    """Returns, for each step, the sequences of each rank; each counts in a stride of its own, from 1 to 4."""
    generator = torch.Generator().manual_seed(11)
    shape = (STEPS, RANKS, SEQUENCES, 1)
    starts = torch.randint(0, WORDS, shape, generator=generator)
    strides = torch.randint(1, 5, shape, generator=generator)
    words = (starts + strides * torch.arange(LENGTH + 1)) % WORDS
    return [[words[step, rank].to(device) for rank in range(RANKS)] for step in range(STEPS)]


def steps(model: nn.Module, fill_gradients) -> None:
    """Runs all steps of stochastic gradient descent; `fill_gradients(step)` leaves the gradients in the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        fill_gradients(step)
        optimizer.step()


def backward(model: nn.Module, words: torch.Tensor) -> float:
    """Adds the gradients of one rank's sequences to those in the model; returns the loss."""
    scores = model(words[:, :-1])
    loss = nn.functional.cross_entropy(scores.reshape(-1, WORDS).float(), words[:, 1:].reshape(-1))
    loss.backward()
    return loss.item()


def average_of_all(model: nn.Module, ranks: list[torch.Tensor]) -> None:
    """Sets the mean of the gradients that each rank alone would have, as DistributedDataParallel defines it."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for words in ranks:
        model.zero_grad()
        backward(model, words)
        for total, parameter in zip(sums, model.parameters()):
            total += parameter.grad / RANKS
    for total, parameter in zip(sums, model.parameters()):
        parameter.grad = total


def parameters(model: nn.Module) -> torch.Tensor:
    """Returns all parameters in a row, on the CPU."""
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def apart(result: torch.Tensor, expected: torch.Tensor, begin: torch.Tensor) -> float:
    """Returns the distance of `result` from `expected`, as a share of the distance of `expected` from `begin`."""
    if torch.equal(result.view(torch.uint8), expected.view(torch.uint8)):
        return 0.0
    result, expected, begin = result.double(), expected.double(), begin.double()
    # A NaN anywhere makes this NaN, for which `<=` is false.
    return float((result - expected).norm() / (expected - begin).norm())
