#!/usr/bin/env bash
# Trains a small GAN codec with ESPnet's trainer and the loss balancer, decodes with
# ESPnet's own inference and shows what share of the gradient each loss had, in a table
# and in a picture.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: run.sh [--codec soundstream|encodec|dac|funcodec] [options]

  --codec NAME          The codec, and with it conf/train_NAME.yaml (soundstream)
  --config FILE         Another configuration
  --stage N             First stage (1): 1 data, 2 training, 3 decoding, 4 table
                        and picture
  --stop_stage N        Last stage (4)
  --wav_dir DIR         Train on the wav, flac and ogg files in this folder instead of
                        the two utterances of CMU ARCTIC that are fetched
  --synthetic BOOL      Train on artificial voices (false)
  --data_dir DIR        Where the data go (data)
  --exp_dir DIR         Where trainings go (exp)
  --tag NAME            Name of this training in exp_dir (the configuration's name)
  --ngpu N              Number of GPUs; each gets a process (0)
  --num_processes N     Train on N processes of the CPU (1)
  --train_args "ARGS"   More arguments for the trainer, e.g. "--max_epoch 20"
  --decode_model NAME   The model that decodes (valid.mel_loss.best.pth)
  --verbose BOOL        Show all that ESPnet prints, not the progress alone (false)
  --help                This text

A training that was interrupted goes on where its last checkpoint stood.
TEXT
}

# shellcheck source=egs/shared/codec_stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../shared/codec_stages.sh"

codec=soundstream config='' stage=1 stop_stage=4 wav_dir='' synthetic=false
data_dir='' exp_dir='' tag='' ngpu=0 num_processes=1 train_args=''
verbose=false decode_model=valid.mel_loss.best.pth
read_options "codec config stage stop_stage wav_dir synthetic data_dir exp_dir tag ngpu
    num_processes train_args decode_model verbose" "$@"
case $synthetic in
    true | false) ;;
    *) bad_option "--synthetic is true or false, not $synthetic" ;;
esac
[ -z "$wav_dir" ] || [ "$synthetic" = false ] ||
    bad_option "--wav_dir and --synthetic exclude each other"
[[ $num_processes =~ ^[1-9][0-9]*$ ]] ||
    bad_option "--num_processes is a number from 1 on, not $num_processes"
[ "$num_processes" = 1 ] || [ "$ngpu" = 0 ] ||
    bad_option "--num_processes is for the CPU; --ngpu $ngpu starts a process for each GPU"
enter "$(dirname "${BASH_SOURCE[0]}")"

if within 1; then
    say "Stage 1: data"
    if [ "$synthetic" = true ]; then
        wav_dir=$data_dir/synthetic
        python "$shared/synthesize.py" "$wav_dir"
    elif [ -z "$wav_dir" ]; then
        wav_dir=downloads
        python "$shared/fetch_speech.py" "$wav_dir"
    fi
    python "$shared/prepare_data.py" "$wav_dir" "$data_dir" "$config"
fi

if within 2; then
    launcher='' more_args=()
    if [ "$num_processes" -gt 1 ]; then
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
        launcher="torchrun --standalone --local_addr 127.0.0.1
            --nproc_per_node $num_processes"
    fi
    # Each process needs an utterance of each batch.
    processes=$((ngpu > 1 ? ngpu : num_processes))
    [ "$processes" = 1 ] || more_args+=(--valid_batch_size "$processes")
    train "$launcher" ${more_args[@]+"${more_args[@]}"}
fi

if within 3; then decode valid; fi
if within 4; then show_balance; fi
