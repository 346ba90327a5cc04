"""How a command ends when something expected goes wrong: one line on stderr, and an exit code."""

import sys

from editfoundry.core.errors import EditFoundryError


def report_failure(error: EditFoundryError | OSError) -> int:
    """Print the error on one line, whatever names and texts it holds, and return its exit code."""
    if isinstance(error, EditFoundryError):
        message, exit_code = str(error), error.exit_code
    else:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}; check the path, its permissions and the space left"
        exit_code = 1
    text = " ".join(message.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())
    print("error:", "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text), file=sys.stderr)
    return exit_code
