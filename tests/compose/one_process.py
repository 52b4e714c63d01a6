"""Models and batches for parallel training, and the run on one process that it must match.

Oracle: torch's optimizers on one process, float64, the whole batch. Clipping is at work in every
step, so a wrong norm changes the weights. Micro-batches and replicas score different numbers of
tokens, so a mean of means is wrong.
"""

from dataclasses import replace
from functools import cache, partial

import torch

from labkit.compose import make_mesh, parallelize
from labkit.compose.whole_state import whole_state
from labkit.launch import run_ranks
from labkit.model.config import PRESETS
from labkit.model.moe import balance_experts
from labkit.model.transformer import IGNORE, Transformer, initialise, next_token_loss

STEPS, ROWS, LENGTH, WORDS, CLIP = 5, 8, 8, 259, 1.0
TOL = dict(rtol=1e-9, atol=1e-12)  # of 5 steps; sums are re-ordered, errors seen are under 1e-14
SGD = partial(torch.optim.SGD, lr=0.5, momentum=0.9)  # its buffer is the sum of clipped gradients
ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


def nano(**changes):
    """The preset with two layers, unless more are asked for, and biases that are not 0."""
    shape = replace(PRESETS["nano"], **{"num_layers": 2, **changes})
    model = Transformer(shape).double()
    generator = torch.Generator().manual_seed(0)
    initialise(model, generator)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    return model


def batch(step):
    """Tokens and targets [B, T]; some rows score two tokens, some none, some all."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    targets = drawn[:, 1:].clone()
    targets[:3, 2:] = IGNORE
    targets[5] = IGNORE
    return drawn[:, :-1], targets


def decay(name, shape):
    """Matrices decay, gains do not."""
    return {} if len(shape) > 1 else {"weight_decay": 0.0}


@cache
def serial(make_optimizer, changes=(), num_steps=STEPS, balancing_rate=0.0):
    """(losses, norms, state by name) of the run on one process."""
    model = nano(**dict(changes))
    named = dict(model.named_parameters())
    groups = [{"params": [p], **decay(name, p.shape)} for name, p in named.items()]
    optimizer = make_optimizer(groups)
    losses, norms = [], []
    for step in range(num_steps):
        tokens, targets = batch(step)
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        balance_experts(model, balancing_rate)
    kept = model.state_dict(keep_vars=True).items()
    state = {name: {"weight": p.detach(), **optimizer.state[p]} for name, p in kept}
    return losses, norms, state


def train(plan, make_optimizer, changes, num_steps, balancing_rate):
    """(losses, norms, state) of the parallel run on this rank."""
    parallel = parallelize(
        nano(**dict(changes)),
        plan,
        make_mesh(plan),
        make_optimizer,
        clip_norm=CLIP,
        options=decay,
        balancing_rate=balancing_rate,
    )
    losses, norms = [], []
    for step in range(num_steps):
        losses.append(parallel.step(*batch(step)).item())
        norms.append(parallel.grad_norm.item())
    return losses, norms, whole_state(parallel)


def train_all(group, plans, *how):
    """One world, several plans; the state of rank 0 only, for all are alike."""
    results = [train(plan, *how) for plan in plans]
    if torch.distributed.get_rank(group) == 0:
        return results
    return [(losses, norms, None) for losses, norms, _ in results]


def assert_same(plans, make_optimizer=SGD, num_steps=3, balancing_rate=0.0, **changes):
    """Every rank's losses and norms, and the whole state, are those of one process."""
    key = tuple(changes.items())
    losses, norms, state = serial(make_optimizer, key, num_steps, balancing_rate)
    how = make_optimizer, key, num_steps, balancing_rate
    for results in run_ranks(train_all, plans[0].world_size, plans, *how, timeout=120):
        for plan, (got_losses, got_norms, got_state) in zip(plans, results, strict=True):
            told = partial("{}: {}".format, plan)
            torch.testing.assert_close(got_losses, losses, **TOL, msg=told)
            torch.testing.assert_close(got_norms, norms, **TOL, msg=told)
            if got_state is not None:
                torch.testing.assert_close(got_state, state, **TOL, msg=told)
