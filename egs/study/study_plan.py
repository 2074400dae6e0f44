"""Which trainings the study is made of, those most worth having first.

An entry of the plan has a key, which never changes, and a configuration of plain
values: `way` is what make_way takes, `scaled` multiplies the losses before it,
`setting` changes study_train.SETTING.
"""

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

from study_conditions import (
    BEST,
    CARRIED,
    DRAWS,
    LONG,
    LONG_WAYS,
    MAIN,
    MATCHED_TO,
    NO_WARM_UP,
    OPTIONS,
    PUBLISHED,
    SEARCHED,
    SEEDS,
    SETTING_SEEDS,
    SETTINGS,
    STEPS,
    WAYS,
    WEIGHTS,
    at_length,
    condition,
    draw,
    drawn,
    in_setting,
    key_of,
    ours,
    search_key,
    searched,
    summed,
)


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
    if isinstance(way.get("factors"), str):
        needs = [MATCHED_TO[way["factors"]]]
    return Run(key_of(name, seed), wave, questions, config, needs)


def _question_1() -> Iterator[Run]:
    # Within a wave in this order: what the answer needs first comes first.
    yield from _undrawn(MAIN)
    yield from _draws("sum", range(DRAWS), 1)
    yield from _draws("ours", range(3), 1)
    yield from _undrawn([name for name in WAYS if name not in MAIN])
    # Three draws of it came to the same within 0.04 dB of SNR: no more are needed.
    yield from _draws("uncertainty weighting", range(3), 1)
    yield from _draws("GradNorm", range(DRAWS), 2)
    # A draw multiplies a loss's norms too, so by the rule of these it drops out.
    for name in ("ESPnet's balancer", "AudioCraft's balancer"):
        yield from _draws(name, range(1), 4)


def _undrawn(names: Sequence[str]) -> Iterator[Run]:
    for name in names:
        questions = [1, 2, 3, 4, 5] if name == "ours" else [1, 2, 3, 4]
        for seed in SEEDS if name in MAIN else SEEDS[:3]:
            wave = 1 if seed == 0 else 2 if name in MAIN else 4
            yield _run(name, WAYS[name], wave, questions, seed)


def _draws(name: str, numbers: Sequence[int], wave: int) -> Iterator[Run]:
    way = WAYS["sum, factors 1" if name == "sum" else name]
    for number in numbers:
        yield _run(drawn(name, number), way, wave, [1], scaled=draw(number))


def _question_2() -> Iterator[Run]:
    for setting, changes in SETTINGS.items():
        for seed in SEEDS[: SETTING_SEEDS.get(setting, 1)]:
            for name in CARRIED:
                full = in_setting(name, setting)
                yield _run(full, WAYS[name], 2 if seed else 1, [2], seed, **changes)


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
    for name, way in LONG_WAYS.items():
        for seed in SEEDS[: 3 if name in CARRIED else 1]:
            wave = 2 if seed else 1
            yield _run(at_length(name), way, wave, [4], seed, steps=LONG)


def _question_5() -> Iterator[Run]:
    for seed in SEEDS[:3]:
        wave = 3 if seed else 1
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

    Factors are matched to ours: f_i = w_i / Σ_j w_j / the mean norm of loss i in
    that training, so there the sum has the same shares and the same total norm.
    """
    way = dict(run.config["way"])
    if isinstance(way.get("factors"), str):
        whole = sum(WEIGHTS.values())
        found = results[MATCHED_TO[way["factors"]]]["norms"]
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
