"""What is read of a file, and what is refused."""

import datetime
import os
import pickle
import re

import numpy as np
import pytest
import torch

from balancer.reports.files import (
    ReportError,
    plain_data_only,
    read_checkpoint,
    read_weights,
    read_yaml,
)


class Hostile:
    """Runs a program when it is read."""

    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


def test_a_real_checkpoint_is_read_whole(trained):
    state = read_checkpoint(trained / "checkpoint.pth")
    stats = state["reporter"]["stats"][1]["train"]
    assert isinstance(stats["time"], datetime.timedelta)
    assert isinstance(stats["iter_time"], np.float64)
    weights = read_weights(trained / "latest.pth")
    assert weights.keys() == state["model"].keys()
    assert all(torch.equal(weights[key], state["model"][key]) for key in weights)


def test_scalars_that_other_versions_of_numpy_saved(tmp_path):
    """NumPy 1 calls the module numpy.core, NumPy 2 numpy._core."""
    for number in (np.float64(1.5), np.float32(1.5), np.int64(3), np.bool_(True)):
        torch.save({"a": number}, tmp_path / "c.pth", pickle_protocol=2)
        assert read_checkpoint(tmp_path / "c.pth") == {"a": number}
        data = pickle.dumps({"a": number}, protocol=2)
        names = [b"numpy._core.multiarray", b"numpy.core.multiarray"]
        other = data.replace(*(names if names[0] in data else names[::-1]))
        assert other != data
        write_zip(tmp_path / "c.pth", other)
        assert read_checkpoint(tmp_path / "c.pth") == {"a": number}


def write_zip(path, pickled):
    """Write what torch.save writes, with this pickle in it."""
    with torch.serialization._open_zipfile_writer(str(path)) as file:
        file.write_record("data.pkl", pickled, len(pickled))
        file.write_record(".format_version", "1", 1)
        file.write_record("byteorder", "little", 6)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", [read_checkpoint, read_weights])
def test_a_pickle_with_a_program_is_refused_by_name(read, zipped, tmp_path):
    victim, path = tmp_path / "owned", tmp_path / "c.pth"
    torch.save({"a": Hostile(victim)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ReportError, match="c.pth is refused: it holds [a-z]+.mkdir"):
        read(path)
    path.write_bytes(pickle.dumps(Hostile(victim)))
    with pytest.raises(ReportError, match="c.pth (is refused|cannot be read)"):
        read(path)
    assert not victim.exists()


def test_whoever_asks_for_more_gets_plain_data(tmp_path, monkeypatch):
    torch.save({"a": Hostile(tmp_path / "owned")}, tmp_path / "c.pth")
    for before in (None, "0"):
        key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
        monkeypatch.setenv(key, before) if before else monkeypatch.delenv(key, False)
        with pytest.raises(pickle.UnpicklingError), plain_data_only():
            torch.load(tmp_path / "c.pth", weights_only=False)
        assert os.environ.get(key) == before
    assert not (tmp_path / "owned").exists()
    torch.load(tmp_path / "c.pth", weights_only=False)
    assert (tmp_path / "owned").exists()  # so the file is what it says it is


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it has no keys"),
        (b"hello", "it has no keys"),
        (b"a: [", "is no YAML: line 1: "),
        (b"a: 1\nb: c: d", "is no YAML: line 2: mapping values"),
        (b"a: \xff", "is no YAML that can be read"),
        (b"a: \0", "is no YAML that can be read"),
        (b"[" * 5000, "is no YAML that can be read"),
        (b"a: !!python/object/apply:os.abort []", "is no YAML: line 1: .*os.abort"),
    ],
)
def test_yaml_that_is_none(content, message, tmp_path):
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(ReportError, match=re.escape(str(tmp_path / "c.yaml"))) as e:
        read_yaml(tmp_path / "c.yaml")
    assert re.search(message, str(e.value)) and "\n" not in str(e.value)


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(ReportError, match="none.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ReportError, match="is a folder: name the YAML"):
        read_yaml(tmp_path)
    with pytest.raises(ReportError, match="is a folder"):
        read_weights(tmp_path)
    for saved, message in [
        ([1], "holds no names"),
        ({}, "is empty"),
        ({"a": 1}, "'a'"),
    ]:
        torch.save(saved, tmp_path / "c.pth")
        with pytest.raises(ReportError, match=message):
            read_weights(tmp_path / "c.pth")
