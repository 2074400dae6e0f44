#!/usr/bin/env bash
# Trains a small VITS with ESPnet's trainer and the loss balancer, speaks with ESPnet's
# own inference and shows what share of the gradient each loss had, in a table and in a
# picture.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: run.sh [options]

  --config FILE         Another configuration (conf/train_vits.yaml)
  --stage N             First stage (1): 1 data, 2 training, 3 speaking, 4 table and
                        picture
  --stop_stage N        Last stage (4)
  --wav_dir DIR         Train on the wav, flac and ogg files in this folder, each with
                        what is said in it beside it, in a .txt file of the same name;
                        instead of the five utterances of LibriVox that are fetched
  --data_dir DIR        Where the data go (data)
  --exp_dir DIR         Where trainings go (exp)
  --tag NAME            Name of this training in exp_dir (the configuration's name)
  --ngpu N              Number of GPUs; each gets a process (0)
  --train_args "ARGS"   More arguments for the trainer, e.g. "--max_epoch 20"
  --decode_model NAME   The model that speaks (latest.pth)
  --verbose BOOL        Show all that ESPnet prints, not the progress alone (false)
  --help                This text

A training that was interrupted goes on where its last checkpoint stood.
TEXT
}

# shellcheck source=egs/shared/espnet_stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../shared/espnet_stages.sh"

# shellcheck disable=SC2034 # read by the stages
kind=tts
config='' stage=1 stop_stage=4 wav_dir='' data_dir='' exp_dir='' tag='' ngpu=0
train_args='' verbose=false decode_model=latest.pth
read_options "config stage stop_stage wav_dir data_dir exp_dir tag ngpu train_args
    decode_model verbose" "$@"
enter "$(dirname "${BASH_SOURCE[0]}")"

if within 1; then
    say "Stage 1: data"
    if [ -z "$wav_dir" ]; then
        wav_dir=downloads
        python "$shared/fetch_speech.py" --set librivox "$wav_dir"
    fi
    python local/prepare_tts.py "$wav_dir" "$data_dir" "$config"
fi

if within 2; then
    more_args=()
    # Each process needs an utterance of each batch.
    [ "$ngpu" -le 1 ] || more_args+=(--valid_batch_size "$ngpu")
    train '' ${more_args[@]+"${more_args[@]}"}
fi

if within 3; then decode valid; fi
if within 4; then show_balance; fi
