"""Which trainings the study is made of, those most worth having first.

An entry of the plan has a key, which never changes, and a configuration of plain
values: `way` is what make_way takes, `scaled` multiplies the losses before it,
`setting` changes study_train.SETTING.
"""

import random
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

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
COSTLY = ("discriminator of four times the channels", "batch 32")  # one seed
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
    COSTLY[0]: {"channels": 32},
    COSTLY[1]: {"batch": 32},
}
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


class Run(NamedTuple):
    """An entry of the plan.

    Attributes:
        key: its name, in words.
        wave: 1 for what is most worth having, to 4.
        questions: that it helps to answer.
        config: of the training.
        needs: keys whose results its configuration is made of.
    """

    key: str
    wave: int
    questions: Sequence[int]
    config: Dict[str, Any]
    needs: Sequence[str] = ()

    @property
    def condition(self) -> str:
        """The key without the seed."""
        return condition(self.key)

    @property
    def seed(self) -> int:
        """The seed."""
        seed: int = self.config["seed"]
        return seed


def key_of(condition: str, seed: int) -> str:
    """Return the key of a condition's training with a seed."""
    return f"{condition} | seed {seed}"


def condition(key: str) -> str:
    """Return a key without its seed."""
    return key.rpartition(" | ")[0]


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
IN_SETTINGS = (*CARRIED, MAIN[1], "sum, l1 10")  # and what else may be best there
DECIDING = (*MAIN, "ours, EnCodec's weights")  # about weights, in the long run
LONG_SEEDS = (*CARRIED, DECIDING[-1])  # with three seeds there
LONG_WAYS = (*DECIDING, "ESPnet's balancer", "sum, l1 10")
BASE = key_of("ours", 0)  # that factors are matched to


def draw(number: int) -> Dict[str, float]:
    """Return the factors 10^U(−2, 2) of a draw."""
    rng = random.Random(number)
    return {name: 10 ** rng.uniform(-2, 2) for name in LOSSES}


def at_length(way: str) -> str:
    """Return the name of a way's condition in the long run."""
    return f"{way} | {LONG} steps"


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


def _run(
    name: str,
    way: Mapping[str, Any],
    wave: int,
    questions: Sequence[int],
    seed: int = 0,
    steps: int = STEPS,
    scaled: Mapping[str, float] = {},
    needs: Sequence[str] = (),
    **setting: Any,
) -> Run:
    config = {
        **{"way": dict(way), "scaled": dict(scaled), "setting": setting},
        **{"steps": steps, "seed": seed},
    }
    if way.get("factors") == "matched":
        needs = [BASE]
    return Run(key_of(name, seed), wave, questions, config, needs)


def _question_1() -> Iterator[Run]:
    # Within a wave in this order: what the answer needs first comes first.
    yield from _undrawn(MAIN)
    yield from _draws("sum", range(DRAWS), 1)
    yield from _draws("ours", range(1), 1)
    yield from _undrawn([name for name in WAYS if name not in MAIN])
    # Three draws of it came to the same within 0.04 dB of SNR: no more are needed.
    yield from _draws("uncertainty weighting", range(3), 1)
    yield from _draws("GradNorm", range(4), 2)
    yield from _draws("ours", range(1, 3), 2)
    for name in ("ESPnet's balancer", "AudioCraft's balancer"):
        yield from _draws(name, range(3), 3)
    yield from _draws("GradNorm", range(4, DRAWS), 3)


def _undrawn(names: Sequence[str]) -> Iterator[Run]:
    for name in names:
        questions = [1, 2, 3, 4, 5] if name == "ours" else [1, 2, 3, 4]
        for seed in SEEDS if name in MAIN else SEEDS[:3]:
            wave = (1, 2, 2, 4, 4)[seed] if name in MAIN else (1, 3, 3)[seed]
            yield _run(name, WAYS[name], wave, questions, seed)


def _draws(name: str, numbers: Sequence[int], wave: int) -> Iterator[Run]:
    way = WAYS["sum, factors 1" if name == "sum" else name]
    for number in numbers:
        yield _run(drawn(name, number), way, wave, [1], scaled=draw(number))


