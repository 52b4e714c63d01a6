"""Lab 05, tensor parallelism: its exercises.

| exercises                 | oracle           | what the program did                            |
| ------------------------- | ---------------- | ----------------------------------------------- |
| regions                   | sums in one list | collectives; inputs and gradients left alone    |
| column, row, mlp, suspect | the serial layer | shards and bytes held, one all-reduce each way  |
| attention                 | the serial layer | heads held, all-reduces over the replicas alone |
| embeddings, loss          | the serial layer | one all-gather; one all-reduce; few numbers     |
| sequence_block            | the serial layer | bytes of one all-reduce, activations held       |

All compare outputs and every gradient in float64. What runs on the ranks is in lab05_ranks.py, how
a layer is judged in lab05_layer.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab05_attention import check_attention
from labkit.grade.lab05_linear import (
    check_column,
    check_mlp,
    check_row,
    check_suspect,
)
from labkit.grade.lab05_regions import check_regions
from labkit.grade.lab05_sequence import check_sequence
from labkit.grade.lab05_vocab import check_hidden_embedding, check_split_loss, check_vocab_embedding

EXERCISES = tuple(
    Exercise(id=f"lab05.{exercise}", name=name, points=points, check=check)
    for exercise, name, points, check in (
        ("regions", "regions", 2, check_regions),
        ("column_linear", "ColumnLinear", 1, check_column),
        ("row_linear", "RowLinear", 2, check_row),
        ("mlp", "ShardedMLP", 1, check_mlp),
        ("suspect", "Suspect", 1, check_suspect),
        ("attention", "ShardedAttention", 3, check_attention),
        ("hidden_embedding", "HiddenEmbedding", 1, check_hidden_embedding),
        ("vocab_embedding", "VocabEmbedding", 1, check_vocab_embedding),
        ("split_loss", "split_loss", 3, check_split_loss),
        ("sequence_block", "SequenceBlock", 1, check_sequence),
    )
)
