#!/usr/bin/env bash
# From a fresh clone to a green test run. `--fast` leaves out the slow tests; other arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"

selection=()
if [ "${1:-}" = --fast ]; then
    selection=(-m "not slow")
    shift
fi

browser() {
    if command -v chromium >/dev/null; then return; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "the page tests drive Debian's chromium, which is not installed; run: sudo apt-get install chromium"
    fi
    say "installing chromium"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
}

browser
environment requirements.lock requirements-full.lock requirements-train.lock requirements-dev.lock
say "fetching embedded models and photographs"
editfoundry models pull --stack embedded
python -c 'from editfoundry.quickstart import materials; materials()'

say "checking"
ruff check .
mypy --strict -p editfoundry
lint-imports
mkdocs build --strict --quiet

say "testing"
export EDITFOUNDRY_REQUIRE_WEIGHTS=1
exec pytest -n 2 --dist loadfile "${selection[@]}" "$@"
