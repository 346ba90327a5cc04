#!/usr/bin/env bash
# From a fresh clone to a checked edit dataset, and a miniature editor trained on it; with their reports.
# Arguments are passed to `editfoundry quickstart`, for example: ./scripts/quickstart.sh -o runs/mine --workers 4
source "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"

environment requirements.lock requirements-full.lock
say "pulling embedded models"
editfoundry models pull --stack embedded
say "fetching photographs and building the dataset"
exec editfoundry quickstart "$@"
