"""The tables of RESULTS.md's fourth question, about longer trainings."""

from typing import Mapping, Tuple

import study_conditions as conditions
from study_cells import MISSING, differences, headings, number, table
from study_values import Values

Lengths = Mapping[Tuple[str, int], str]  # (way, steps) → condition


def longer(values: Values) -> str:
    """Question 4."""
    names = {}
    for name in conditions.LONG_WAYS:
        if name != conditions.REMATCHED:
            names[name, conditions.STEPS] = name
        names[name, conditions.LONG] = conditions.at_length(name)
    base = conditions.CARRIED[0]
    pairs = {
        f"{name}, {steps} steps": (names[base, steps], full)
        for (name, steps), full in names.items()
        if name != base
    }
    parts = [
        "Of seed 0:",
        _by_length(values, names),
        "Ours minus the others, by seed:",
        differences(values, pairs, "ours minus"),
        "Each loss's share of the gradient at the output in the last tenth of the "
        "steps, of seed 0:",
        _shares_by_length(values, names),
    ]
    return "\n\n".join(parts)


def _by_length(values: Values, names: Lengths) -> str:
    scores, rows = values.score_names(), []
    for (name, steps), full in names.items():
        result = values.of(full).get(0)
        found = (number(result["scores"][s], s) if result else MISSING for s in scores)
        rows.append([name, str(steps), *found])
    return table(["way", "steps", *headings(scores)], rows)


def _shares_by_length(values: Values, names: Lengths) -> str:
    rows = []
    for (name, steps), full in names.items():
        result = values.of(full).get(0)
        found = (
            f"{result['shares']['late'][loss]:.3f}" if result else MISSING
            for loss in conditions.LOSSES
        )
        rows.append([name, str(steps), *found])
    return table(["way", "steps", *conditions.LOSSES], rows)
