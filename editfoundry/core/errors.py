"""Errors the user can act on. Each message says what was wrong, where, and the remedy."""


class EditFoundryError(Exception):
    """Base of every expected failure. The command line prints the message on one line and exits with `exit_code`."""

    exit_code = 1


class UsageError(EditFoundryError):
    """The call itself was wrong (bad option, bad config, missing path)."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file or override has a wrong key or value."""


class ImageError(EditFoundryError):
    """An image that cannot be used; `reason` is a stable code such as `truncated_image`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelMissing(EditFoundryError):
    """A weight file is not in the model cache; the message names the command that fetches it."""
