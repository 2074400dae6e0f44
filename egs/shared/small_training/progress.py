"""What is shown of a training: a bar with the shares, and a line an epoch."""

import sys
import time
from pathlib import Path
from typing import Dict, List, Mapping

from tqdm import tqdm


class Progress:
    """Shows what the epochs came to; without a terminal there is no bar.

    Args:
        epochs: of the whole training.
        shown: whether this process shows anything, which is to be one of them.
    """

    def __init__(self, epochs: int, shown: bool = True):
        self._epochs = epochs
        self._shown = shown

    def begin(self, done: int, checkpoint: Path, more: str) -> None:
        """Say what there is of a training that began before.

        Args:
            done: epochs that its checkpoint has seen.
            more: the option that sets the number of epochs.
        """
        if not done or not self._shown:
            return
        if done < self._epochs:
            print(f"goes on after epoch {done} of {self._epochs}, from {checkpoint}")
        else:
            print(
                f"{checkpoint} has {done} epochs already: this training is finished. "
                f"{more} trains on, --out_dir DIR trains another from the beginning"
            )

    def start(self, epoch: int, steps: int) -> None:
        """Begin an epoch, counted from 0, of so many steps."""
        self._title = f"epoch {epoch + 1}/{self._epochs}"
        self._since = time.monotonic()
        self._losses: List[float] = []
        self._shares: Dict[str, List[float]] = {}
        self._bar = tqdm(
            total=steps,
            desc=self._title,
            leave=False,
            disable=not (self._shown and sys.stderr.isatty()),
            dynamic_ncols=True,
        )

    def see(self, losses: Mapping[str, float], stats: Mapping[str, float]) -> None:
        """Take in a step's losses and the balancer's stats."""
        self._losses.append(float(losses["stft"]))
        shares = {k[: -len("_share")]: v for k, v in stats.items() if "_share" in k}
        for name, share in shares.items():
            self._shares.setdefault(name, []).append(share)
        self._bar.set_postfix_str(_text(shares), refresh=False)
        self._bar.update()

    def end(self) -> None:
        """Print the epoch's line, with means over its steps."""
        self._bar.close()
        if not self._shown:
            return
        loss = sum(self._losses) / len(self._losses)
        shares = _text({name: sum(x) / len(x) for name, x in self._shares.items()})
        seconds = time.monotonic() - self._since
        print(
            f"{self._title}  {seconds:.0f} s  stft loss {loss:.3f}  shares: {shares}",
            flush=True,
        )


def _text(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
