"""A recipe's run.sh, as a user types it."""

import subprocess
from pathlib import Path

EGS = Path(__file__).parents[2] / "egs"


def run(recipe, *options):
    """Run it with these options and return what came of it."""
    return subprocess.run(
        [EGS / recipe / "codec1" / "run.sh", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=600,
    )
