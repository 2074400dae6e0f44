"""Recordings: which are found, which are left out and why, and data folders of them."""

import numpy as np
import pytest
import soundfile

from balancer.reports.recordings import (
    DataFolder,
    find,
    load,
    long_enough,
    names,
    readable,
)


def tone(path, samples=1000, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.1 * np.sin(0.1 * np.arange(samples)), rate)
    return path


def test_formats_that_are_read_and_those_that_are_named(tmp_path, caplog):
    read = sorted(tone(tmp_path / f"a.{x}") for x in ("aiff", "flac", "mp3", "wav"))
    for i in range(7):
        (tmp_path / f"b{i}.M4A").touch()
    (tmp_path / "c.txt").touch()
    assert find(tmp_path) == read
    assert all(load(path, 16000, 500) is not None for path in read)
    first = ", ".join(str(tmp_path / f"b{i}.M4A") for i in range(5))
    (record,) = caplog.records
    assert record.message == (
        f"left out, of a format that is not read: {first} and 2 more"
    )


def test_what_a_recipe_wrote_is_not_found_again(tmp_path, caplog):
    original = tone(tmp_path / "wav" / "a.wav")
    data = DataFolder(tmp_path / "data" / "train", 16000)
    data.add("a", load(original, 16000, 1))
    unfinished = tmp_path / "data" / "train.part" / "wav" / "a.wav"
    assert unfinished.is_file() and find(tmp_path) == [original]
    data.close()
    copy = tmp_path / "data" / "train" / "wav" / "a.wav"
    decoded = tone(tmp_path / "exp" / "x" / "decode" / "wav" / "a.wav")
    (tmp_path / "exp" / "x" / "decode" / "decode.log").touch()
    assert find(tmp_path) == [original]
    assert str(copy) in caplog.text and str(decoded) in caplog.text
    # Who names such a folder means it.
    assert find(tmp_path / "data" / "train") == [copy]


def test_headers_tell_what_can_be_used(tmp_path, caplog):
    """A recording of another rate may come out a sample longer or shorter."""
    for name, samples, rate in (
        *(("just", 800, 16000), ("short", 799, 16000)),
        *(("half_rate", 400, 8000), ("short_at_half", 399, 8000)),
    ):
        tone(tmp_path / f"{name}.wav", samples, rate)
    (tmp_path / "bad.wav").write_text("no audio")
    found = readable(names(find(tmp_path), tmp_path).items())
    assert list(long_enough(found, 800, 16000)) == ["half_rate", "just"]
    bad, short = (record.message for record in caplog.records)
    assert bad.startswith(f"left out, not readable: {tmp_path}/bad.wav: ")
    assert short == (
        f"left out, shorter than 0.05 s: {tmp_path}/short.wav, "
        f"{tmp_path}/short_at_half.wav"
    )


def test_a_data_folder_is_there_whole_or_as_it_was(tmp_path):
    folder = tmp_path / "train"
    wave = np.zeros(100, dtype=np.float32)
    with DataFolder(folder, 16000) as data:
        data.add("old", wave)
        data.close()
    (folder / "text").write_text("of the user\n")
    with pytest.raises(KeyboardInterrupt), DataFolder(folder, 16000) as data:
        data.add("new", wave)
        raise KeyboardInterrupt
    assert (folder / "wav.scp").read_text().split()[0] == "old"
    assert not (tmp_path / "train.part").exists()
    with DataFolder(folder, 16000) as data:
        data.add("new", wave)
        assert "1 utterances" in data.close()
    assert (folder / "wav.scp").read_text() == f"new {folder}/wav/new.wav\n"
    assert (folder / "utt2num_samples").read_text() == "new 100\n"
    assert (folder / "wav" / "new.wav").is_file() and (folder / "text").is_file()
    with pytest.raises(ValueError, match="train would have no recording"):
        DataFolder(folder, 16000).close()
