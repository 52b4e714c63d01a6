"""With torch's own checkpoint."""

from torch.utils.checkpoint import checkpoint


def run_segments(layers, x, lengths):
    def run(x, *segment):
        for layer in segment:
            x = layer(x)
        return x

    rest = list(layers)
    for number, length in enumerate(lengths, 1):
        segment, rest = rest[:length], rest[length:]
        if number == len(lengths):
            return run(x, *segment)
        x = checkpoint(run, x, *segment, use_reentrant=False)
