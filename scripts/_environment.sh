# Sourced by quickstart.sh and test.sh: makes .venv in the checkout hold exactly the locked packages and this package.
# An environment whose stamp matches the lock files is left alone, so a second run starts at once.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false NO_MKDOCS_2_WARNING=1

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed and was not found; install it, or name one: PYTHON=/path/to/python3.11 $0"
}

# environment LOCK...: create .venv if absent; install the lock files into it, and this package, editable.
environment() {
    local stamp=.venv/installed wanted python
    wanted=$(cat "$@" pyproject.toml | sha256sum)
    if ! grep -qsF "$wanted" "$stamp"; then
        if [ ! -x .venv/bin/python ]; then
            python=$(find_python)
            say "creating .venv with $("$python" --version)"
            "$python" -m venv .venv || fail "$python cannot create environments; on Debian: apt-get install python3-venv"
        fi
        say "installing $*"
        rm -f "$stamp.part"
        .venv/bin/pip install --quiet --no-deps --no-compile "${@/#/--requirement=}"
        .venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
        # what quickstart.sh needs is a part of what test.sh needs: note both, so that either finds its own
        cat "$@" pyproject.toml | sha256sum >> "$stamp.part"
        cat requirements.lock requirements-full.lock pyproject.toml | sha256sum >> "$stamp.part"
        mv "$stamp.part" "$stamp"
    fi
    PATH=$PWD/.venv/bin:$PATH
}
