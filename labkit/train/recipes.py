"""The settings that made the shipped models, each at most 40 minutes on two cores, and two more.

The mixtures are trained by their dense twins' recipes and are not shipped.
"""

from labkit.train.trainer import TrainSettings

RECIPES: dict[str, TrainSettings] = {
    "nano": TrainSettings(steps=1200, lr=4e-3),
    "mini": TrainSettings(steps=800),
    "mini-mha": TrainSettings(steps=800),
    "nano-moe": TrainSettings(steps=1200, lr=4e-3, balancing_rate=1e-3),
    "mini-moe": TrainSettings(steps=800, balancing_rate=1e-3),
}
