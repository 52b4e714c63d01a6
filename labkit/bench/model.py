"""A training step of our transformer beside that of transformers, the same weights, one process."""

import tempfile

import torch
import transformers
from torch.nn.functional import cross_entropy

from labkit.bench.stats import compare
from labkit.model.checkpoint import save_checkpoint
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss

SHAPE = {"batch": 4, "seq_len": 128}


def main() -> dict:
    """Print and return the median ratio of step times, ours over theirs."""
    torch.set_num_threads(1)
    ours = Transformer(PRESETS["mini"])
    initialise(ours, torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder, ours, torch.float32)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, 259, (SHAPE["batch"], SHAPE["seq_len"] + 1))
    x, y = tokens[:, :-1], tokens[:, 1:]

    def our_step():
        next_token_loss(ours(x), y).backward()

    def their_step():
        cross_entropy(theirs(x).logits.flatten(0, 1), y.flatten()).backward()

    ratio = compare("step of mini, ours / transformers", our_step, their_step, bound=1.05)
    return {"shape": SHAPE, "model": "mini", "ratio": vars(ratio)}
