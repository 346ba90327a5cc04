"""Models of the full stack come from a model hub, through huggingface_hub and its own configuration and credentials."""

from collections.abc import Sequence
from pathlib import Path

from editfoundry.models.fetch import FetchError


def snapshot(source: str, patterns: Sequence[str], target: Path) -> str:
    """Download the files of `hf:owner/name` that match the patterns into `target` and return the commit they are of.

    Interrupted downloads resume. Raises `FetchError` when the hub cannot be reached or refuses (a gated model needs an
    accepted licence and a token).
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # its HTTP client's base error

    repository = source.removeprefix("hf:")
    try:
        commit = HfApi().model_info(repository).sha
        if commit is None:
            raise FetchError(f"{source}: the hub names no commit for it")
        snapshot_download(repository, revision=commit, local_dir=target, allow_patterns=list(patterns))
    except (HTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise FetchError(f"{source}: could not be pulled: {reason}; models of the full stack need the network, a model "
                         "hub that huggingface_hub can reach, and for gated models an accepted licence and HF_TOKEN"
                         ) from error
    return commit
