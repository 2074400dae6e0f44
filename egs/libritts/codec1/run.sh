#!/usr/bin/env bash
# Trains a full-size GAN codec at 24 kHz with ESPnet's trainer and the loss balancer, on
# LibriTTS or any folder of audio, decodes with ESPnet's own inference and shows what
# share of the gradient each loss had, in a table and in a picture.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: run.sh --libritts DIR | --wav_dir DIR [--codec NAME] [--ngpu N] [options]

  --libritts DIR        LibriTTS, unpacked: train-clean-100, train-clean-360 and
                        train-other-500 (those that are there) for training, dev-clean
                        for validation, test-clean for the test
  --wav_dir DIR         Any folder of wav, flac and ogg files instead; every 20th is for
                        validation, another every 20th for the test
  --codec NAME          soundstream, encodec, dac or funcodec, and with it
                        conf/train_NAME.yaml (soundstream)
  --config FILE         Another configuration
  --stage N             First stage (1): 1 data, 2 training, 3 decoding, 4 table
                        and picture
  --stop_stage N        Last stage (4)
  --data_dir DIR        Where the data go (data)
  --exp_dir DIR         Where trainings go (exp)
  --tag NAME            Name of this training in exp_dir (the configuration's name)
  --ngpu N              Number of GPUs of this machine; each gets a process (1)
  --launcher "COMMAND"  Start the processes of the training with this, e.g. torchrun
  --train_args "ARGS"   More arguments for the trainer, e.g. "--batch_size 64"; the batch
                        is that of all GPUs together
  --decode_model NAME   The model that decodes (valid.mel_loss.best.pth)
  --verbose BOOL        Show all that ESPnet prints, not the progress alone (false)
  --help                This text

A training that was interrupted goes on where its last checkpoint stood.

Several GPUs:
  run.sh --libritts /data/LibriTTS --ngpu 8 --train_args "--batch_size 64"

Several machines with a common disk: stage 1 once, then on the machine of rank R
(0 or 1), by ESPnet,
  run.sh --stage 2 --stop_stage 2 --ngpu 8 --train_args "--batch_size 128
      --dist_world_size 2 --dist_rank R --dist_master_addr HOST --dist_master_port 29500"
or by torchrun, which gives each process one GPU:
  run.sh --stage 2 --stop_stage 2 --train_args "--batch_size 128" \
      --launcher "torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d
      --rdzv_endpoint HOST:29500"
and stages 3 and 4 once.
TEXT
}

# shellcheck source=egs/shared/codec_stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../shared/codec_stages.sh"

libritts='' wav_dir='' codec=soundstream config='' stage=1 stop_stage=4
data_dir='' exp_dir='' tag='' ngpu=1 launcher='' train_args=''
verbose=false decode_model=valid.mel_loss.best.pth
read_options "libritts wav_dir codec config stage stop_stage data_dir exp_dir tag ngpu
    launcher train_args decode_model verbose" "$@"
[ -z "$launcher" ] || [ "$ngpu" -le 1 ] ||
    bad_option "--launcher gives each process one GPU; leave --ngpu $ngpu out"
[ -z "$libritts" ] || [ -z "$wav_dir" ] ||
    bad_option "--libritts and --wav_dir exclude each other"
[ -n "$libritts$wav_dir" ] || [ "$stage" -gt 1 ] ||
    bad_option "stage 1 needs --libritts or --wav_dir"
[ -z "$libritts" ] || [ -d "$libritts" ] || bad_option "--libritts is no folder: $libritts"
enter "$(dirname "${BASH_SOURCE[0]}")"

if within 1; then
    say "Stage 1: data"
    source=(--wav_dir "$wav_dir")
    [ -z "$libritts" ] || source=(--libritts "$libritts")
    python local/prepare_libritts.py "${source[@]}" "$data_dir" "$config"
fi

if within 2; then train "$launcher"; fi
if within 3; then decode test; fi
if within 4; then show_balance; fi
