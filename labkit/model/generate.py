"""Write text one token at a time, with the keys and values of what was written kept."""

from collections.abc import Iterator

import torch

from labkit.model.attention import KVCache
from labkit.model.tokenizer import BOS, EOS, PAD
from labkit.model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: list[int],
    max_new_tokens: int,
    temperature: float = 0.8,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yield new tokens until EOS or max_new_tokens.

    When the model's longest sequence is full, the older half is forgotten and the rest is read
    again.

    Args:
        prompt: tokens to continue, without BOS.
        temperature: divides the logits; 0 always takes the likeliest token, the lowest of equals.
        generator: makes the draw repeatable; on the model's device.

    Raises:
        ValueError: for a negative temperature or number of tokens.
    """
    if temperature < 0 or max_new_tokens < 0:
        raise ValueError(
            f"temperature {temperature} and max_new_tokens {max_new_tokens} must be ≥ 0"
        )
    device = next(model.parameters()).device
    longest, num_layers = model.config.max_seq_len, model.config.num_layers
    tokens, cache, unread = [BOS, *prompt], KVCache(num_layers), 0
    for _ in range(max_new_tokens):
        if cache.length + len(tokens) - unread > longest:
            tokens, cache, unread = tokens[-(longest // 2) :], KVCache(num_layers), 0
        new = torch.tensor([tokens[unread:]], device=device)  # [1, T]
        unread = len(tokens)
        logits = model(new, cache)[0, -1].float()  # [V]
        logits[[BOS, PAD]] = float("-inf")  # never a continuation
        token = _draw(logits, temperature, generator)
        if token == EOS:
            return
        tokens.append(token)
        yield token


def _draw(logits: torch.Tensor, temperature: float, generator: torch.Generator | None) -> int:
    best = logits.max()
    if temperature == 0:
        return int((logits == best).nonzero()[0])
    probabilities = ((logits - best) / temperature).softmax(-1)  # no overflow, however cold
    return int(torch.multinomial(probabilities, 1, generator=generator))
