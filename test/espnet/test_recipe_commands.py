"""The commands that ESPnet's codec.sh and tts.sh run, with our trainers in their place.

Statistics are collected and put together, the training takes its shape files with a
fold_length, and what was trained is packed.
"""

import zipfile

import pytest
import yaml
from espnet2.bin.aggregate_stats_dirs import main as aggregate
from espnet2.bin.pack import main as pack
from mini_recipe import checkpoint, recipe, tts_recipe

from balancer.bin import gan_codec_train, gan_tts_train
from balancer.espnet import recipe as recipes
from balancer.loss_balancer.checkpoint import saved_in

CODEC = (gan_codec_train, lambda: recipe("soundstream"), ["wav.scp,audio,sound"])
TTS = (gan_tts_train, tts_recipe, ["text,text,text", "wav.scp,speech,sound"])


@pytest.mark.parametrize(
    "kind, command, shapes",
    [
        ("codec", CODEC, {"audio_shape": 80000}),
        ("tts", TTS, {"text_shape": 150, "speech_shape": 240000}),
    ],
)
def test_stages_of_espnets_recipe(kind, command, shapes, data, tmp_path):
    trainer, make, inputs = command
    stats, exp = tmp_path / "stats", tmp_path / "exp"
    config = {**make(), "batch_type": "folded"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    common = ["--config", tmp_path / "c.yaml", "--ngpu", 0]
    for part in ("train", "valid"):
        for name in inputs:
            common += [f"--{part}_data_path_and_name_and_type", data / name]

    def run(main, *words):
        main([str(word) for word in words])

    def shape_files(found):
        for part in ("train", "valid"):
            for path in found(part):
                yield from (f"--{part}_shape_file", path)

    # It takes the list of utterances for the shapes that it will find.
    lists = shape_files(lambda part: [data / "wav.scp"])
    collect = [*common, "--collect_stats", "true", *lists]
    run(trainer.main, *collect, "--output_dir", stats / "1")
    run(aggregate, "--input_dir", stats / "1", "--output_dir", stats)
    for name in shapes:
        assert len((stats / "train" / name).read_text().splitlines()) == 2

    found = shape_files(lambda part: [stats / part / name for name in shapes])
    folds = [word for length in shapes.values() for word in ("--fold_length", length)]
    run(trainer.main, *common, *found, *folds, "--output_dir", exp)
    weights = config["balancer_conf"]["weights"]
    saved = saved_in(checkpoint(exp)["optimizers"][0], "balancer")
    assert set(saved["averages"]) == set(weights)

    files = ["--train_config", exp / "config.yaml", "--model_file", exp / "latest.pth"]
    run(pack, kind, *files, "--outpath", tmp_path / "packed.zip")
    packed = zipfile.ZipFile(tmp_path / "packed.zip").namelist()
    assert any(name.endswith("epoch.pth") for name in packed)

    # `inspect` takes what either stage left.
    for folder in (stats / "1", exp):
        batches = recipes.batches(recipes.read_config(folder / "config.yaml"))
        assert {len(tensor) for tensor in next(batches).values()} == {2}
