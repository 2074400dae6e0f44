"""A recipe's run.sh, as a user types it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

EGS = Path(__file__).parents[2] / "egs"

# A python that writes down what the trainer is given, and that sees eight GPUs.
PYTHON = """#!/bin/sh
case "$*" in
    *balancer.bin.gan_codec_train*) printf '%s\\0' "$@" >"$WRITE_TO" ;;
    *device_count*) echo 8 ;;
    *) exec {python} "$@" ;;
esac
"""


def run(recipe, *options, **environment):
    """Run it with these options and return what came of it."""
    return subprocess.run(
        command(recipe, *options),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


def command(recipe, *options):
    """Return the command line."""
    return [EGS / recipe / "codec1" / "run.sh", *map(str, options)]


def trainer_arguments(folder, recipe, *options):
    """Return what stage 2 gives to the trainer, on a machine that has many GPUs."""
    for part in ("train", "valid"):
        (folder / "data" / part).mkdir(parents=True, exist_ok=True)
        (folder / "data" / part / "wav.scp").touch()
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python"
    python.write_text(PYTHON.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    written = folder / "arguments"
    result = run(
        recipe,
        *("--stage", 2, "--stop_stage", 2, *options),
        *("--data_dir", folder / "data", "--exp_dir", folder / "exp"),
        *("--config", EGS / recipe / "codec1" / "conf" / "train_soundstream.yaml"),
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        WRITE_TO=str(written),
    )
    assert result.returncode == 0, result.stderr
    words = written.read_text().rstrip("\0").split("\0")
    return words[words.index("balancer.bin.gan_codec_train") + 1 :]
