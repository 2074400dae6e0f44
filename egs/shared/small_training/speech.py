"""Speech to train on: segments of the recordings in a folder."""

import shlex
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from balancer.reports.recordings import find, load

RATE = 16000  # Hz
FETCH = Path(__file__).resolve().parents[1] / "fetch_speech.py"


class Segments(Dataset[Tensor]):
    """Overlapping segments of all recordings in a folder and in the folders in it.

    Args:
        folder: recordings of any rate; several channels become one.
        length: of a segment, in samples at 16 kHz. Segments begin every quarter of it.

    Shape:
        an item: [1, length], float32.

    Raises:
        ValueError: the folder has no recording of that length.
    """

    def __init__(self, folder: Path, length: int):
        folder = Path(folder).expanduser()
        try:
            waves = [load(path, RATE, length) for path in find(folder)]
        except ValueError:  # no recording at all
            waves = []
        self.segments = [
            part
            for wave in waves
            if wave is not None
            for part in torch.from_numpy(wave).unfold(0, length, length // 4)
        ]
        if not self.segments:
            broken = "; the lines above say what is wrong with each" if waves else ""
            fetch = shlex.join(["python", str(FETCH), str(folder)])
            raise ValueError(
                f"{folder.resolve()} has no recording of {length / RATE:g} s or more"
                f"{broken}. Name a folder of recordings with --wav_dir, or fetch two: "
                f"{fetch}"
            )

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Tensor:
        return self.segments[index].unsqueeze(0)


def check_batch(segments: Segments, batch_size: int, ranks: int) -> None:
    """Refuse a batch that the data cannot fill: a training would have no step.

    Raises:
        ValueError: there are less segments than a batch of all processes takes.
    """
    if batch_size * ranks > len(segments):
        each = f" on each of {ranks} processes" if ranks > 1 else ""
        raise ValueError(
            f"--batch_size {batch_size}{each} is more than the data have, "
            f"{len(segments)} segments: take {len(segments) // ranks} at most, shorter "
            "segments, or more recordings"
        )
