#!/bin/sh
# Creates .venv: finds a Python, creates the environment, installs torchmdx (editable) with the dependencies of its tests,
# or, with the argument "view", those of the demo.
# Does nothing if .venv was created here from the current pyproject.toml and constraints.txt.
# PYTHON names the interpreter to use; without it the first suitable one on the PATH is taken.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.torchmdx-stamp
LOG=$VENV/setup.log
PYTHON=${PYTHON:-}
EXTRA=${1:-dev}
case $EXTRA in dev | view) ;; *) printf 'usage: %s [dev|view]\n' "$0" >&2; exit 2 ;; esac

say() { printf 'set-up: %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

version_of() { # prints "3.12.1"; nothing when the interpreter is missing or does not run
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true
}

is_suitable() { # Python 3.11 or newer that can make environments (Debian packs that part separately)
    "$1" -c 'import sys; assert sys.version_info >= (3, 11); import ensurepip, venv' 2>/dev/null
}

find_python() { # prints the first suitable interpreter, or fails with the one line that says why
    if [ -n "$PYTHON" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11; fi
    found=
    for candidate in "$@"; do
        if is_suitable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        version=$(version_of "$candidate")
        case $version in
            "") if command -v "$candidate" >/dev/null 2>&1; then why="does not run"; else continue; fi ;;
            [12].* | 3.[0-9].* | 3.10.*) why="is $version" ;;
            *) why="is $version without venv and ensurepip (Debian, Ubuntu: apt install python3-venv)" ;;
        esac
        found="${found:+$found; }$candidate $why"
    done
    die "needs Python 3.11 or newer; found: ${found:-none${PYTHON:+ at $PYTHON}}." \
        "Install one, or name one: make PYTHON=/path/to/python3.11"
}

fingerprint() { # fingerprint EXTRA: what .venv depends on; a moved or copied one is not valid in its new place
    pwd
    cksum pyproject.toml constraints.txt tools/setup.sh
    echo "extra $1"
}

is_current() { # .venv holds what is asked for, or everything
    stamp=$(cat "$STAMP" 2>/dev/null) || return 1
    [ "$stamp" = "$(fingerprint dev)" ] || [ "$stamp" = "$(fingerprint "$EXTRA")" ]
}

is_environment() { # .venv is whole: a half-made one is a link to the system's Python, where nothing may be installed
    "$VENV/bin/python" -c 'import os, sys
assert sys.prefix != sys.base_prefix and os.path.realpath(sys.prefix) == os.path.realpath(sys.argv[1])' \
        "$VENV" 2>/dev/null
}

is_usable() { # .venv is whole, runs, and is the Python that was asked for, if one was
    is_environment && is_suitable "$VENV/bin/python" || return 1
    [ -z "$PYTHON" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$VENV/bin/python")" ]
}

explain_pip_failure() {
    if grep -q -i -E 'NewConnectionError|ConnectTimeout|Connection(Reset|Refused|Aborted)?Error|ProxyError|Read timed out|Temporary failure in name resolution|Max retries exceeded|No route to host|Network is unreachable' "$LOG" 2>/dev/null; then
        die "pip could not reach a package index. The network is needed the first time only (and when" \
            "pyproject.toml or constraints.txt change): connect, or set PIP_INDEX_URL to a mirror or HTTPS_PROXY" \
            "to a proxy, and run make again. Details: $LOG"
    fi
    die "pip could not install the packages; its own message is above, details are in $LOG." \
        "Run make again once that is solved; 'make clean' starts over."
}

if is_current && is_usable; then
    exit 0
fi

# An environment that someone made by hand has no stamp; it is completed, not replaced.
if { [ ! -f "$STAMP" ] || [ "$(head -n 1 "$STAMP")" = "$(pwd)" ]; } && is_usable; then
    say "updating $VENV"
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip
else
    python=$(find_python)
    say "making $VENV with $python ($(version_of "$python"))"
    "$python" -m venv --clear "$VENV" || die "$python -m venv $VENV failed; its own message is above."
fi

is_environment || die "$VENV is not a virtual environment; remove it ('make clean') and run make again."

# The first line alone says: made here, not complete.
pwd >"$STAMP"
rm -f "$LOG"
say "installing torchmdx and its dependencies (the first time this downloads PyTorch and takes minutes)"
"$VENV/bin/python" -m pip --require-virtualenv install --disable-pip-version-check --log "$LOG" \
    --constraint constraints.txt --editable ".[$EXTRA]" || explain_pip_failure
fingerprint "$EXTRA" >"$STAMP"
say "done"
