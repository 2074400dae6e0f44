"""ESPnet's speech and singing synthesizers, as small as they work, and a batch each."""

import copy

import torch
from espnet2.gan_svs.joint import JointScore2Wav
from espnet2.tasks.gan_svs import GANSVSTask
from espnet2.tasks.gan_tts import GANTTSTask
from mini_recipe import DECODER, tts_recipe

from balancer.espnet.svs import BalancedGANSVSModel
from balancer.espnet.tts import BalancedGANTTSModel

TOKENS = tts_recipe()["token_list"]
GENERAL = ["adv", "feat_match", "mel"]
HOP = 64
FRAMES = [40, 32]
SAMPLES = [HOP * frames for frames in FRAMES]
STFT = {"n_fft": 256, "hop_length": HOP, "win_length": None}
FBANK = {"fs": 16000, "n_mels": 10, "fmin": 0, "fmax": None, **STFT}
MEL = {**FBANK, "window": "hann", "log_base": None}
VOCODER = {"vocoder_type": "hifigan_generator", "vocoder_params": DECODER}
SMALL_TRANSFORMER = {
    **{"adim": 8, "aheads": 2, "elayers": 1, "eunits": 8, "dlayers": 1, "dunits": 8},
    "duration_predictor_chans": 8,
}


def prefixed(prefix, params):
    return {f"{prefix}_{key}": value for key, value in params.items()}


def discriminator():
    """That of the mini recipe cut down, and ESPnet's factors of the losses."""
    conf = tts_recipe()["tts_conf"]
    return {
        "discriminator_type": conf["discriminator_type"],
        "discriminator_params": conf["discriminator_params"],
        "mel_loss_params": MEL,
        "lambda_mel": 45.0,
        "lambda_feat_match": 2.0,
    }


def vits():
    config = tts_recipe()
    config["tts_conf"].update(discriminator())
    return config


def jets():
    generator = {
        **SMALL_TRANSFORMER,
        "energy_predictor_chans": 8,
        "pitch_predictor_chans": 8,
        **prefixed("generator", DECODER),
        "segment_size": 16,
    }
    config = tts("jets", generator_params=generator, **discriminator())
    for name in ("pitch", "energy"):
        config[f"{name}_extract"] = {"pitch": "dio", "energy": "energy"}[name]
        config[f"{name}_extract_conf"] = {"reduction_factor": 1}
        config[f"{name}_normalize"] = None
    return config


def joint_text2wav():
    text2mel = {
        **{"embed_dim": 8, "eunits": 8, "econv_layers": 1, "econv_chans": 8},
        **{"adim": 8, "aconv_chans": 4, "dlayers": 1, "dunits": 8},
        **{"prenet_units": 8, "postnet_layers": 1, "postnet_chans": 8},
    }
    return tts(
        "joint_text2wav",
        text2mel_type="tacotron2",
        text2mel_params=text2mel,
        segment_size=16,
        **VOCODER,
        **discriminator(),
    )


def adversarial_alone():
    config = joint_text2wav()
    config["tts_conf"].update(use_feat_match_loss=False, use_mel_loss=False)
    return config


def tts(name, **conf):
    return {
        "tts": name,
        "tts_conf": copy.deepcopy(conf),
        "token_list": TOKENS,
        "feats_extract": "fbank",
        "feats_extract_conf": FBANK,
        "normalize": None,
    }


def singing_vits(vocoder="hifigan", generator="visinger", **changes):
    params = {
        "hidden_channels": 8,
        "segment_size": 16,
        "n_harmonic": 4,
        **{"text_encoder_blocks": 1, "posterior_encoder_layers": 1},
        **{"flow_flows": 1, "flow_layers": 1, "use_phoneme_predictor": True},
        **prefixed("decoder", DECODER),
        "projection_filters": [1, 1, 1],
        "projection_kernels": [5, 7, 11],
    }
    conf = {
        "generator_type": generator,
        "vocoder_generator_type": vocoder,
        "generator_params": params,
        **discriminator(),
        **changes,
    }
    return svs("vits", **conf)


def avocodo():
    combd = {
        "combd_h_u": [[4, 4]] * 3,
        "combd_d_k": [[7, 11]] * 3,
        "combd_d_s": [[1, 4]] * 3,
        "combd_d_d": [[1, 1]] * 3,
        "combd_d_g": [[1, 2]] * 3,
        "combd_d_p": [[3, 5]] * 3,
        **{"combd_op_f": [1] * 3, "combd_op_k": [3] * 3, "combd_op_g": [1] * 3},
    }
    sbd = {
        "use_sbd": True,
        "sbd_filters": [[4, 4]] * 2,
        "sbd_strides": [[1, 3]] * 2,
        "sbd_kernel_sizes": [[[3, 3], [3, 3]]] * 2,
        "sbd_dilations": [[[1, 2], [1, 2]]] * 2,
        "sbd_band_ranges": [[0, 2], [0, 8]],
        "sbd_transpose": [False, True],
        "pqmf_config": {"sbd": [4, 32, 0.13, 10.0], "fsbd": [8, 32, 0.1, 9.0]},
    }
    params = {
        "combd": {**combd, "use_spectral_norm": False},
        "sbd": {**sbd, "use_spectral_norm": False},
    }
    params["pqmf_config"] = {"lv1": [4, 32, 0.13, 10.0], "lv2": [16, 32, 0.03, 10.0]}
    return singing_vits(discriminator_type="avocodo", discriminator_params=params)


