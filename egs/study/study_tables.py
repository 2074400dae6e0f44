"""The tables of RESULTS.md, a function for each question but the fourth."""

from typing import Dict, Mapping, Sequence

import numpy as np
import study_conditions as conditions
import study_plan as plan
from study_cells import (
    MISSING,
    differences,
    headings,
    mean,
    number,
    table,
    versus,
)
from study_score import SCORES
from study_statistics import rank_correlation
from study_values import DRAWN, SUMS, Values

# Titles of the second question's rows.
SETTINGS = {"base": "", **{name: name for name in conditions.SETTINGS}}
# What draws do not change, and the drawn ways that it is held against.
AGAINST = [
    ("ours", SUMS),
    ("ours, equal weights", SUMS),
    ("ours, EnCodec's weights", SUMS),
    ("ESPnet's balancer", SUMS),
    ("AudioCraft's balancer", SUMS),
    ("ours", "uncertainty weighting"),
    ("ours", "GradNorm"),
]


def untuned(values: Values) -> str:
    """Question 1."""
    scores = values.score_names()
    parts = [
        "Median, and from worst to best, over draws of the losses' scales, each from "
        "10^U(−2, 2); for the balancers over draws and seeds, which they do not tell "
        "apart:",
        _distributions(values, scores),
        "What draws do not change, in its training with the same seed, against what "
        "the draws came to:",
        _against_draws(values, scores),
        "Ours with scaled losses, minus ours: the same training up to rounding.",
        _same_training(values, scores),
        "Ours minus what is not drawn, paired by seed:",
        differences(
            values,
            {name: ("ours", name) for name in conditions.WAYS if name != "ours"},
            "ours minus",
        ),
    ]
    return "\n\n".join(parts)


def _distributions(values: Values, scores: Sequence[str]) -> str:
    rows = []
    for title in DRAWN:
        row = [title]
        count = 0
        for score in scores:
            found = sorted(values.untuned(title, score), reverse=not SCORES[score][2])
            count = len(found)
            if not found:
                row.append(MISSING)
                continue
            ends = " to ".join(number(x, score) for x in (found[0], found[-1]))
            row.append(f"{number(float(np.median(found)), score)} ({ends})")
        rows.append([*row, str(count)])
    return table(["way", *headings(scores), "trainings"], rows)


def _against_draws(values: Values, scores: Sequence[str]) -> str:
    rows = []
    for one, other in AGAINST:
        row = [one, other]
        for score in scores:
            base, drawn = values.scores(one, score), values.draws(other, score)
            same = dict.fromkeys(drawn, base[0]) if 0 in base else {}
            row.append(versus(same, drawn, score))
        rows.append(row)
    return table(["way", "against", *headings(scores)], rows)


def _same_training(values: Values, scores: Sequence[str]) -> str:
    rows = []
    base = values.of("ours").get(0)
    for draw in range(conditions.DRAWS):
        found = values.of(conditions.drawn("ours", draw)).get(0)
        if base is None or found is None:
            continue
        factors = ", ".join(f"{n} {x:.3g}" for n, x in conditions.draw(draw).items())
        row = [f"{draw}: {factors}"]
        for score in scores:
            apart = found["scores"][score] - base["scores"][score]
            row.append(number(apart, score, sign=True))
        early = found["losses"][0]["stft"] / base["losses"][0]["stft"] - 1
        rows.append([*row, f"{early:+.1e}"])
    head = ["draw", *headings(scores), "mean STFT loss, first fifth"]
    return table(head, rows)


def carried_over(values: Values) -> str:
    """Question 2."""
    scores = values.score_names()
    parts = [
        "Weights of ours and factors of a sum that match them in the base setting, "
        "carried into other settings. Ours minus the sum, by seed: what the worse of "
        "the two loses to the better one of its setting:"
    ]
    pairs = {
        title: [conditions.in_setting(way, setting) for way in conditions.CARRIED]
        for title, setting in SETTINGS.items()
    }
    parts.append(differences(values, pairs, "setting"))
    parts.append("Over the changed settings, a pair of seed 0 each:")
    parts.append(_over_settings(values, scores))
    parts.append(
        "Each loss's share of the gradient at the output in the last tenth of the "
        "steps, of seed 0:"
    )
    parts.append(_shares_by_setting(values))
    return "\n\n".join(parts)


