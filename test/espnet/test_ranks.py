"""Two ranks of ESPnet's own distributed training, on CPU."""

import os
import socket
import subprocess
import sys

import pytest
import torch
import yaml
from mini_recipe import CODECS, recipe


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_on_two_ranks(config, data, folder, *more):
    """Run both ranks to their end; return their logs."""
    folder.mkdir(exist_ok=True)
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [sys.executable, "-m", "balancer.bin.gan_codec_train", "--ngpu", "0"]
    command += ["--config", path, "--output_dir", folder / "exp", *more]
    for part in ("train", "valid"):
        name = f"--{part}_data_path_and_name_and_type"
        command += [name, f"{data}/wav.scp,audio,sound"]
        command += [f"--{part}_shape_file", f"{data}/utt2num_samples"]
    command += ["--dist_world_size", "2", "--dist_master_addr", "localhost"]
    command += ["--dist_master_port", str(port), "--dist_backend", "gloo"]
    command += ["--multiprocessing_distributed", "false"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*map(str, command), "--dist_rank", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    logs = [rank.communicate(timeout=400)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(logs)
    return logs


@pytest.mark.parametrize("codec", CODECS)
def test_two_ranks_train_and_resume(codec, data, tmp_path):
    config = {**recipe(codec), "unused_parameters": True, "valid_batch_size": 2}
    logs = train_on_two_ranks(config, data, tmp_path)
    assert "mel_share=" in logs[0]
    saved = torch.load(tmp_path / "exp" / "checkpoint.pth", weights_only=False)
    balancer = saved["optimizers"][0]["balancer"]
    names = set(config["balancer_conf"]["weights"])
    assert set(balancer["averages"]) == names and balancer["calls"] > 0
    if codec == CODECS[0]:
        config["max_epoch"] = 2
        train_on_two_ranks(config, data, tmp_path, "--resume", "true")
        more = torch.load(tmp_path / "exp" / "checkpoint.pth", weights_only=False)
        assert more["optimizers"][0]["balancer"]["calls"] == 2 * balancer["calls"]
