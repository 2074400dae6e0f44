"""Recordings of any rate and format, and ESPnet data folders made of them."""

import logging
import re
from pathlib import Path
from typing import Dict, List, Optional, Union

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

SUFFIXES = {".wav", ".flac", ".ogg"}
Wave = NDArray[np.float32]


def find(folder: Path) -> List[Path]:
    """Return all recordings in a folder and in the folders in it.

    Raises:
        ValueError: there is none, or no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of recordings: it is not there")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not found:
        raise ValueError(f"No {', '.join(sorted(SUFFIXES))} file in {folder}.")
    return found


def names(paths: List[Path], folder: Path) -> Dict[str, Path]:
    """Return name → recording: its path without slashes and blanks, made unique."""
    named: Dict[str, Path] = {}
    for path in paths:
        stem = path.relative_to(folder).with_suffix("").as_posix()
        name = base = re.sub(r"[^\w.-]+", "_", stem)
        count = 1
        while name in named:
            count += 1
            name = f"{base}_{count}"
        named[name] = path
    return named


def longest_chunk(chunk_length: Union[int, str]) -> int:
    """Return the longest of what ESPnet takes: 8000, "4000,8000" or "4000-8000"."""
    return max(int(number) for number in re.findall(r"\d+", str(chunk_length)))


def read(path: Path, rate: int) -> Wave:
    """Return a recording as mono samples [T] at this rate, in Hz."""
    wave, found = soundfile.read(path, dtype="float32", always_2d=True)
    wave = wave.mean(axis=1)
    return np.asarray(soxr.resample(wave, found, rate), dtype=np.float32)


def load(path: Path, rate: int, min_samples: int) -> Optional[Wave]:
    """Return a recording [T], or None with a warning why it is left out."""
    try:
        wave = read(path, rate)
    except (soundfile.LibsndfileError, OSError) as error:
        logging.warning(f"skipped, not readable: {path}: {error}")
        return None
    if len(wave) < min_samples:
        logging.warning(
            f"skipped, too short: {path}: {len(wave) / rate:.2f} s, "
            f"needed are {min_samples / rate:.2f} s"
        )
        return None
    return wave


class DataFolder:
    """An ESPnet data folder that utterances are added to.

    Args:
        folder: where wav.scp, utt2num_samples (ESPnet's shape file) and wav/ go.
        rate: the sampling rate, in Hz.
    """

    def __init__(self, folder: Path, rate: int):
        self.folder = folder
        self.rate = rate
        self.paths: List[str] = []
        self.lengths: List[str] = []
        (folder / "wav").mkdir(parents=True, exist_ok=True)

    def add(self, name: str, wave: Wave) -> None:
        """Write an utterance [T]."""
        path = (self.folder / "wav" / f"{name}.wav").resolve()
        soundfile.write(path, wave, self.rate, "PCM_16")
        self.paths.append(f"{name} {path}\n")
        self.lengths.append(f"{name} {len(wave)}\n")

    def close(self) -> str:
        """Write the two lists, at last, so that they are there only when all is.

        Returns:
            How much is in the folder, for people.

        Raises:
            ValueError: nothing was added.
        """
        if not self.paths:
            raise ValueError(
                f"No usable recording for {self.folder}: longer ones are needed."
            )
        (self.folder / "wav.scp").write_text("".join(self.paths))
        (self.folder / "utt2num_samples").write_text("".join(self.lengths))
        seconds = sum(int(line.split()[1]) for line in self.lengths) / self.rate
        return f"{self.folder}: {len(self.paths)} utterances, {seconds:.1f} s"
