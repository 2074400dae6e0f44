"""The losses of an ESPnet codec's outputs, computed without a hook, to compare with."""

import torch


def generate(codec, audio):
    """Of audio [B, 1, T]: y, two losses of the generator's, the dual decoder's y."""
    return codec.generator(audio, use_dual_decoder=codec.use_dual_decoder)


def output_losses(codec, audio, y, y_real):
    """Loss → its value times ESPnet's factor, for audio [B, 1, T]."""
    scores = codec.discriminator(y)
    with torch.no_grad():
        of_audio = codec.discriminator(audio)
    losses = {
        "reconstruct": codec.generator_reconstruct_loss(audio, y)
        * codec.lambda_reconstruct,
        "adv": codec.generator_adv_loss(scores) * codec.lambda_adv,
        "feat_match": codec.feat_match_loss(scores, of_audio) * codec.lambda_feat_match,
        "mel": codec.mel_loss(y, audio) * codec.lambda_mel,
    }
    if y_real is not None:
        losses["mel_real"] = codec.mel_loss(y_real, audio) * codec.lambda_mel
    return losses
