"""What a training program does beside its layout, and so what its step costs; two that published.

The defaults are a program of today. The older ones keep the scores, drop out three times a layer,
sum gradients in 16 bits, and let every message between stages and every gradient wait.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Software:
    """A program's habits.

    Args:
        fused_attention: scores never leave the chip, and half of the pairs are skipped.
        dropout: after attention, after the MLP, and of the scores.
        overlap_weights: weights that ZeRO cut are gathered behind the computation.
        overlap_gradients: gradients travel behind backward.
        overlap_pipeline: messages between stages travel behind the computation.
        gradient_bytes: of a number in the sum and in the exchange of gradients.
        gather_bytes_per_s: what ZeRO-3's exchanges attain on a rank; None for what links deliver.
    """

    fused_attention: bool = True
    dropout: bool = False
    overlap_weights: bool = True
    overlap_gradients: bool = True
    overlap_pipeline: bool = True
    gradient_bytes: int = 4
    gather_bytes_per_s: float | None = None


TODAY = Software()
MEGATRON = Software(
    fused_attention=False,
    dropout=True,
    overlap_weights=False,
    overlap_gradients=False,
    overlap_pipeline=False,
    gradient_bytes=2,
)

# DeepSpeed's ZeRO-3 as the authors of arXiv 2104.04473 ran it. A rank's adapter could send 25e9; a
# node's eight together, as one ring does, eight times that. So this belongs to the program.
ZERO3_FITTED_ON = "zero3-and-3d: ZeRO-3 530B on 2240"
ZERO3_BYTES_PER_S = 17.29e9
DEEPSPEED = replace(MEGATRON, overlap_weights=True, gather_bytes_per_s=ZERO3_BYTES_PER_S)
