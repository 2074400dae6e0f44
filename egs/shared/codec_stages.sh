# shellcheck shell=bash
# What the run.sh of the ESPnet recipes share: their options' reading, training, decoding
# and the table. Each sources it from its own folder's place in the tree, has `usage` and
# sets the variables that its options are read into.

shared=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

bad_option() {
    echo "run.sh: $*" >&2
    usage | head -n 1 >&2
    echo "run.sh --help says more." >&2
    exit 2
}

# read_options "NAME ..." ARGUMENT...: sets the variable of each --NAME that is given.
read_options() {
    local known=" ${1//[[:space:]]/ } "
    shift
    while [ $# -gt 0 ]; do
        case $1 in --help | -h) usage; exit 0 ;; esac
        [[ $1 == --* && $known == *" ${1#--} "* ]] || bad_option "unknown option: $1"
        # A value may begin with dashes only where it holds arguments.
        if [ $# -lt 2 ] || { [ "$1" != --train_args ] && [[ $2 == --* ]]; }; then
            bad_option "$1 needs a value"
        fi
        printf -v "${1#--}" '%s' "$2"
        shift 2
    done
    case $codec in
        soundstream | encodec | dac | funcodec) ;;
        *) bad_option "unknown codec: $codec" ;;
    esac
    [[ $stage =~ ^[1-4]$ ]] || bad_option "--stage is 1 to 4, not $stage"
    [[ $stop_stage =~ ^[1-4]$ ]] || bad_option "--stop_stage is 1 to 4, not $stop_stage"
    [[ $ngpu =~ ^[0-9]+$ ]] || bad_option "--ngpu is a number, not $ngpu"
    [ -z "$wav_dir" ] || [ -d "$wav_dir" ] || bad_option "--wav_dir is no folder: $wav_dir"
    [ -z "$config" ] || [ -f "$config" ] || bad_option "--config is no file: $config"
}

# enter FOLDER: paths on the command line count from where the user stands, the defaults
# from the recipe's folder. Sets exp, and finds or makes the environment.
enter() {
    local name
    for name in ${libritts+libritts} wav_dir config data_dir exp_dir; do
        case ${!name} in '' | /*) ;; *) printf -v "$name" '%s' "$PWD/${!name}" ;; esac
    done
    cd "$1"
    config=${config:-conf/train_$codec.yaml}
    data_dir=${data_dir:-data}
    exp=${exp_dir:-exp}/${tag:-$(basename "$config" .yaml)}
    # shellcheck source=tools/setup.sh
    . "$shared/../../tools/setup.sh"
}

say() { echo "[$(date +%T)] $*"; }

within() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]; }

need() {
    [ -e "$1" ] || {
        echo "run.sh: $1 is not there; run stage $2 first (--stage $2)." >&2
        exit 1
    }
}

# train "COMMAND" ARGUMENT...: runs the trainer by COMMAND (python, torchrun ...) with
# the arguments, and those of --train_args after them.
train() {
    local command given
    read -r -d '' -a command <<<"$1" || true
    shift
    read -r -d '' -a given <<<"$train_args" || true
    say "Stage 2: training, with $config into $exp"
    need "$data_dir/train/wav.scp" 1
    mkdir -p "$exp"
    # ${given[@]+...}: an empty array is an error under `set -u` in old bash.
    "${command[@]}" -m balancer.bin.gan_codec_train \
        --config "$config" --output_dir "$exp" --ngpu "$ngpu" \
        --train_data_path_and_name_and_type "$data_dir/train/wav.scp,audio,sound" \
        --valid_data_path_and_name_and_type "$data_dir/valid/wav.scp,audio,sound" \
        --train_shape_file "$data_dir/train/utt2num_samples" \
        --valid_shape_file "$data_dir/valid/utt2num_samples" \
        "$@" ${given[@]+"${given[@]}"} 2>&1 | tee -a "$exp/train.log"
    say "The model, its log and its curves are in $exp: *.pth, train.log, images/"
}

# decode PART: decodes a data folder with ESPnet's own inference.
decode() {
    say "Stage 3: decoding the data of $data_dir/$1 with ESPnet's inference"
    need "$exp/config.yaml" 2
    need "$exp/$decode_model" 2
    need "$data_dir/$1/wav.scp" 1
    mkdir -p "$exp/decode"
    python -m espnet2.bin.gan_codec_inference \
        --train_config "$exp/config.yaml" --model_file "$exp/$decode_model" \
        --data_path_and_name_and_type "$data_dir/$1/wav.scp,audio,sound" \
        --output_dir "$exp/decode" --ngpu "$((ngpu > 0))" 2>&1 |
        tee "$exp/decode/decode.log"
    say "The decoded recordings are in $exp/decode/wav, the codes in $exp/decode/codec"
}

show_balance() {
    say "Stage 4: the share of each balanced loss in the gradient, last epoch's means"
    need "$exp/checkpoint.pth" 2
    python "$shared/show_balance.py" "$exp" |
        tee "$exp/balance.txt"
    say "The table is in $exp/balance.txt"
    python -m balancer.bin.plot_stats "$exp"
}
