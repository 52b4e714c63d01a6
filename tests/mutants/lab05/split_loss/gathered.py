"""expect: lab05.split_loss.gathered

All logits on every rank.
"""

from torch.nn.functional import cross_entropy

from labkit.comm.collectives import gather_from


def split_loss(logits, labels, num_words, group):
    whole = gather_from(logits, group)[..., :num_words]
    return cross_entropy(whole.flatten(0, 1), labels.flatten(), ignore_index=-100)
