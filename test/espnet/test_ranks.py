"""Two ranks of ESPnet's own distributed training, on CPU."""

import json
import os
import signal
import socket

import pytest
import yaml
from mini_recipe import CODECS, checkpoint, recipe, same, tts_recipe
from ranks import context
from trainings import of_data

from balancer import Balancer
from balancer.espnet.task import BalancedGANCodecTask
from balancer.espnet.tts import BalancedGANTTSTask
from balancer.loss_balancer.checkpoint import saved_in


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _train(rank, task, command, folder, killed_in):
    """Train as one rank; write down the stats, and die in a call if told to."""
    call, seen = Balancer.__call__, []

    def watched(self, losses, input):
        if len(seen) == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(self, losses, input)
        seen.append(result[1])
        return result

    Balancer.__call__ = watched
    task.main(cmd=[*command, "--dist_rank", str(rank)])
    (folder / f"stats{rank}.json").write_text(json.dumps(seen))


def train_on_two_ranks(config, data, folder, *more, killed_in=None):
    """Run both ranks to their end; return their exit codes and what they saw."""
    folder.mkdir(exist_ok=True)
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(config))
    command = ["--ngpu", "0", "--config", path, "--output_dir", folder / "exp", *more]
    command += of_data(data, config)
    command += ["--dist_world_size", "2", "--dist_master_addr", "localhost"]
    command += ["--dist_master_port", free_port(), "--dist_backend", "gloo"]
    command += ["--multiprocessing_distributed", "false"]
    command = [str(word) for word in command]
    task = BalancedGANTTSTask if "tts" in config else BalancedGANCodecTask
    ranks = [
        context().Process(target=_train, args=(i, task, command, folder, kill))
        for i, kill in enumerate((None, killed_in))
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(400)
    files = [folder / f"stats{i}.json" for i in range(2)]
    stats = [json.loads(f.read_text()) if f.exists() else None for f in files]
    return [rank.exitcode for rank in ranks], stats


def distributed(model):
    config = tts_recipe() if model == "vits" else recipe(model)
    return {**config, "batch_size": 2, "valid_batch_size": 2}


@pytest.mark.parametrize("model", [*CODECS, "vits"])
def test_ranks_see_the_same_stats(model, data, tmp_path):
    config = {**distributed(model), "use_tensorboard": True}
    codes, stats = train_on_two_ranks(config, data, tmp_path)
    assert codes == [0, 0]
    events = tmp_path / "exp" / "tensorboard" / "train"
    assert len(list(events.glob("*.balancer"))) == 1, "one rank writes the layout"
    assert stats[0] == stats[1] and len(stats[0]) > 0
    saved = saved_in(checkpoint(tmp_path / "exp")["optimizers"][0], "balancer")
    assert set(saved["averages"]) == set(config["balancer_conf"]["weights"])
    assert saved["calls"] == len(stats[0])


def test_killed_rank_goes_on_where_the_checkpoint_stood(data, tmp_path):
    config = {**distributed("soundstream"), "max_epoch": 2}
    codes, stats = train_on_two_ranks(config, data, tmp_path / "whole")
    assert codes == [0, 0]
    steps = len(stats[0]) // 2
    codes, stats = train_on_two_ranks(
        config, data, tmp_path / "killed", killed_in=steps
    )
    assert codes[1] == -signal.SIGKILL and codes[0] != 0
    saved = checkpoint(tmp_path / "killed" / "exp")["optimizers"][0]
    assert saved_in(saved, "balancer")["calls"] == steps
    codes, stats = train_on_two_ranks(
        config, data, tmp_path / "killed", "--resume", "true"
    )
    assert codes == [0, 0] and len(stats[0]) == steps
    whole, resumed = (checkpoint(tmp_path / n / "exp") for n in ("whole", "killed"))
    assert same(whole["model"], resumed["model"])
    assert same(whole["optimizers"], resumed["optimizers"])
