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
  --ngpu N              Number of GPUs (0)
  --num_processes N     Train on N processes of the CPU (1)
  --train_args "ARGS"   More arguments for the trainer, e.g. "--max_epoch 20"
  --decode_model NAME   The model that decodes (valid.mel_loss.best.pth)
  --help                This text
TEXT
}

bad_option() {
    echo "run.sh: $*" >&2
    usage | head -n 1 >&2
    echo "run.sh --help says more." >&2
    exit 2
}

codec=soundstream config='' stage=1 stop_stage=4 wav_dir='' synthetic=false
data_dir='' exp_dir='' tag='' ngpu=0 num_processes=1 train_args=''
decode_model=valid.mel_loss.best.pth

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --codec | --config | --stage | --stop_stage | --wav_dir | --synthetic | \
            --data_dir | --exp_dir | --tag | --ngpu | --num_processes | --train_args | \
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
case $synthetic in
    true | false) ;;
    *) bad_option "--synthetic is true or false, not $synthetic" ;;
esac
[[ $stage =~ ^[1-4]$ ]] || bad_option "--stage is 1 to 4, not $stage"
[[ $stop_stage =~ ^[1-4]$ ]] || bad_option "--stop_stage is 1 to 4, not $stop_stage"
[[ $ngpu =~ ^[0-9]+$ ]] || bad_option "--ngpu is a number, not $ngpu"
[[ $num_processes =~ ^[1-9][0-9]*$ ]] ||
    bad_option "--num_processes is a number from 1 on, not $num_processes"
[ "$num_processes" = 1 ] || [ "$ngpu" = 0 ] ||
    bad_option "--num_processes is for the CPU; --ngpu $ngpu starts a process for each GPU"
if [ -n "$wav_dir" ]; then
    [ "$synthetic" = false ] || bad_option "--wav_dir and --synthetic exclude each other"
    [ -d "$wav_dir" ] || bad_option "--wav_dir is no folder: $wav_dir"
fi
[ -z "$config" ] || [ -f "$config" ] || bad_option "--config is no file: $config"

# Paths on the command line count from where the user stands, the defaults from here.
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
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
    if [ "$synthetic" = true ]; then
        wav_dir=$data_dir/synthetic
        python local/synthesize.py "$wav_dir"
    elif [ -z "$wav_dir" ]; then
        wav_dir=downloads
        python local/fetch_arctic.py "$wav_dir"
    fi
    python local/prepare_data.py "$wav_dir" "$data_dir" "$config"
fi

if within 2; then
    say "Stage 2: training, with $config into $exp"
    need "$data_dir/train/wav.scp" 1
    read -r -a more_args <<<"$train_args"
    mkdir -p "$exp"
    launcher=(python -m)
    if [ "$num_processes" -gt 1 ]; then
        launcher=(python -m torch.distributed.run --standalone --local_addr 127.0.0.1
            --nproc_per_node "$num_processes" -m)
        more_args+=(--multiprocessing_distributed false --dist_backend gloo
            --valid_batch_size "$num_processes")
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    fi
    # ${more_args[@]+...}: an empty array is an error under `set -u` in old bash.
    "${launcher[@]}" balancer.bin.gan_codec_train \
        --config "$config" --output_dir "$exp" --ngpu "$ngpu" \
        --train_data_path_and_name_and_type "$data_dir/train/wav.scp,audio,sound" \
        --valid_data_path_and_name_and_type "$data_dir/valid/wav.scp,audio,sound" \
        --train_shape_file "$data_dir/train/utt2num_samples" \
        --valid_shape_file "$data_dir/valid/utt2num_samples" \
        ${more_args[@]+"${more_args[@]}"} 2>&1 | tee "$exp/train.log"
    say "The model, its log and its curves are in $exp: *.pth, train.log, images/"
fi

if within 3; then
    say "Stage 3: decoding the validation set with ESPnet's inference"
    need "$exp/config.yaml" 2
    need "$exp/$decode_model" 2
    mkdir -p "$exp/decode"
    python -m espnet2.bin.gan_codec_inference \
        --train_config "$exp/config.yaml" --model_file "$exp/$decode_model" \
        --data_path_and_name_and_type "$data_dir/valid/wav.scp,audio,sound" \
        --output_dir "$exp/decode" --ngpu "$((ngpu > 0))" 2>&1 |
        tee "$exp/decode/decode.log"
    say "The decoded recordings are in $exp/decode/wav, the codes in $exp/decode/codec"
fi

if within 4; then
    say "Stage 4: the share of each balanced loss in the gradient, last epoch's means"
    need "$exp/checkpoint.pth" 2
    python local/show_balance.py "$exp" | tee "$exp/balance.txt"
    say "The table is in $exp/balance.txt"
    python -m balancer.bin.plot_stats "$exp"
fi
