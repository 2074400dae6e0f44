"""Which trainings the study is made of: each a condition and a seed."""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

Changes = Dict[str, Any]  # of a training's configuration, nested as that is

SEEDS = (777, 778, 779)
LOSSES = ("reconstruct", "adv", "feat_match", "mel")
FACTORS = (1e-3, 1e3)
EXACT = 1024.0  # a power of two, which float32 multiplies by without rounding
# Beside 1 and 1000, which `ours` has.
UPDATE_EVERY = (4, 16)
TOTAL_NORM = (1.0, 100.0)
# Without `average: adaptive`, which `ours` has.
EMA_DECAY = (0.0, 0.9, 0.99, 0.999, 1.0)

# The factors that ESPnet's codecs have by default; mel_real has mel's.
HAND_TUNED = {"reconstruct": 1.0, "adv": 1.0, "feat_match": 2.0, "mel": 45.0}

SUM = "hand-tuned sum"
ESPNET = "ESPnet's balancer"
OURS = "ours"
ENCODEC = "ours, EnCodec's weights"
WARMED_UP = "ours, EnCodec's weights, adversarial ones from step 50 to 150"
OUTSIDE = "dual decoder's loss outside"
WITHOUT = "no dual decoder"

ENCODEC_WEIGHTS = {
    "reconstruct": 0.1,
    "adv": 3.0,
    "feat_match": 3.0,
    "mel": 1.0,
    "mel_real": 1.0,
}
RAMP = {"start": 0.0, "end": 3.0, "from_step": 50, "to_step": 150}
WAYS = (SUM, ESPNET, OURS, ENCODEC, WARMED_UP)
SCALED = [
    *((SUM, "mel"), (SUM, "adv"), (ESPNET, "mel")),
    *((SUM, "reconstruct"), (SUM, "feat_match")),
    *((OURS, loss) for loss in LOSSES),
]


class Run(NamedTuple):
    """A training of the study."""

    condition: str
    seed: int
    changes: Changes


def scaled(method: str, loss: str, factor: float) -> str:
    """Return the name of the condition in which one loss is multiplied."""
    return f"{method}, {loss} x {factor:g}"


def lambdas(factors: Dict[str, float]) -> Changes:
    """Return the change that multiplies the losses."""
    return {"codec_conf": {f"lambda_{name}": x for name, x in factors.items()}}


def method(name: str, loss: str = "", factor: float = 1.0) -> Changes:
    """Return the changes that make a way of training, with one loss multiplied."""
    factors = dict.fromkeys(LOSSES, 1.0) if name == OURS else dict(HAND_TUNED)
    if loss:
        factors[loss] *= factor
    changes = lambdas(factors)
    if name != OURS:
        changes.update(balancer="none", balancer_conf={})
        changes["codec_conf"]["use_loss_balancer"] = name == ESPNET
    return changes


def ours(**options: Any) -> Changes:
    """Return the changes that give our balancer other options."""
    return {"balancer_conf": options}


def conditions(questions: Sequence[int], first: bool) -> Dict[str, Changes]:
    """Return name → changes of what the questions need, the plain ones first.

    ESPnet's balancer, too, cancels every factor but mel's, which its dual decoder's
    loss has outside of it. Only the first seed scales what cannot or does not matter:
    all that ours makes of scaled losses is one training, and L1 and feature matching
    are next to nothing in the sum.
    """
    found = {name: method(name) for name in (SUM, ESPNET, OURS)}
    found[ENCODEC] = ours(weights=ENCODEC_WEIGHTS)
    ramps = {"adv": RAMP, "feat_match": RAMP}
    found[WARMED_UP] = ours(weights={**ENCODEC_WEIGHTS, **ramps})
    if 4 in questions:
        for decay in EMA_DECAY:
            found[f"ema_decay {decay:g}"] = ours(ema_decay=decay, average="ema")
    if 7 in questions:
        for norm in TOTAL_NORM:
            found[f"total_norm {norm:g}"] = ours(total_norm=norm)
    if 6 in questions:
        found[OUTSIDE] = {
            "balancer": "dual_outside",
            "codec_conf": {"lambda_mel": HAND_TUNED["mel"]},
        }
        found[WITHOUT] = {
            "codec_conf": {"use_dual_decoder": False},
            "balancer_conf": {"weights": {"mel_real": None}},
        }
    if 3 in questions:
        for every in UPDATE_EVERY:
            found[f"update_every {every}"] = ours(update_every=every)
    if 1 in questions:
        for name, loss in SCALED if first else SCALED[:3]:
            for factor in FACTORS:
                found[scaled(name, loss, factor)] = method(name, loss, factor)
        for loss in LOSSES if first else ():
            found[scaled(OURS, loss, EXACT)] = method(OURS, loss, EXACT)
    return found


def sweeps() -> Dict[int, Dict[str, str]]:
    """Return, by question, the values of an option and their conditions, in order."""
    return {
        3: {"1": OURS, **{f"{n}": f"update_every {n}" for n in UPDATE_EVERY}},
        4: {"adaptive": OURS, **{f"{x:g}": f"ema_decay {x:g}" for x in EMA_DECAY}},
        6: {"inside": OURS, "outside": OUTSIDE, "none": WITHOUT},
        7: {**{f"{x:g}": f"total_norm {x:g}" for x in TOTAL_NORM}, "1000": OURS},
    }


def runs(questions: Sequence[int], seeds: Sequence[int]) -> List[Run]:
    """Return the trainings, seed by seed, so that a part of them is a study too."""
    return [
        Run(name, seed, changes)
        for seed in seeds
        for name, changes in conditions(questions, seed == seeds[0]).items()
    ]


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a configuration with changes in it; None takes a nested key out."""
    new = dict(config)
    for key, value in changes.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(new.get(key), Mapping) and value:
            new[key] = merged(new[key], value)
        else:
            new[key] = value
    return new
