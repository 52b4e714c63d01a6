"""Words of the pictures in part I."""

PART1 = {
    # the years: models, GPUs, memory wall
    "axis.year": "year",
    "axis.state_gigabytes": "GB: training state, memory",
    "axis.training_flops": "FLOP",
    "axis.relative_to_first": "times the first GPU's",
    "growth.dense": "model",
    "growth.sparse": "model with experts",
    "growth.memory": "memory of one GPU",
    "growth.year": "one GPU, a year at its peak",
    "growth.parameters_title": "{first} to {last}: the largest models ×{models} in two years;\n"
    "a GPU's memory ×{memory}",
    "growth.parameters_alt": "Training state of published models and memory of one GPU, by year. "
    "From {first} to {last} the largest dense model grew {models} times in two years, the memory "
    "of a GPU {memory} times. GPUs of its time that a model's state fills: {told}.",
    "growth.holds": "{name} {n}",
    "growth.compute_title": "{name} took {n} years of one GPU at its peak",
    "growth.compute_alt": "Training compute of published models, by year, beside what one GPU does "
    "in a year. Years of one GPU of its time at the peak: {models}.",
    "growth.took": "{name} {n} ({gpu})",
    "growth.flops": "arithmetic: ×{own} in two years, line ×{paper}",
    "growth.bandwidth": "memory bandwidth: ×{own}, line ×{paper}",
    "growth.interconnect": "links: ×{own}, line ×{paper}",
    "growth.wall_title": "One GPU, {first} to {last}: arithmetic ×{flops},\n"
    "memory bandwidth ×{bandwidth}, links ×{interconnect}",
    "growth.wall_alt": "GPUs of {first} to {last} relative to the first, beside the rates of "
    "twenty years. {told}. The last is {flops} times the first in arithmetic, {bandwidth} in "
    "memory bandwidth, {interconnect} in links.",
    # four cuts
    "cuts.title": "Cut the data, or cut the model in one of three ways",
    "cuts.batch": "batch",
    "cuts.model": "model",
    "cuts.all": "all",
    "cuts.data": "by data",
    "cuts.data.sent": "sent: gradients, once a step",
    "cuts.data.alt": "By data: each rank reads its part of the batch and holds a copy of the whole "
    "model; gradients are sent once a step.",
    "cuts.layer": "by layer",
    "cuts.layer.sent": "sent: activations, to the next rank",
    "cuts.layer.alt": "By layer: each rank holds some layers; activations are sent to the next "
    "rank, and their gradients back.",
    "cuts.matrix": "by matrix",
    "cuts.matrix.sent": "sent: activations, in every layer",
    "cuts.matrix.alt": "By matrix: each rank holds a part of every matrix; activations are summed "
    "over the ranks in every layer.",
    "cuts.expert": "by expert",
    "cuts.expert.sent": "sent: tokens, to their experts",
    "cuts.expert.alt": "By expert: each rank reads its part of the batch and holds some of the "
    "experts and a copy of the rest; tokens are sent to their experts and back.",
    "cuts.alt": "Four ways to spread a batch and a model over {ranks} ranks. {told}",
    # fit of a scaling law
    "axis.tokens": "tokens",
    "axis.bits_per_byte": "held-out bits a byte",
    "scaling.size": "{n} parameters",
    "scaling.predicted": "{name}, predicted",
    "scaling.measured": "{name}, measured",
    "scaling.title": "{name}: predicted {predicted} bits a byte, measured {measured} ({error} %)",
    "scaling.alt": "Held-out loss against tokens: {records} records of {models} models of {least} "
    "to {most} parameters, the law fitted to them, and {name}, which was predicted at {predicted} "
    "bits a byte and measured at {measured}, an error of {error} %.",
    # roofline
    "axis.intensity": "FLOP a byte moved",
    "axis.tera_flops": "TFLOP/s at most",
    "roofline.prefill": "products of prefill",
    "roofline.decode": "products of decode",
    "roofline.title": "Up to {prefill} % of the peak in prefill, {decode} % in decode;\n"
    "the ridge stands at {ridge} FLOP a byte",
    "roofline.setting": "{model} on {device}, batch of {batch}, prompts of {length} tokens, bf16",
    "roofline.alt": "Roofline, {setting}. The ridge stands at {ridge} FLOP a byte. The product "
    "that is worst off can reach {prefill} % of the peak in prefill and {decode} % in decode.",
    "roofline.model": "model",
    "roofline.device": "device",
    "roofline.batch": "batch",
    # memory calculator
    "calculator.model": "model",
    "calculator.precision": "precision",
    "calculator.optimizer_name": "optimizer",
    "calculator.batch": "micro-batch",
    "calculator.ranks": "data-parallel ranks",
    "calculator.mixed": "mixed",
    "calculator.fp32": "fp32",
    "calculator.adamw": "AdamW",
    "calculator.momentum": "momentum",
    "calculator.adamw8": "8-bit AdamW",
    "calculator.sequences": "{n} × {length}",
    "calculator.row": "ZeRO {stage}",
    "calculator.row_recomputed": "ZeRO {stage}, recomputed",
    "calculator.budget": "{device}: {text}",
    "calculator.setting": "{model}, {precision}, {optimizer}, {ranks}, {batch} tokens each",
    "calculator.fits": "Fits into one {device}: {rows}",
    "calculator.fits_not": "No row fits into one {device}",
    "calculator.alt_row": "{row}: {total}, of them activations {activations}",
    "calculator.alt": "Bars of the bytes that one rank holds. {label}. {told}.",
    # algorithms
    "algorithm.ring": "ring",
    "algorithm.tree": "tree",
    "algorithm.halving_doubling": "halving and doubling",
    "algorithm.gather_broadcast": "gather, then broadcast",
    "algorithm.hierarchical": "hierarchical",
    "algorithm.switch": "in the switch",
    "algorithm.ddp_default": "default buckets",
    "algorithm.ddp_small": "buckets of 4 MiB",
    # ring, step by step
    "ring.rank": "rank {rank}",
    "ring.chunk": "chunk {chunk}",
    "ring.start": "Start: each rank holds only its own numbers",
    "ring.reduce_scatter": "Reduce-scatter, step {step} of {steps}",
    "ring.all_gather": "All-gather, step {step} of {steps}",
    "ring.legend_held": "row r filled: rank r's part is in the sum",
    "ring.legend_done": "sum complete",
    "ring.legend_moved": "on the wire in this step",
    "ring.alt_start": "Ring of {ranks} ranks before any message: rank r holds only its own part of "
    "each of the {ranks} chunks.",
    "ring.alt_step": "Ring of {ranks} ranks. {title}. Messages: {messages}. "
    "Complete sums: {complete}.",
    "ring.alt_message": "rank {sender} sends chunk {chunk} to rank {receiver}",
    "ring.alt_complete": "rank {rank} holds {chunks}",
    "ring.alt_none": "none",
    "ring.label": "Complete sums on each rank: {done} of {ranks}",
    # curves
    "curves.title": "Virtual time of an all-reduce",
    "curves.title_crossing": "Below {text} {small} is faster, above it {large}",
    "curves.replayed": "replayed",
    # bytes of each rank
    "bytes.title": "Equal totals; the busiest rank moves {most} against {least}",
    "bytes.title_plain": "Bytes through each rank",
    # timelines
    "timeline.title": "{name}: {text} of virtual time",
    "timeline.rank": "rank {rank}",
    # topologies
    "topology.ring": "Ring",
    "topology.tree": "Tree",
    "topology.hierarchical": "Hierarchical",
    "topology.switch": "In the switch",
    "topology.switch_symbol": "+",
    "topology.host": "host {host}",
    # planner
    "axis.predicted_seconds": "predicted seconds of a step",
    "plans.activations": "activations",
    "plans.alt": "{setting}. {finding}. {bars}",
    "plans.bar": "{layout}: {memory} a rank",
    "plans.bubble": "bubble",
    "plans.budget": "a layout may fill {text}",
    "plans.compute": "compute",
    "plans.device": "memory of a device: {text}",
    "plans.devices": "devices",
    "plans.exposed": "exchanges in the open",
    "plans.gradients": "gradients",
    "plans.model": "model",
    "plans.nothing_fits": "Nothing fits. The nearest: {layout},\n{needed} of {budget}",
    "plans.one_device": "one device",
    "plans.optimizer": "optimizer",
    "plans.optimizer state": "optimizer state",
    "plans.parameters": "parameters",
    "plans.part": "{name}: {text}",
    "plans.recompute_full": "full recompute",
    "plans.recompute_selective": "selective recompute",
    "plans.setting": "{model} on {devices:,} {device}, {tokens} tokens a step",
    "plans.title": "{layout}:\n{seconds} a step predicted, MFU {mfu}",
    "plans.working memory": "working memory",
}