def visinger2():
    params = discriminator()["discriminator_params"]
    del params["scale_discriminator_params"]["use_weight_norm"]
    del params["scale_discriminator_params"]["use_spectral_norm"]
    params["multi_freq_disc_params"] = {
        **{"hop_length_factors": [4], "hidden_channels": [32], "domain": "double"},
        **{"mel_scale": True, "divisors": [4, 4], "strides": [1, 2]},
    }
    return singing_vits(
        *("visinger2", "visinger2"),
        discriminator_type="visinger2",
        discriminator_params=params,
    )


def joint_score2wav():
    return svs(
        "joint_score2wav",
        score2mel_type="xiaoice",
        score2mel_params={**SMALL_TRANSFORMER, "postnet_chans": 8},
        segment_size=16,
        **VOCODER,
        **discriminator(),
    )


def svs(name, **conf):
    return {
        "svs": name,
        "svs_conf": copy.deepcopy(conf),
        "token_list": TOKENS,
        "feats_extract": "fbank",
        "feats_extract_conf": FBANK,
        "score_feats_extract": "syllable_score_feats",
        "pitch_extract": "dio",
        "pitch_extract_conf": {"reduction_factor": 1},
        **dict.fromkeys(["normalize", "pitch_normalize", "postfrontend"]),
    }


def speech():
    """Two utterances, the second shorter, with pitch and energy of their frames."""
    of_frames = torch.rand(2, FRAMES[0] + 1, 1)
    lengths = torch.tensor(FRAMES) + 1
    return {
        "text": torch.randint(3, 29, (2, 9)),
        "text_lengths": torch.tensor([9, 7]),
        "speech": 0.1 * torch.randn(2, SAMPLES[0]),
        "speech_lengths": torch.tensor(SAMPLES),
        **{"pitch": of_frames, "pitch_lengths": lengths},
        **{"energy": of_frames.flip(0), "energy_lengths": lengths},
    }


def singing():
    """Two songs of four notes each, the second with shorter ones."""
    notes = torch.full((2,), 4)
    durations = torch.tensor([[10, 10, 10, 10], [8, 8, 8, 8]])
    labels = torch.randint(3, 29, (2, 4))
    scores = {
        "label": labels,
        "midi": torch.randint(60, 72, (2, 4)),
        **{"duration_phn": durations, "duration_ruled_phn": durations.clone()},
        "duration_syb": durations.clone(),
        "slur": torch.zeros(2, 4, dtype=torch.long),
    }
    return {
        **{"text": labels, "text_lengths": notes},
        "singing": 0.1 * torch.randn(2, SAMPLES[0]),
        "singing_lengths": torch.tensor(SAMPLES),
        **scores,
        **{f"{name}_lengths": notes for name in scores},
        "pitch": 200 + 50 * torch.rand(2, FRAMES[0], 1),
        "pitch_lengths": torch.tensor(FRAMES),
    }


class JointScore2WavAsCalled(JointScore2Wav):
    """ESPnet's, taking what ESPnet's model hands on and it has no argument for."""

    def forward(self, ssl_feats=None, ssl_feats_lengths=None, **batch):
        return super().forward(**batch)


# Name → the recipe and the names of the losses of the waveform.
SPEECH = {
    "vits": (vits, GENERAL),
    "jets": (jets, GENERAL),
    "joint_text2wav": (joint_text2wav, GENERAL),
    "joint_text2wav_adv": (adversarial_alone, ["adv"]),
}
SINGING = {
    "singing_vits": (singing_vits, GENERAL),
    "avocodo": (avocodo, GENERAL),
    "visinger2": (visinger2, [*GENERAL, "mel_ddsp"]),
    "joint_score2wav": (joint_score2wav, GENERAL),
}


def build(name):
    """ESPnet's model, the class of ours that balances it, a batch of it, its losses."""
    singer = name in SINGING
    recipe, losses = (SINGING if singer else SPEECH)[name]
    config = recipe()
    if singer:
        return _singer(config), BalancedGANSVSModel, singing(), losses
    model = GANTTSTask.build_model(parsed(GANTTSTask, config))
    return model, BalancedGANTTSModel, speech(), losses


def _singer(config):
    if config["svs"] == "vits":
        return GANSVSTask.build_model(parsed(GANSVSTask, config))
    # The task gives each singer `generator_params`, for which this one has no place.
    model = GANSVSTask.build_model(parsed(GANSVSTask, singing_vits()))
    odim = FBANK["n_mels"]
    model.svs = JointScore2WavAsCalled(len(TOKENS), odim, **config["svs_conf"])
    return model


def parsed(task, config):
    parser = task.get_parser()
    known = {action.dest for action in parser._actions}
    parser.set_defaults(**{k: v for k, v in config.items() if k in known})
    return parser.parse_args([])