def _question_2() -> Iterator[Run]:
    for setting, changes in SETTINGS.items():
        for seed in SEEDS[:1] if setting in COSTLY else SEEDS[:3]:
            wave = 2 if setting in COSTLY else (1, 4, 4)[seed]
            for name in CARRIED:
                full = in_setting(name, setting)
                yield _run(full, WAYS[name], wave, [2], seed, **changes)
    # The others come later, and with one seed.
    for setting, changes in SETTINGS.items():
        for name in IN_SETTINGS[2:]:
            wave = 3 if setting in COSTLY else 2
            full = in_setting(name, setting)
            yield _run(full, WAYS[name], wave, [2], **changes)


def _question_3() -> Iterator[Run]:
    for name, factors in PUBLISHED.items():
        yield _run(f"published, {name}", summed(factors), 1, [3])
    half = STEPS // 2
    for number, weights in enumerate(searched()):
        way = ours(weights=weights)
        name = f"search {number}"
        yield _run(name, way, 1, [3], steps=half, adversarial_from=150)
    needs = [search_key(number) for number in range(SEARCHED)]
    for rank in range(1, BEST + 1):
        for seed in SEEDS[:3]:
            way = ours(weights=f"best {rank}")
            wave = 2 if seed else 1
            yield _run(f"best {rank} of the search", way, wave, [3], seed, needs=needs)


def _question_4() -> Iterator[Run]:
    for seed in SEEDS[:3]:
        for name in LONG_WAYS if seed == 0 else LONG_SEEDS:
            wave = 1 if seed == 0 and name in DECIDING else 2
            yield _run(at_length(name), WAYS[name], wave, [4], seed, steps=LONG)


def _question_5() -> Iterator[Run]:
    for seed in SEEDS[:3]:
        wave = 4 if seed else 1
        for name, options in OPTIONS.items():
            yield _run(name, ours(**options), wave, [5], seed)
        yield _run(NO_WARM_UP, WAYS["ours"], wave, [5], seed, adversarial_from=0)


def runs(questions: Sequence[int] = (1, 2, 3, 4, 5)) -> List[Run]:
    """Return the trainings that questions need, those most worth having first."""
    parts = (_question_1, _question_2, _question_3, _question_4, _question_5)
    found = [run for part in parts for run in part()]
    wanted = [run for run in found if set(run.questions) & set(questions)]
    return sorted(wanted, key=lambda run: (run.wave, run.condition != "ours"))


def quick() -> List[Run]:
    """Return the plan in small: the base, a sum made of its result, and a draw."""
    small = {"segment": 1984, "batch": 2, "adversarial_from": 2}
    names = ("ours", "sum, matched factors")
    found = [_run(name, WAYS[name], 1, [1], steps=6, **small) for name in names]
    sums = _run(
        *(drawn("sum", 0), WAYS["sum, factors 1"], 1, [1]),
        **{"steps": 6, "scaled": draw(0)},
        **small,
    )
    return [*found, sums]


Results = Mapping[str, Mapping[str, Any]]


def resolved(run: Run, results: Results) -> Dict[str, Any]:
    """Return a configuration with the values that come from results.

    Factors are matched to our base: f_i = w_i / Σ_j w_j / the mean norm of loss i in
    that training, so there the sum has the same shares and the same total norm.
    """
    way = dict(run.config["way"])
    if way.get("factors") == "matched":
        whole = sum(WEIGHTS.values())
        found = results[BASE]["norms"]
        way["factors"] = {n: w / whole / found[n] for n, w in WEIGHTS.items()}
    if isinstance(way.get("weights"), str):
        rank = int(way["weights"].split()[1])
        way["weights"] = searched()[ranking(results)[rank - 1]]
    return {**run.config, "way": way}


def ranking(results: Results) -> List[int]:
    """Return the numbers of the search's trainings that are there, the best first.

    The best has the least mean of its ranks by STOI, SNR and MR-STFT.
    """
    numbers = [n for n in range(SEARCHED) if search_key(n) in results]
    total = dict.fromkeys(numbers, 0)
    for name, sign in (("stoi", -1), ("snr", -1), ("mr_stft", 1)):
        values = {n: sign * results[search_key(n)]["scores"][name] for n in numbers}
        for place, number in enumerate(sorted(numbers, key=values.__getitem__)):
            total[number] += place
    return sorted(numbers, key=total.__getitem__)
