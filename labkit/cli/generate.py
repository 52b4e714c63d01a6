"""python -m labkit generate: write text with a trained model."""

import click


@click.command()
@click.option("--model", default="mini", show_default=True, help="A shipped model or a folder.")
@click.option("--prompt", default="ROMEO.\n", help="What to continue; \\n is a line's end.")
@click.option("--max-new-tokens", default=400, show_default=True, type=click.IntRange(0))
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0.0))
@click.option("--seed", default=0, show_default=True)
def generate(model: str, prompt: str, max_new_tokens: int, temperature: float, seed: int) -> None:
    """Write text with a trained model, token by token."""
    import codecs

    import torch

    from labkit.launch import device
    from labkit.model.checkpoint import load_checkpoint
    from labkit.model.generate import generate as tokens_of
    from labkit.model.tokenizer import encode

    prompt = prompt.replace("\\n", "\n")
    net = load_checkpoint(model).to(device()).eval()
    generator = torch.Generator(device()).manual_seed(seed)
    click.echo(prompt, nl=False)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may be 4 tokens
    for token in tokens_of(net, encode(prompt), max_new_tokens, temperature, generator):
        click.echo(decoder.decode(bytes([token])), nl=False)
    click.echo(decoder.decode(b"", final=True))
