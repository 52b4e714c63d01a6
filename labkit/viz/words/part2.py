"""Words of the pictures in part II."""

PART2 = {
    # data parallelism
    "data_parallel.forward": "Forward: split the batch, copy the weights, join the outputs",
    "data_parallel.backward": "Backward: average the gradients, update every copy alike",
    "data_parallel.batch": "batch",
    "data_parallel.copies": "weights",
    "data_parallel.outputs": "outputs",
    "data_parallel.joined": "joined",
    "data_parallel.gradients": "gradients",
    "data_parallel.aggregated": "all-reduce",
    "data_parallel.means": "mean",
    "data_parallel.update": "update",
    "data_parallel.weights": "w",
    "data_parallel.x": "x{rank}",
    "data_parallel.y": "y{rank}",
    "data_parallel.g": "g{rank}",
    "data_parallel.sum": "sum / N",
    "data_parallel.mean": "g",
    "data_parallel.updated": "w − ηg",
    # bytes on links
    "links.server": "Parameter server",
    "links.ring": "Ring all-reduce",
    "links.title": "{name}\nthrough the busiest rank: {text}",
    # efficiency against ranks
    "efficiency.after": "after backward",
    "efficiency.overlapped": "overlapped",
    "efficiency.int8": "overlapped, one byte each",
    "efficiency.parameter": "one call a parameter",
    "efficiency.default": "default buckets",
    "efficiency.small": "buckets of 4 MiB",
    "efficiency.fast": "fast links",
    "efficiency.nodes": "fast links in nodes of eight",
    "efficiency.slow": "slow links",
    "efficiency.label": "{name}: {n}",
    "efficiency.all": "80 % beyond {ranks:,} ranks",
    "efficiency.up_to": "80 % up to {ranks:,} ranks",
    "efficiency.never": "under 80 % from 2 ranks on",
    "efficiency.title": "Share of the step in which a rank computes",
    "efficiency.setting": "{model}, {tokens} tokens a rank, links of {link} a second",
    "efficiency.tensor_setting": "{model}, {tokens} tokens; fast links of {fast} a second, slow "
    "ones of {slow}",
    "efficiency.alt": "Efficiency against ranks for {setting}, from {first} to {last:,} ranks. "
    "{curves}.",
    # training memory
    "axis.gigabytes": "GB on one rank",
    "axis.stage": "ZeRO stage",
    "memory.parameters": "parameters",
    "memory.gradients": "gradients",
    "memory.optimizer": "optimizer state",
    "memory.activations": "activations",
    "memory.budget": "memory of a device: {text}",
    "memory.paper": "figure 1 of the ZeRO paper: {texts}",
    "memory.title": "{first} on one rank; with everything sharded, {last}",
    "memory.setting": "{parameters} parameters, {ranks}, {recipe}",
    "memory.one_rank": "1 rank",
    "memory.ranks": "{ranks:,} ranks",
    "memory.recipe_mixed": "mixed precision (2 + 2 + 12 bytes)",
    "memory.recipe_fp32": "fp32 (4 + 4 + 8 bytes)",
    "memory.recipe_autocast": "bf16 products over fp32 weights (4 + 4 + 8 bytes)",
    "memory.alt": "Bytes on one rank for {setting}. {stages}.",
    "memory.alt_stage": "Stage {stage}: {total}, of which {parts}",
    "memory.alt_part": "{name} {text}",
    # splits of a product
    "splits.x": "X",
    "splits.w": "W",
    "splits.y": "Y",
    "splits.h": "H",
    "splits.gate_up": "gate, up",
    "splits.down": "down",
    "splits.qkv": "Q, K, V",
    "splits.o": "O",
    "splits.tokens": "tokens",
    "splits.table": "table",
    "splits.lookup": "look up",
    "splits.all": "all",
    "splits.sum": "parts\nof a sum",
    "splits.times": "×",
    "splits.equals": "=",
    "splits.silu": "silu(gate)\n· up",
    "splits.heads": "own heads",
    "splits.all_reduce": "all-\nreduce",
    "splits.all_gather": "all-\ngather",
    "splits.columns.title": "By columns: each rank makes some columns of Y",
    "splits.columns.label": "Forward: an all-gather, if the whole Y is needed at all. "
    "Backward: an all-reduce of the gradient of X",
    "splits.columns.alt": "X times W is Y, W cut into {ranks} groups of columns. Every rank holds "
    "the whole X and one group of columns of W, and makes the same columns of Y. An all-gather "
    "puts Y together on all ranks.",
    "splits.rows.title": "By rows: each rank makes a part of every sum",
    "splits.rows.label": "Forward: an all-reduce of Y. Backward: nothing",
    "splits.rows.alt": "X times W is Y, W cut into {ranks} groups of rows. A rank holds one group "
    "of rows of W and the same columns of X, and makes a part of the sum for every number of Y. "
    "An all-reduce gives the whole Y to all ranks.",
    "splits.blocks.title": "In blocks: a rank makes parts of some columns",
    "splits.blocks.label": "Forward: an all-reduce between ranks 0 and 2 and between 1 and 3, then "
    "an all-gather. Backward: an all-reduce between 0 and 1 and between 2 and 3",
    "splits.blocks.alt": "X times W is Y, W cut into two by two blocks, one on each of {ranks} "
    "ranks. A rank holds half of the columns of X and makes, for half of the columns of Y, one of "
    "two parts of each sum. An all-reduce between ranks 0 and 2 and between 1 and 3 completes "
    "them. An all-gather puts the two halves together.",
    "splits.mlp.title": "MLP: columns, then rows",
    "splits.mlp.label": "One all-reduce forward, one backward",
    "splits.mlp.alt": "The MLP of a layer on {ranks} ranks. Gate and up are cut by columns: from "
    "the whole X each rank makes its own columns of H. Down is cut by the same rows, so each rank "
    "goes on with what it has and makes a part of every sum. One all-reduce gives Y to all ranks.",
    "splits.attention.title": "Attention: heads, then rows",
    "splits.attention.label": "One all-reduce forward, one backward",
    "splits.attention.alt": "The attention of a layer on {ranks} ranks. Q, K and V are cut by "
    "heads: from the whole X each rank makes and attends with its own heads. O is cut by the same "
    "rows, so each rank makes a part of every sum. One all-reduce gives Y to all ranks.",
    "splits.embedding_columns.title": "Embedding by columns: each rank has a part of each vector",
    "splits.embedding_columns.label": "Forward: an all-gather. Backward: nothing",
    "splits.embedding_columns.alt": "The embedding on {ranks} ranks, its table cut into groups of "
    "columns. Every rank has all tokens, looks all of them up and gets the same columns of Y. An "
    "all-gather puts the vectors together on all ranks.",
    "splits.embedding_words.title": "Embedding by words: each rank has some vectors",
    "splits.embedding_words.label": "Forward: an all-reduce. Backward: nothing",
    "splits.embedding_words.alt": "The embedding on {ranks} ranks, its table cut into groups of "
    "rows, which are words. Every rank has all tokens, looks up those that are its words and takes "
    "zeros for the others. An all-reduce adds what the ranks have and gives Y to all of them.",
    # whole weights over a step
    "axis.events": "units in the order in which they run",
    "axis.held_megabytes": "MB of weights on one rank",
    "held.forward": "forward",
    "held.backward": "backward",
    "held.measured": "measured",
    "held.shard": "own shards: {text}",
    "held.whole": "the whole model: {text}",
    "held.title": "At most {peak} of {whole} are on a rank at once",
    "held.alt": "Bytes of weights on one rank during forward and backward, unit by unit. Between "
    "steps {shard}, at most {peak}, the whole model {whole}.",
    # pipeline schedules
    "schedule.F": "forward",
    "schedule.B": "backward",
    "schedule.I": "gradient of the input",
    "schedule.W": "gradient of the weights",
    "schedule.BI": "backward, or of the input",
    "schedule.message": "message",
    "schedule.idle": "idle",
    "schedule.naive": "naive",
    "schedule.gpipe": "GPipe",
    "schedule.one_f_one_b": "1F1B",
    "schedule.interleaved": "interleaved 1F1B",
    "schedule.zero_bubble": "ZB-H1",
    "schedule.zero_bubble_v": "ZB-V",
    "schedule.dual_pipe_v": "DualPipeV",
    "schedule.title": "{name}: {share} of the step idle, up to {stash} in flight",
    "schedule.told": "bubble {ideal} of ideal time, {step} of the step; {length} forwards long; "
    "in flight: {stash}",
    "schedule.alt": "Timeline of {name} on {ranks} ranks with {micro_batches} micro-batches; a "
    "backward takes {ratio} forwards, a message {message}. {told}.",
    "schedule.refused": "{name} with {ranks} ranks and {micro_batches} micro-batches is not legal.",
    "schedule.measured": "A real run, its log replayed",
    "schedule.simulated": "The simulator",
    "explorer.backward": "backward / forward",
    "explorer.message": "message / forward",
    "explorer.ranks": "ranks",
    "explorer.micro": "micro-batches",
    "explorer.schedule": "schedule",
    # goodput
    "axis.interval_minutes": "minutes of work between two saves",
    "axis.goodput": "% of the time kept",
    "axis.run_hours": "hours of the run",
    "axis.run_minutes": "minutes of the run",
    "axis.run_seconds": "seconds of the run",
    "goodput.closed_form": "closed form",
    "goodput.simulated": "virtual clock, mean of runs",
    "goodput.young": "Young: {n} min",
    "goodput.daly": "Daly: {n} min",
    "goodput.title": "A failure in {failures} min: saving every {best} min keeps {share} %",
    "goodput.alt": "Share of the time that makes kept progress, by the interval between saves. "
    "At {least} min it is {least_share} %, at Daly's {best} min {share} %, at {most} min "
    "{most_share} %. A failure comes in {failures} min on average.",
    "goodput.work": "work",
    "goodput.save": "save",
    "goodput.write": "save",
    "goodput.wait": "wait for a save",
    "goodput.restart": "restart",
    "goodput.lost": "lost to a failure",
    "goodput.failure": "failure",
    "goodput.run_title": "{share} % of the time is kept; failures: {n}",
    "goodput.run_alt": "Timeline of a run; failures: {n}. Of its time {kept} % is work that is "
    "kept, {again} % work that was lost, {saved} % saves, {restarted} % restarts.",
}
