"""Recordings of any rate and format, and ESPnet data folders made of them."""

import logging
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    Union,
)

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff"}
# Audio, too, but not for libsndfile.
UNREADABLE = {".aac", ".m4a", ".mp4", ".webm", ".wma"}
NAMED = 5  # files that a warning names
LISTS = ("wav.scp", "utt2num_samples")  # ESPnet's, of a data folder
PART = ".part"  # what a data folder is called until it is whole
Wave = NDArray[np.float32]


def find(folder: Path) -> List[Path]:
    """Return all recordings in a folder and in the folders in it.

    What a recipe wrote there itself, copies in data folders and decoded recordings, is
    left out; that and files of other audio formats are named in a warning.

    Raises:
        ValueError: there is none, or no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of recordings: it is not there")
    audio = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES | UNREADABLE and path.is_file()
    )
    other = [path for path in audio if path.suffix.lower() in UNREADABLE]
    made = {x for x in {path.parent for path in audio} if _is_made(x, folder)}
    copies = [path for path in audio if path.parent in made]
    warn_of(other, "of a format that is not read")
    warn_of(copies, "copies that a recipe made")
    left_out = {*other, *copies}
    found = [path for path in audio if path not in left_out]
    if not found:
        kinds = ", ".join(sorted(SUFFIXES))
        raise ValueError(f"{folder} has no recording: none of {kinds}")
    return found


def _is_made(folder: Path, searched: Path) -> bool:
    """Return whether a recipe filled a folder with recordings, below the searched one.

    That of a data folder is called wav and lies beside its lists, that of a decoding
    beside its log.
    """
    above = folder.parent
    if folder.name != "wav" or searched not in above.parents:
        return False
    lists = all((above / name).is_file() for name in LISTS)
    return lists or above.suffix == PART or (above / "decode.log").is_file()


def warn_of(paths: List[Path], why: str) -> None:
    """Warn, if any recordings are left out, and name the first of them."""
    if paths:
        more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
        first = ", ".join(map(str, paths[:NAMED]))
        logging.warning(f"left out, {why}: {first}{more}")


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


class Recording(NamedTuple):
    """A recording whose header could be read.

    Attributes:
        header: its `frames`, `samplerate`, `channels` and `format`.
    """

    path: Path
    header: Any

    def is_shorter(self, samples: int, rate: int) -> bool:
        """Return whether it has less than so many samples at this rate, in Hz."""
        if self.header.samplerate != rate:
            samples -= 1  # one more or less comes of resampling
        return bool(self.header.frames * rate < samples * self.header.samplerate)


def readable(found: Iterable[Tuple[str, Path]]) -> Dict[str, Recording]:
    """Return name → recording of those whose header can be read, and warn of others."""
    recordings = {}
    for name, path in found:
        try:
            recordings[name] = Recording(path, soundfile.info(path))
        except (soundfile.LibsndfileError, OSError) as error:
            logging.warning(f"left out, not readable: {path}: {error}")
    return recordings


def long_enough(
    recordings: Mapping[str, Recording], samples: int, rate: int
) -> Dict[str, Recording]:
    """Return those that have so many samples at this rate, and warn of the others."""
    short = {n: x for n, x in recordings.items() if x.is_shorter(samples, rate)}
    why = f"shorter than {samples / rate:.2f} s"
    warn_of([recording.path for recording in short.values()], why)
    return {name: x for name, x in recordings.items() if name not in short}


def load(path: Path, rate: int, min_samples: int) -> Optional[Wave]:
    """Return a recording [T], or None with a warning why it is left out."""
    try:
        wave = read(path, rate)
    except (soundfile.LibsndfileError, OSError) as error:
        logging.warning(f"left out, not readable: {path}: {error}")
        return None
    if len(wave) < min_samples:
        logging.warning(
            f"left out, too short: {path}: {len(wave) / rate:.2f} s, "
            f"needed are {min_samples / rate:.2f} s"
        )
        return None
    return wave


class DataFolder:
    """An ESPnet data folder that utterances are added to; it is there whole or not.

    Until `close`, all is written beside it. As a context manager it takes that away if
    it was not closed.

    Args:
        folder: where wav.scp, utt2num_samples (ESPnet's shape file) and wav/ go.
        rate: the sampling rate, in Hz.
    """

    def __init__(self, folder: Path, rate: int):
        self.folder = folder
        self.rate = rate
        self.paths: List[str] = []
        self.lengths: List[str] = []
        self._part = folder.with_name(folder.name + PART)
        shutil.rmtree(self._part, ignore_errors=True)  # of a run that was killed
        (self._part / "wav").mkdir(parents=True)

    def __enter__(self) -> "DataFolder":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        shutil.rmtree(self._part, ignore_errors=True)

    def add(self, name: str, wave: Wave) -> None:
        """Write an utterance [T]."""
        file = f"{name}.wav"
        soundfile.write(self._part / "wav" / file, wave, self.rate, "PCM_16")
        self.refer(name, self.folder / "wav" / file, len(wave))

    def refer(self, name: str, path: Path, length: int) -> None:
        """Add a recording of this many samples without copying it."""
        self.paths.append(f"{name} {path.resolve()}\n")
        self.lengths.append(f"{name} {length}\n")

    def close(self) -> str:
        """Put all in its place, the two lists last.

        Returns:
            How much is in the folder, for people.

        Raises:
            ValueError: nothing was added.
        """
        if not self.paths:
            raise ValueError(f"{self.folder} would have no recording")
        for name, lines in zip(LISTS, (self.paths, self.lengths)):
            (self._part / name).write_text("".join(lines))
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "wav").mkdir(parents=True, exist_ok=True)
        _move((self._part / "wav").iterdir(), self.folder / "wav")
        _move([self._part / name for name in LISTS], self.folder)
        shutil.rmtree(self._part)
        seconds = sum(int(line.split()[1]) for line in self.lengths) / self.rate
        return f"{self.folder}: {len(self.paths)} utterances, {seconds:.1f} s"


def _move(paths: Iterable[Path], folder: Path) -> None:
    for path in list(paths):
        path.replace(folder / path.name)
