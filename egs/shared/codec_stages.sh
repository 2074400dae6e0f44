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
    case $verbose in
        true | false) ;;
        *) bad_option "--verbose is true or false, not $verbose" ;;
    esac
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
    case $data_dir in *,*)
        bad_option "the path of --data_dir has a comma, where ESPnet splits: $data_dir" ;;
    esac
    # shellcheck source=tools/setup.sh
    . "$shared/../../tools/setup.sh"
    local option
    for option in train_args ${launcher+launcher}; do
        python -c 'import shlex, sys; shlex.split(sys.argv[1])' "${!option}" \
            2>/dev/null || bad_option "--$option has an open quote: ${!option}"
    done
    check_gpus
}

# Before hours of other work, not after.
check_gpus() {
    local found
    within 2 || within 3 || return 0
    [ "$ngpu" -gt 0 ] || return 0
    found=$(python -c 'import torch; print(torch.cuda.device_count())')
    [ "$ngpu" -le "$found" ] || bad_option "--ngpu $ngpu, but PyTorch finds $found" \
        "GPUs on this machine; --ngpu 0 trains on the CPU"
}

say() { echo "[$(date +%T)] $*"; }

within() { [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]; }

need() {
    [ -e "$1" ] || {
        echo "run.sh: $1 is not there; run stage $2 first (--stage $2)." >&2
        exit 1
    }
}

# split_words TEXT: sets the array `words` to the words of a text, quoted as in a shell.
split_words() {
    local word
    words=()
    while IFS= read -r -d '' word; do
        words+=("$word")
    done < <(python -c 'import shlex, sys
for word in shlex.split(sys.argv[1]):
    sys.stdout.write(word + "\0")' "$1")
}

# quietly LOG [--total N] COMMAND...: runs a command of ESPnet and shows its progress.
quietly() {
    local log=$1 total=()
    shift
    if [ "$1" = --total ]; then
        total=(--total "$2")
        shift 2
    fi
    # ${total[@]+...}: an empty array is an error under `set -u` in old bash.
    python "$shared/run_quietly.py" --verbose "$verbose" ${total[@]+"${total[@]}"} \
        "$log" "$@" || {
        local status=$? end="has failed"
        [ "$status" != 130 ] || end="was interrupted"
        echo "run.sh: this stage $end; all that it printed is in $log" >&2
        exit "$status"
    }
}

# train LAUNCHER ARGUMENT...: runs the trainer with the arguments, and those of
# --train_args after them. A launcher (torchrun ...) starts a process for each GPU; if
# it is empty, ESPnet does. A training that was interrupted goes on.
train() {
    local command=(python) more=(--resume true)
    if [ -n "$1" ]; then
        split_words "$1"
        command=("${words[@]}")
        more+=(--multiprocessing_distributed false)
    else
        more+=(--multiprocessing_distributed true)
    fi
    [ "$ngpu" -gt 0 ] || more+=(--dist_backend gloo)
    shift
    split_words "$train_args"
    say "Stage 2: training, with $config into $exp"
    need "$data_dir/train/wav.scp" 1
    mkdir -p "$exp"
    quietly "$exp/train.log" "${command[@]}" -m balancer.bin.gan_codec_train \
        --config "$config" --output_dir "$exp" --ngpu "$ngpu" \
        --train_data_path_and_name_and_type "$data_dir/train/wav.scp,audio,sound" \
        --valid_data_path_and_name_and_type "$data_dir/valid/wav.scp,audio,sound" \
        --train_shape_file "$data_dir/train/utt2num_samples" \
        --valid_shape_file "$data_dir/valid/utt2num_samples" \
        "${more[@]}" "$@" ${words[@]+"${words[@]}"}
    say "The models, the log and the curves are in $exp: *.pth, train.log, images/"
}

# decode PART: decodes a data folder with ESPnet's own inference.
decode() {
    say "Stage 3: decoding the data of $data_dir/$1 with ESPnet's inference"
    need "$exp/config.yaml" 2
    need "$exp/$decode_model" 2
    need "$data_dir/$1/wav.scp" 1
    mkdir -p "$exp/decode"
    : >"$exp/decode/decode.log"
    quietly "$exp/decode/decode.log" --total "$(wc -l <"$data_dir/$1/wav.scp")" \
        python -m espnet2.bin.gan_codec_inference \
        --train_config "$exp/config.yaml" --model_file "$exp/$decode_model" \
        --data_path_and_name_and_type "$data_dir/$1/wav.scp,audio,sound" \
        --output_dir "$exp/decode" --ngpu "$((ngpu > 0))"
    say "The decoded recordings are in $exp/decode/wav, the codes in $exp/decode/codec"
}

show_balance() {
    say "Stage 4: the share of each balanced loss in the gradient, last epoch's means"
    need "$exp/checkpoint.pth" 2
    if grep -q '^balancer: null' "$exp/config.yaml"; then
        say "This training had no balancer, so there is nothing to show."
        return
    fi
    python "$shared/show_balance.py" "$exp" | tee "$exp/balance.txt"
    say "The table is in $exp/balance.txt"
    python -m balancer.bin.plot_stats "$exp"
}