def _shares_by_setting(values: Values) -> str:
    rows = []
    for title, setting in SETTINGS.items():
        row = [title]
        for loss in conditions.LOSSES:
            for way in conditions.CARRIED:
                result = values.of(conditions.in_setting(way, setting)).get(0)
                share = result["shares"]["late"][loss] if result else None
                row.append(MISSING if share is None else f"{share:.3f}")
        rows.append(row)
    head = ["setting"]
    for loss in conditions.LOSSES:
        head += [f"{loss}: ours", "sum"]
    return table(head, rows)


def _over_settings(values: Values, scores: Sequence[str]) -> str:
    cells = (
        versus(*(values.by_setting(way, score) for way in conditions.CARRIED), score)
        for score in scores
    )
    return table(["ours against", *headings(scores)], [[conditions.CARRIED[1], *cells]])


def weights(values: Values) -> str:
    """Question 3."""
    parts = [
        f"Shares of the gradient at the output, {conditions.SEARCHED} points, "
        "trainings of half length, ordered by the mean rank of STOI, SNR and MR-STFT:",
        _search(values),
        "Spearman's correlation of a loss's share with a score over the search:",
        _correlations(values),
        "The best of it in full length, minus the base:",
        differences(
            values,
            {
                f"best {rank}": (f"best {rank} of the search", "ours")
                for rank in range(1, conditions.BEST + 1)
            },
            "weights",
        ),
        "What factors come to as shares of the gradient at the output, in the first "
        "tenth of the steps with all losses and in the last, and what such a sum "
        "scores; DAC and HiFi-GAN have no l1:",
        _published(values),
    ]
    return "\n\n".join(parts)


def shares_of(weights: Mapping[str, float]) -> Dict[str, float]:
    """Return weights over their sum."""
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def _search(values: Values) -> str:
    scores, rows = values.score_names(), []
    for place, found in enumerate(plan.ranking(values.results), 1):
        result = values.results[conditions.search_key(found)]
        shares = shares_of(conditions.searched()[found])
        row = [str(place), *(f"{shares[name]:.3f}" for name in conditions.LOSSES)]
        rows.append([*row, *(number(result["scores"][s], s) for s in scores)])
    return table(["rank", *conditions.LOSSES, *headings(scores)], rows)


def _correlations(values: Values) -> str:
    found = plan.ranking(values.results)
    if len(found) < 4:
        return "Too few trainings."
    scores, rows = values.score_names(), []
    for name in conditions.LOSSES:
        shares = [shares_of(conditions.searched()[n])[name] for n in found]
        row = [name]
        for score in scores:
            scored = [
                values.results[conditions.search_key(n)]["scores"][score] for n in found
            ]
            row.append(f"{rank_correlation(shares, scored):+.2f}")
        rows.append(row)
    return table(["share of", *headings(scores)], rows)


def _published(values: Values) -> str:
    scores, rows = values.score_names(), []
    named = {"for comparison, ours": "ours"}
    for name, factors in conditions.PUBLISHED.items():
        text = ", ".join(f"{n} {x:g}" for n, x in factors.items() if x)
        named[f"{name}: {text}"] = f"published, {name}"
    for title, condition in named.items():
        result = values.of(condition).get(0)
        for when in ("early", "late"):
            row = [title, when]
            if result is None:
                rows.append([*row, *[MISSING] * (len(conditions.LOSSES) + len(scores))])
                continue
            row += [f"{result['shares'][when][loss]:.4f}" for loss in conditions.LOSSES]
            late = when == "late"
            row += [number(result["scores"][s], s) if late else "" for s in scores]
            rows.append(row)
    return table(["factors", "when", *conditions.LOSSES, *headings(scores)], rows)


def options(values: Values) -> str:
    """Question 5."""
    names = [*conditions.OPTIONS, conditions.NO_WARM_UP]
    base = [
        mean(list(values.scores("ours", score).values()), score)
        for score in values.score_names()
    ]
    parts = [
        "Each option minus the base, by seed. The base, mean ± standard deviation: "
        + ", ".join(
            f"{heading} {text}"
            for heading, text in zip(headings(values.score_names()), base)
        )
        + ".",
        differences(values, {name: (name, "ours") for name in names}, "option"),
    ]
    return "\n\n".join(parts)
