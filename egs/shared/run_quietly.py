#!/usr/bin/env python3
"""Run a command of ESPnet with its output in a log, and show the progress alone.

Of what a training prints, this shows a bar with the shares, a line an epoch and each
warning once; of a decoding a bar. Without a terminal there is no bar. If the command
fails, the last lines of its output follow.
"""

import argparse
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from textwrap import indent
from typing import Dict, Optional, Set

from tqdm import tqdm

LAST = 20  # lines that are shown of a command that failed

STARTED = re.compile(r"INFO: (\d+)/(\d+)epoch started")
STEPS = re.compile(r"INFO: \d+epoch:train:\d+-(\d+)batch: (.*)")
RESULTS = re.compile(r"INFO: (\d+)epoch results: \[train\] (.*?)(?:\[valid\] (.*))?$")
FINISHED = re.compile(r"INFO: The training was finished at (\d+) epochs")
DECODED = re.compile(r"INFO: \S+ \(size:")
# Those of the logger, and this package's own.
WARNING = re.compile(
    r"(?:\) (?:WARNING|ERROR)|/balancer/\S+\.py:\d+: \w*Warning): (.*)"
)
# ESPnet writes some values with no comma before the next name.
VALUE = re.compile(r"([A-Za-z_]\w*)=(-?(?:[\d.]+(?:e[+-]\d+)?|nan|inf))")


def values(text: str) -> Dict[str, float]:
    """Return the stats in what ESPnet's reporter logs."""
    return {name: float(value) for name, value in VALUE.findall(text)}


def shares(stats: Dict[str, float]) -> str:
    """Return the shares that a balancer reported, for people."""
    found = {k[: -len("_share")]: v for k, v in stats.items() if k.endswith("_share")}
    return ", ".join(f"{name} {share:.2f}" for name, share in found.items())


def validation(stats: Dict[str, float]) -> str:
    """Return the validation's mel loss, or its loss if it has none, for people."""
    for name in [x for x in stats if x.endswith("mel_loss")] + ["loss"]:
        if name in stats:
            return f"  validation {name} {stats[name]:.3f}"
    return ""


class Progress:
    """What is shown of a command's output, line by line.

    Args:
        total: the number of recordings to decode, if that is what the command does.
    """

    def __init__(self, total: Optional[int]):
        self._told: Set[str] = set()
        self._epochs = ""  # of the whole training
        self._began = False
        self._steps: Optional[int] = None  # of an epoch, once one is over
        self._bar = self._new_bar("decoding", total) if total else None

    def see(self, line: str) -> None:
        """Take in a line of the output."""
        if found := STARTED.search(line):
            self._start(int(found[1]), found[2])
        elif found := STEPS.search(line):
            self._step(int(found[1]), values(found[2]))
        elif found := RESULTS.search(line):
            self._end(found[1], values(found[2]), values(found[3] or ""))
        elif found := FINISHED.search(line):
            if not self._began:
                self.tell(
                    f"This training has its {found[1]} epochs already. For more: "
                    '--train_args "--max_epoch N"; for another training: --tag NAME'
                )
        elif DECODED.search(line) and self._bar is not None:
            self._bar.update()
        elif found := WARNING.search(line):
            if found[1] not in self._told:
                self._told.add(found[1])
                self.tell(f"warning: {found[1]}")

    def tell(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        tqdm.write(text)
        sys.stdout.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _new_bar(self, title: str, total: Optional[int]) -> "tqdm[None]":
        return tqdm(
            total=total,
            desc=title,
            leave=False,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
            mininterval=0,  # ESPnet's log is slow enough
        )

    def _start(self, epoch: int, epochs: str) -> None:
        if not self._began and epoch > 1:
            self.tell(
                f"This training goes on after epoch {epoch - 1} of {epochs}, where its "
                "checkpoint stands. For another training: --tag NAME"
            )
        self._began, self._epochs, self._since = True, epochs, time.monotonic()
        self.close()
        self._bar = self._new_bar(f"epoch {epoch}/{epochs}", self._steps)

    def _step(self, steps: int, stats: Dict[str, float]) -> None:
        self._last = steps
        if self._bar is not None:
            self._bar.set_postfix_str(shares(stats), refresh=False)
            self._bar.update(steps - self._bar.n)

    def _end(
        self, epoch: str, train: Dict[str, float], valid: Dict[str, float]
    ) -> None:
        self.close()
        seconds = time.monotonic() - self._since
        # ESPnet counts the steps from the first epoch on.
        self._steps = int(train["total_count"]) // int(epoch)
        line = f"epoch {epoch}/{self._epochs}  {seconds:.0f} s{validation(valid)}"
        found = shares(train)
        self.tell(line + (f"  shares: {found}" if found else ""))


def run(command: list[str], log: Path, total: Optional[int], verbose: bool) -> int:
    """Run a command and return its exit status, as shells say it."""
    last: "deque[str]" = deque(maxlen=LAST)
    progress = Progress(total)
    with open(log, "a", encoding="utf-8", errors="replace") as file, subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                last.append(line)
                if verbose:
                    print(line, end="", flush=True)
                else:
                    progress.see(line)
        except KeyboardInterrupt:
            process.wait()  # a terminal interrupts it, too
            progress.close()
            return 130
    progress.close()
    status = process.returncode
    if status and not verbose:
        print(f"The last lines of {log}:", file=sys.stderr)
        print(indent("".join(last), "    "), end="", file=sys.stderr)
    return status if status >= 0 else 128 - status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--total", type=int, help="recordings that are to be decoded")
    parser.add_argument("--verbose", choices=["true", "false"], default="false")
    parser.add_argument("log", type=Path, help="what the command prints is added to it")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    sys.exit(run(args.command, args.log, args.total, args.verbose == "true"))


if __name__ == "__main__":
    main()
