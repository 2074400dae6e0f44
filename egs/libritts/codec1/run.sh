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

bad_option() {
    echo "run.sh: $*" >&2
    usage | head -n 1 >&2
    echo "run.sh --help says more." >&2
    exit 2
}

libritts='' wav_dir='' codec=soundstream config='' stage=1 stop_stage=4
data_dir='' exp_dir='' tag='' ngpu=1 launcher='' train_args=''
decode_model=valid.mel_loss.best.pth

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --libritts | --wav_dir | --codec | --config | --stage | --stop_stage | \
            --data_dir | --exp_dir | --tag | --ngpu | --launcher | --train_args | \
            --decode_model)
            # A value may begin with dashes only where it holds arguments.
            if [ $# -lt 2 ] || { [ "$1" != --train_args ] && [[ $2 == --* ]]; }; then
                bad_option "$1 needs a value"
            fi
            printf -v "${1#--}" '%s' "$2"
            shift 2 ;;
        *) bad_option "unknown option: $1" ;;
    esac
done

case $codec in
    soundstream | encodec | dac | funcodec) ;;
    *) bad_option "unknown codec: $codec" ;;
esac
[[ $stage =~ ^[1-4]$ ]] || bad_option "--stage is 1 to 4, not $stage"
[[ $stop_stage =~ ^[1-4]$ ]] || bad_option "--stop_stage is 1 to 4, not $stop_stage"
[[ $ngpu =~ ^[0-9]+$ ]] || bad_option "--ngpu is a number, not $ngpu"
[ -z "$launcher" ] || [ "$ngpu" -le 1 ] ||
    bad_option "--launcher gives each process one GPU; leave --ngpu $ngpu out"
[ -z "$libritts" ] || [ -z "$wav_dir" ] ||
    bad_option "--libritts and --wav_dir exclude each other"
[ -n "$libritts$wav_dir" ] || [ "$stage" -gt 1 ] ||
    bad_option "stage 1 needs --libritts or --wav_dir"
[ -z "$libritts" ] || [ -d "$libritts" ] || bad_option "--libritts is no folder: $libritts"
[ -z "$wav_dir" ] || [ -d "$wav_dir" ] || bad_option "--wav_dir is no folder: $wav_dir"
[ -z "$config" ] || [ -f "$config" ] || bad_option "--config is no file: $config"

# Paths on the command line count from where the user stands, the defaults from here.
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
libritts=$(absolute "$libritts")
wav_dir=$(absolute "$wav_dir")
config=$(absolute "$config")
data_dir=$(absolute "$data_dir")
exp_dir=$(absolute "$exp_dir")
cd "$(dirname "${BASH_SOURCE[0]}")"
config=${config:-conf/train_$codec.yaml}
data_dir=${data_dir:-data}
exp=${exp_dir:-exp}/${tag:-$(basename "$config" .yaml)}
say() { echo "[$(date +%T)] $*"; }

# shellcheck source=tools/setup.sh
. ../../../tools/setup.sh

within() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]; }

need() {
    [ -e "$1" ] || {
        echo "run.sh: $1 is not there; run stage $2 first (--stage $2)." >&2
        exit 1
    }
}

if within 1; then
    say "Stage 1: data"
    if [ -n "$libritts" ]; then
        source=(--libritts "$libritts")
    else
        source=(--wav_dir "$wav_dir")
    fi
    python local/prepare_libritts.py "${source[@]}" "$data_dir" "$config"
fi

if within 2; then
    say "Stage 2: training, with $config into $exp"
    need "$data_dir/train/wav.scp" 1
    mkdir -p "$exp"
    command=(python)
    more_args=()
    if [ -n "$launcher" ]; then
        read -r -d '' -a command <<<"$launcher" || true
        more_args=(--multiprocessing_distributed false)
    fi
    [ "$ngpu" -gt 0 ] || more_args+=(--dist_backend gloo)
    read -r -d '' -a given_args <<<"$train_args" || true
    more_args+=(${given_args[@]+"${given_args[@]}"})
    # ${more_args[@]+...}: an empty array is an error under `set -u` in old bash.
    "${command[@]}" -m balancer.bin.gan_codec_train \
        --config "$config" --output_dir "$exp" --ngpu "$ngpu" --resume true \
        --train_data_path_and_name_and_type "$data_dir/train/wav.scp,audio,sound" \
        --valid_data_path_and_name_and_type "$data_dir/valid/wav.scp,audio,sound" \
        --train_shape_file "$data_dir/train/utt2num_samples" \
        --valid_shape_file "$data_dir/valid/utt2num_samples" \
        ${more_args[@]+"${more_args[@]}"} 2>&1 | tee -a "$exp/train.log"
    say "The model, its log and its curves are in $exp: *.pth, train.log, images/"
fi

if within 3; then
    say "Stage 3: decoding the test set with ESPnet's inference"
    need "$data_dir/test/wav.scp" 1
    need "$exp/config.yaml" 2
    need "$exp/$decode_model" 2
    mkdir -p "$exp/decode"
    python -m espnet2.bin.gan_codec_inference \
        --train_config "$exp/config.yaml" --model_file "$exp/$decode_model" \
        --data_path_and_name_and_type "$data_dir/test/wav.scp,audio,sound" \
        --output_dir "$exp/decode" --ngpu "$((ngpu > 0))" 2>&1 |
        tee "$exp/decode/decode.log"
    say "The decoded recordings are in $exp/decode/wav, the codes in $exp/decode/codec"
fi

if within 4; then
    say "Stage 4: the share of each balanced loss in the gradient, last epoch's means"
    need "$exp/checkpoint.pth" 2
    python ../../mini/codec1/local/show_balance.py "$exp" | tee "$exp/balance.txt"
    say "The table is in $exp/balance.txt"
    python -m balancer.bin.plot_stats "$exp"
fi
