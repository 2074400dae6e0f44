"""The results of trainings: a file of JSON lines that only grows."""

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

from study_plan import Run

Result = Dict[str, Any]


class Results:
    """The results in a file, by key; of a key that is there twice the last.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> Dict[str, Result]:
        """Return key → result."""
        if not self.path.is_file():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
        return {result["key"]: result for result in found}

    def of(self, runs: Sequence[Run]) -> Dict[str, Result]:
        """Return the results of these trainings, as the plan has them now."""
        found = self.read()
        return {
            run.key: found[run.key]
            for run in runs
            if run.key in found and found[run.key]["config"] == run.config
        }

    def missing(self, runs: Sequence[Run]) -> List[Run]:
        """Return the trainings that have no result yet, in order."""
        found = self.of(runs)
        return [run for run in runs if run.key not in found]

    def add(self, result: Result) -> None:
        """Append a result; what is in the file stays, another program's too."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rounded(result)) + "\n")


def rounded(value: Any) -> Any:
    """Return plain values with five digits, which is more than trainings agree on."""
    if isinstance(value, dict):
        return {
            key: item if key == "config" else rounded(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
