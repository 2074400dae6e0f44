"""The results as tables and charts ask for them."""

from typing import Any, Dict, List, Mapping, Sequence

import study_conditions as conditions
import study_plan as plan
from study_score import SCORES

SUMS = "sum"  # the drawn sums' way in the plan
# Rows of the first question: title → its way in a draw, and without.
DRAWN = {
    "sum": ("sum", None),
    "uncertainty weighting": ("uncertainty weighting", None),
    "GradNorm": ("GradNorm", None),
    "ESPnet's balancer": ("ESPnet's balancer", "ESPnet's balancer"),
    "AudioCraft's balancer": ("AudioCraft's balancer", "AudioCraft's balancer"),
    "ours": ("ours", "ours"),
}


class Values:
    """The scores of conditions, by seed or by draw.

    Args:
        runs: the plan.
        results: key → result.
    """

    def __init__(
        self, runs: Sequence[plan.Run], results: Mapping[str, Mapping[str, Any]]
    ):
        self.runs, self.results = runs, results

    def of(self, condition: str) -> Dict[int, Mapping[str, Any]]:
        """Return seed → result."""
        return {
            result["config"]["seed"]: result
            for key, result in self.results.items()
            if conditions.condition(key) == condition
        }

    def scores(self, condition: str, score: str) -> Dict[int, float]:
        """Return seed → score."""
        return {
            seed: result["scores"][score]
            for seed, result in self.of(condition).items()
            if score in result["scores"]
        }

    def draws(self, way: str, score: str) -> Dict[int, float]:
        """Return draw → score."""
        found = {}
        for number in range(conditions.DRAWS):
            for value in self.scores(conditions.drawn(way, number), score).values():
                found[number] = value
        return found

    def by_setting(self, way: str, score: str) -> Dict[int, float]:
        """Return number of a changed setting → score there, of seed 0."""
        found = {}
        for number, setting in enumerate(conditions.SETTINGS):
            scores = self.scores(conditions.in_setting(way, setting), score)
            if 0 in scores:
                found[number] = scores[0]
        return found

    def untuned(self, title: str, score: str) -> List[float]:
        """Return all that a way comes to, whatever the losses' scales and the seed."""
        way, plain = DRAWN[title]
        found = list(self.draws(way, score).values())
        return found + list(self.scores(plain, score).values() if plain else [])

    def is_drawn(self, title: str) -> bool:
        """Return whether the losses' scales change what a way comes to."""
        return DRAWN[title][1] is None

    def counts(self, question: int) -> Dict[str, int]:
        """Return how many trainings of a question are there, its own, and planned."""
        runs = [run for run in self.runs if question in run.questions]
        there = [run for run in runs if run.key in self.results]
        own = [run for run in there if list(run.questions) == [question]]
        return {"there": len(there), "own": len(own), "all": len(runs)}

    def score_names(self) -> List[str]:
        """Return the scores that any result has, in order."""
        found = {name for x in self.results.values() for name in x["scores"]}
        return [name for name in SCORES if name in found]

    def qualities(self) -> List[str]:
        """Return those of the scores that charts show, which are of the sound."""
        return [name for name in self.score_names() if name != "codes"]


def better(score: str, one: float, other: float) -> bool:
    """Return whether one value of a score is better than another."""
    return one > other if SCORES[score][2] else one < other
