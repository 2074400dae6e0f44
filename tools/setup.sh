#!/usr/bin/env bash
# Makes tools/venv once, from the pins in tools/requirements*.txt, or finds that it is
# not needed. Source it and the right `python` is first on PATH:
#
#     . tools/setup.sh
#
# Run it to prepare the environment only. PYTHON names the interpreter to build with.

_setup_tools=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)
_setup_venv="$_setup_tools/venv"

_setup_say() { echo "setup: $*" >&2; }

# What the environment was made from. The folder counts too, because a virtual
# environment holds absolute paths and so does not survive a move.
_setup_fingerprint() {
    { cat "$_setup_tools"/requirements*.txt "$_setup_tools/../setup.py"
      echo "$_setup_tools"; } | cksum
}

_setup_is_ready() {
    [ "$(cat "$_setup_venv/.stamp" 2>/dev/null)" = "$(_setup_fingerprint)" ] &&
        "$_setup_venv/bin/python" -c '' 2>/dev/null
}

# An environment of the user's own. It is asked from a neutral folder, where this
# checkout is found only if it was installed.
_setup_active_works() {
    local found
    found=$(command -v python) || return 1
    [ "$found" != "$_setup_venv/bin/python" ] || return 1
    (cd / && python -c 'import espnet2, balancer') >/dev/null 2>&1
}

_setup_find_python() {
    # Not the stale environment's own Python, which is about to go, if it is active.
    local name PATH=${PATH//"$_setup_venv/bin:"/}
    for name in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 \
        python3.10; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
            2>/dev/null; then
            command -v "$name"
            return 0
        fi
        # A wish that cannot be met is not silently replaced.
        [ "$name" != "${PYTHON:-}" ] || break
    done
    if [ -n "${PYTHON:-}" ]; then
        _setup_say "PYTHON=$PYTHON is not a working Python of version 3.10 or newer."
    else
        _setup_say "No Python of version 3.10 or newer was found on PATH. Install" \
            "one, or name one: PYTHON=/path/to/python3 tools/setup.sh"
    fi
    return 1
}

_setup_make_venv() {
    local base=$1
    if "$base" -c 'import ensurepip, venv' 2>/dev/null; then
        "$base" -m venv "$_setup_venv"
    elif "$base" -m pip --version >/dev/null 2>&1; then
        # Some distributions ship venv without ensurepip; their pip can stand in.
        "$base" -m venv --without-pip "$_setup_venv" &&
            "$base" -m pip --python "$_setup_venv/bin/python" install -qq pip
    else
        _setup_say "$base has neither ensurepip nor pip. Name another Python:" \
            "PYTHON=/path/to/python3 tools/setup.sh"
        return 1
    fi
}

# The PyPI wheel of torchaudio has an extension built for CUDA. Beside a torch
# without CUDA it does not load; ESPnet's codecs need only the Python part.
_setup_mend_torchaudio() {
    local lib
    (cd / && "$_setup_venv/bin/python" -c 'import torchaudio') 2>/dev/null && return 0
    _setup_say "torchaudio's compiled extension does not load beside this torch;" \
        "it is removed, since nothing here uses it."
    for lib in "$_setup_venv"/lib*/python3*/site-packages/torchaudio/lib; do
        rm -f "$lib"/*.so
    done
    (cd / && "$_setup_venv/bin/python" -c 'import torchaudio')
}

_setup_install() {
    local pip=("$_setup_venv/bin/python" -m pip install -qq
        --disable-pip-version-check)
    _setup_say "Installing PyTorch, the libraries that ESPnet needs and the test tools."
    "${pip[@]}" -r "$_setup_tools/requirements.txt" || return 1
    _setup_say "Installing ESPnet, torchaudio and DAC."
    "${pip[@]}" --no-deps -r "$_setup_tools/requirements-no-deps.txt" || return 1
    _setup_mend_torchaudio || return 1
    _setup_say "Installing this package, as a link to this folder."
    "${pip[@]}" --no-deps --no-build-isolation --use-pep517 -e "$_setup_tools/.."
}

_setup_build() {
    local base
    base=$(_setup_find_python) || return 1
    if [ -e "$_setup_venv" ]; then
        _setup_say "tools/venv is unfinished or of other pins; it is made anew."
        rm -rf "$_setup_venv"
    fi
    _setup_say "Making tools/venv with $("$base" --version 2>&1) ($base)." \
        "This happens once and takes a few minutes."
    if ! { _setup_make_venv "$base" && _setup_install; }; then
        _setup_say "The environment could not be made; the messages above say why." \
            "Run this again when that is mended."
        return 1
    fi
    _setup_fingerprint >"$_setup_venv/.stamp"
    _setup_say "tools/venv is ready."
}

_setup_main() {
    if _setup_active_works; then
        [ -n "${BALANCER_SETUP_SAID:-}" ] ||
            _setup_say "Using the active environment of $(command -v python), which" \
                "has espnet2 and balancer."
        export BALANCER_SETUP_SAID=1
        return 0
    fi
    if ! _setup_is_ready; then
        # Of two runs that start together, one builds and the other waits for it.
        if command -v flock >/dev/null; then
            (
                flock 9
                _setup_is_ready || _setup_build
            ) 9>"$_setup_tools/.setup.lock" || return 1
        else
            _setup_build || return 1
        fi
    fi
    # Our own environment first, and nobody else's libraries before it.
    export VIRTUAL_ENV="$_setup_venv" PATH="$_setup_venv/bin:$PATH"
    unset PYTHONHOME
}

_setup_main || { return 1 2>/dev/null || exit 1; }
