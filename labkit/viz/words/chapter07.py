"""Words of the pictures in chapter 7."""

CHAPTER07 = {
    # a router and its experts
    "experts.token": "x",
    "experts.router": "router",
    "experts.expert": "expert {n}",
    "experts.score": "{score:.2f}",
    "experts.weight": "× {weight:.2f}",
    "experts.sum": "+",
    "experts.out": "y",
    "experts.router_title": "{top_k} of {experts} experts work for this token",
    "experts.router_alt": "A token x enters the router, which gives {experts} experts the scores "
    "{scores}. The largest {top_k} belong to {chosen}; only these work, their answers are "
    "multiplied by {weights} and added to y.",
    # dispatch and combine
    "experts.rank": "rank {rank}",
    "experts.copies": "copies,\nby expert",
    "experts.work": "experts",
    "experts.returned": "answers,\nback",
    "experts.added": "added",
    "experts.dispatch": "dispatch",
    "experts.combine": "combine",
    "experts.dispatch_title": "{away} of {copies} copies travel; {busiest} meet on one rank",
    "experts.dispatch_alt": "{ranks} ranks in columns, each with {tokens} tokens and {share} "
    "experts. Above, a rank's copies sorted by expert; lines lead each copy to its expert, "
    "{away} of {copies} to another rank. The ranks receive {loads} copies. Below, lines lead the "
    "answers back the same way, and each token's answers are added.",
    # load
    "axis.steps": "step",
    "axis.imbalance": "busiest expert / mean",
    "load.alone": "left alone",
    "load.loss": "auxiliary loss",
    "load.bias": "balancing bias",
    "load.faster": "bias, three times the rate",
    "load.curves_title": "{model}: {alone} when left alone, {loss} with the auxiliary loss",
    "load.curves_alt": "Largest load of an expert over the mean, by training step, for three "
    "runs. {ends}.",
    "load.curves_end": "{name}: {first} at first, {last} at the end",
    "load.told": "busiest expert {expert} × the mean, busiest rank {rank} ×; {away} of the copies "
    "travel; {dropped} dropped; {empty} of the places empty",
    "load.told_no_limit": "busiest expert {expert} × the mean, busiest rank {rank} ×; {away} of "
    "the copies travel; none dropped",
    "load.alt": "Copies for each of {experts} experts on {ep} ranks: {counts}. Router {way}, step "
    "{step}, capacity factor {factor}. {told}.",
    "load.setting_way": "router",
    "load.setting_step": "after steps",
    "load.setting_capacity": "capacity factor",
    "load.setting_ranks": "ranks",
    "load.no_limit": "none",
}
