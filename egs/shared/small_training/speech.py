"""Speech to train on: segments of the recordings in a folder."""

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
        folder: wav, flac or ogg files of any rate; several channels become one.
        length: of a segment, in samples at 16 kHz. Segments begin every quarter of it.

    Shape:
        an item: [1, length], float32.

    Raises:
        FileNotFoundError: the folder has no recording of that length.
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
            raise FileNotFoundError(
                f"{folder.resolve()} has no recording of {length / RATE:g} s or more. "
                "Name a folder of recordings with --wav_dir, or fetch two: "
                f"python {FETCH} {folder}"
            )

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Tensor:
        return self.segments[index].unsqueeze(0)
