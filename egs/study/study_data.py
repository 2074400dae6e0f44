"""The study's recordings: fetched from Debian or a folder, split, and in batches."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import List, NamedTuple

import numpy as np
import soundfile
import torch
from torch import Tensor

from balancer.reports.recordings import find, read

# name → Debian package. All are CC BY-SA 3.0: English and Spanish prompts of one
# speaker each, and music.
PACKAGES = {
    "en": "asterisk-core-sounds-en-g722",
    "es": "asterisk-core-sounds-es-g722",
    "music": "asterisk-moh-opsound-g722",
}
RATE = 16000  # Hz, of G.722
SHORTEST = 2.0  # seconds
LONGEST = 100.0  # seconds; longer ones, which are music, become pieces
PIECE = 10.0  # seconds
HELD_OUT = 10  # every tenth recording
SILENT = 1e-3  # root mean square; a package has recordings of silence


class Recordings(NamedTuple):
    """Waveforms [T] to train on, and those held out."""

    train: List[Tensor]
    test: List[Tensor]


def prepare(name: str, folder: Path) -> Path:
    """Return a folder of a package's recordings as WAV, fetched if they are not there.

    Args:
        name: a key of PACKAGES.
        folder: where the folder goes, and the package while it is unpacked.
    """
    wavs = folder / name
    if wavs.is_dir():
        return wavs
    from G722 import G722  # of the extra "study"

    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir(parents=True)
    package = _download(PACKAGES[name], unpacked)
    subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
    part = unpacked / "wav"
    part.mkdir()
    for path in sorted(unpacked.rglob("*.g722")):
        samples = np.array(G722(RATE, 64000).decode(path.read_bytes()), np.int16)
        whole = len(samples) <= LONGEST * RATE
        length = len(samples) if whole else int(PIECE * RATE)
        inside = path.relative_to(unpacked / "usr/share/asterisk").with_suffix("")
        stem = re.sub(r"[^\w-]+", "_", inside.as_posix())
        for start in range(0, len(samples), length):
            piece = samples[start : start + length]
            if len(piece) >= SHORTEST * RATE:
                out = part / f"{stem}_{start // RATE:04d}.wav"
                soundfile.write(out, piece, RATE, "PCM_16")
    part.rename(wavs)
    shutil.rmtree(unpacked)
    return wavs


def _download(package: str, folder: Path) -> Path:
    """Have apt fetch a package, which installs nothing and needs no root."""
    try:
        subprocess.run(["apt-get", "download", package], check=True, cwd=folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"study.py: apt-get download {package}: {error}. Where there is no apt, "
            "name a folder of recordings: --wav_dir DIR"
        ) from error
    (found,) = folder.glob("*.deb")
    return found


def load(folder: Path, rate: int) -> Recordings:
    """Return the recordings of 2 s and more at a rate in Hz, every tenth held out.

    Raises:
        ValueError: the folder has less than two such recordings.
    """
    waves = [torch.from_numpy(read(path, rate)) for path in find(folder)]
    loud = [
        wave
        for wave in waves
        if len(wave) >= SHORTEST * rate and wave.square().mean().sqrt() > SILENT
    ]
    if len(loud) < 2:
        raise ValueError(
            f"{folder} has {len(loud)} recordings of {SHORTEST:g} s and more that are "
            "not silent: two are needed, one to train on and one held out"
        )
    test = loud[::HELD_OUT]
    train = [wave for i, wave in enumerate(loud) if i % HELD_OUT]
    return Recordings(train, test)


class Batches:
    """Segments from anywhere in the recordings, the same for the same seed.

    Shape:
        a batch: [items, 1, length].
    """

    def __init__(self, waves: List[Tensor], length: int, items: int, seed: int):
        self._waves, self._length, self._items = waves, length, items
        self._rng = np.random.default_rng(seed)
        room = np.array([len(wave) - length for wave in waves], dtype=float)
        self._chances = room / room.sum()

    def __next__(self) -> Tensor:
        picked = self._rng.choice(len(self._waves), self._items, p=self._chances)
        parts = []
        for i in picked:
            start = self._rng.integers(len(self._waves[i]) - self._length + 1)
            parts.append(self._waves[i][start : start + self._length])
        return torch.stack(parts).unsqueeze(1)
