"""Speech to train on: segments of the recordings in a folder."""

from pathlib import Path

import soundfile
import soxr
import torch
from torch import Tensor
from torch.utils.data import Dataset

RATE = 16000  # Hz
SUFFIXES = {".wav", ".flac", ".ogg"}
FETCH = Path(__file__).resolve().parents[1] / "mini/codec1/local/fetch_arctic.py"


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
        found = [x for x in sorted(folder.rglob("*")) if x.suffix.lower() in SUFFIXES]
        segments = [
            part
            for wave in map(_read, found)
            if len(wave) >= length
            for part in wave.unfold(0, length, length // 4)
        ]
        if not segments:
            raise FileNotFoundError(
                f"{folder.resolve()} has no recording of {length / RATE:g} s or more, "
                f"among {len(found)} wav, flac and ogg files. Name a folder of "
                f"recordings with --wav_dir, or fetch two: python {FETCH} {folder}"
            )
        self.segments = segments

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Tensor:
        return self.segments[index].unsqueeze(0)


def _read(path: Path) -> Tensor:
    wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    wave = wave.mean(axis=1)
    if rate != RATE:
        wave = soxr.resample(wave, rate, RATE)
    return torch.from_numpy(wave)
