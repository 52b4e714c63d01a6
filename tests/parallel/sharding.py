"""Models, batches and the one-process run that sharded training is compared with.

Oracle: torch's AdamW on one process, float64, the whole batch. Every rank compares its own pieces.
"""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss

# AdamW divides by a root of the gradient: rounding of 1e-16 stays below 1e-13 in five steps.
TOL = dict(rtol=0, atol=1e-12)
ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
STEPS, ROWS = 5, 12


class Odd(nn.Module):
    """D11's sizes 3, 1, 2 and 7, one of them never used, and one frozen."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, size in {"a": 3, "b": 1, "never": 2, "d": 7, "frozen": 3}.items():
            values = torch.randn(size, generator=generator, dtype=torch.float64)
            setattr(self, name, nn.Parameter(values))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return torch.tanh(x * self.a + self.frozen) @ self.d[:3] * self.b + self.d[3:].sum()


class Tied(nn.Module):
    """One weight in two modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.second.weight = self.first.weight
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).sum(-1)


def nano():
    model = Transformer(PRESETS["nano"]).double()
    initialise(model, torch.Generator().manual_seed(0))
    return model


def odd_batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)  # [B, 3]


def word_batch(step):
    return torch.randint(0, 259, (4, 9), generator=torch.Generator().manual_seed(step))  # [B, T+1]


def odd_loss(model, x):
    return model(x).square().mean()


def word_loss(model, words):
    return next_token_loss(model(words[:, :-1]), words[:, 1:])


CASES = {
    "odd": (Odd, odd_batch, odd_loss),
    "tied": (Tied, odd_batch, odd_loss),
    "nano": (nano, word_batch, word_loss),
}


def no_decay_of_vectors(name, shape):
    return {} if len(shape) > 1 else {"weight_decay": 0.0}


def own_part(group, tensor):
    return tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def by_piece(pieces, parameters):
    """This rank's part of what stands for each parameter's name."""
    return [
        None
        if parameters[p.name] is None
        else parameters[p.name].flatten()[p.start : p.start + p.parameter.numel()]
        for p in pieces
    ]


def serial(case, clip_norm=None, options=None, micro=1):
    """Outputs, gradients of each step, and the weights after it."""
    make, batch, loss = CASES[case]
    model = make()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p], **(options(n, p.shape) if options else {})} for n, p in named]
    optimizer, found = ADAMW(groups), []
    for step in range(STEPS):
        for number in range(micro):
            loss(model, batch(step * micro + number)).backward()
        norm = clip_norm and torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in named}
        optimizer.step()
        optimizer.zero_grad()
        found.append((grads, copy.deepcopy(model.state_dict()), norm))
    return found


def assert_gradients(pieces, grads):
    for piece, grad in zip(pieces, by_piece(pieces, grads), strict=True):
        if grad is None or piece.parameter.numel() == 0:
            assert piece.parameter.grad is None, piece.name
        else:
            torch.testing.assert_close(piece.parameter.grad, grad, **TOL)


class Breaks(torch.autograd.Function):
    """Identity forward, a failure backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("planted")
