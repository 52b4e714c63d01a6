"""The settings that made the shipped models: each at most 40 minutes on two cores."""

from labkit.train.trainer import TrainSettings

RECIPES: dict[str, TrainSettings] = {
    "nano": TrainSettings(steps=1200, lr=4e-3),
    "mini": TrainSettings(steps=800),
    "mini-mha": TrainSettings(steps=800),
}
