"""What the study compares, by name: ways to train, settings, options and weights."""

import random
from typing import Any, Dict, List, Mapping

import torch

LOSSES = ("l1", "stft", "adv", "feat")
STEPS = 1500
DRAWS = 16
SEEDS = (0, 1, 2, 3, 4)
SEARCHED = 24
BEST = 3  # of the search, trained in full

# The recipes' balancer: egs/pytorch/train.yaml, measuring at each step.
WEIGHTS = {"l1": 1.0, "stft": 4.0, "adv": 0.5, "feat": 1.0}
OURS: Dict[str, Any] = {"weights": WEIGHTS, "average": "adaptive", "update_every": 1}
ENCODEC = {"l1": 0.1, "stft": 1.0, "adv": 3.0, "feat": 3.0}
# AudioCraft's default for compression models: msspec is its spectral loss.
AUDIOCRAFT = {"l1": 0.1, "stft": 2.0, "adv": 4.0, "feat": 4.0}
PLAIN = dict.fromkeys(LOSSES, 1.0)
# Factors of published recipes; mel is the spectral loss here.
PUBLISHED = {
    "EnCodec": ENCODEC,
    "DAC": {"l1": 0.0, "stft": 15.0, "adv": 1.0, "feat": 2.0},
    "ESPnet": {"l1": 1.0, "stft": 45.0, "adv": 1.0, "feat": 2.0},
    "HiFi-GAN": {"l1": 0.0, "stft": 45.0, "adv": 1.0, "feat": 2.0},
}
SETTINGS: Dict[str, Dict[str, Any]] = {
    "half the segment": {"segment": 1984},
    "twice the segment": {"segment": 8000},
    "batch 4": {"batch": 4},
    "losses summed": {"summed": True},
    "8 kHz": {"rate": 8000},
    "Spanish": {"data": "es"},
    "music": {"data": "music"},
    "other FFT sizes": {
        "loss_ffts": [2048, 512, 64],
        "discriminator_ffts": [1024, 128],
    },
    "discriminator of four times the channels": {"channels": 32},
    "batch 32": {"batch": 32},
}
SETTING_SEEDS = {"losses summed": 3, "8 kHz": 3}  # where ours and the sum differ most
OPTIONS: Dict[str, Dict[str, Any]] = {
    "update_every 8": {"update_every": 8},
    "update_every 32": {"update_every": 32},
    "update_every auto": {"update_every": "auto"},
    "outliers skipped": {"outliers": "skip"},
    "ema_decay 0.999": {"average": "ema", "ema_decay": 0.999},
    "ema_decay 0.99": {"average": "ema", "ema_decay": 0.99},
    "ema_decay 0.9": {"average": "ema", "ema_decay": 0.9},
    "ema_decay 0": {"average": "ema", "ema_decay": 0.0},
    "exact_total_norm": {"exact_total_norm": True},
    "upgrad": {"weighting": "upgrad"},
    "aligned_mtl": {"weighting": "aligned_mtl"},
    "cagrad": {"weighting": {"name": "cagrad", "c": 0.5}},
}
NO_WARM_UP = "adversarial losses from the first step"
LONG = 6000


def key_of(condition: str, seed: int) -> str:
    """Return the key of a condition's training with a seed."""
    return f"{condition} | seed {seed}"


def condition(key: str) -> str:
    """Return a key without its seed."""
    return key.rpartition(" | ")[0]


def at_length(way: str) -> str:
    """Return the name of a way's condition in the long run."""
    return f"{way} | {LONG} steps"


def in_setting(way: str, setting: str) -> str:
    """Return the name of a way's condition in a changed setting."""
    return f"{way} | {setting}" if setting else way


def ours(**options: Any) -> Dict[str, Any]:
    """Return our balancer with other options."""
    return {"name": "ours", **OURS, **options}


def summed(factors: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a sum with factors."""
    return {"name": "sum", "factors": dict(factors)}


# The ways of the first question, by name; `matched` becomes factors of its own.
WAYS: Dict[str, Dict[str, Any]] = {
    "ours": ours(),
    "sum, factors 1": summed(PLAIN),
    "sum, matched factors": {"name": "sum", "factors": "matched"},
    "ESPnet's balancer": {"name": "espnet"},
    "AudioCraft's balancer": {"name": "audiocraft", "weights": AUDIOCRAFT},
    "ours, equal weights": ours(weights=PLAIN),
    "ours, EnCodec's weights": ours(weights=ENCODEC),
    "uncertainty weighting": {"name": "uncertainty"},
    "GradNorm": {"name": "gradnorm"},
    "sum, l1 10": summed({**PLAIN, "l1": 10.0}),
}
MAIN = ("ours", "sum, factors 1", "sum, matched factors")
CARRIED = (MAIN[0], MAIN[2])  # to changed settings, untouched
REMATCHED = "sum, matched anew"  # to a long training, for long ones alone
LONGER = (*MAIN, "ours, EnCodec's weights", "ESPnet's balancer", "sum, l1 10")
LONG_WAYS: Dict[str, Dict[str, Any]] = {
    **{name: WAYS[name] for name in LONGER},
    REMATCHED: {"name": "sum", "factors": f"matched at {LONG} steps"},
}
BASE = key_of("ours", 0)
MATCHED_TO = {  # factors → the training that they are matched to
    WAYS[MAIN[2]]["factors"]: BASE,
    LONG_WAYS[REMATCHED]["factors"]: key_of(at_length("ours"), 0),
}


def draw(number: int) -> Dict[str, float]:
    """Return the factors 10^U(−2, 2) of a draw."""
    rng = random.Random(number)
    return {name: 10 ** rng.uniform(-2, 2) for name in LOSSES}


def drawn(way: str, number: int) -> str:
    """Return the name of a way's condition with the losses scaled by a draw."""
    return f"{way} | draw {number}"


def searched() -> List[Dict[str, float]]:
    """Return the weights of the search: those of stft 1, the others' 10^±1.5 of it.

    The points are Sobol's, which fill the space evenly; the first has equal weights.
    """
    points = torch.quasirandom.SobolEngine(3).draw(SEARCHED + 1)[1:]
    exponents = (3 * points - 1.5).tolist()
    return [
        {"l1": 10**a, "stft": 1.0, "adv": 10**b, "feat": 10**c} for a, b, c in exponents
    ]


def search_key(number: int) -> str:
    """Return the key of a training of the search."""
    return key_of(f"search {number}", 0)
