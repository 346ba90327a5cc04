"""What a run must never take in again. Only salted hashes are kept: a tombstone says nothing about its source."""

import secrets
from collections.abc import Iterable
from typing import Any

from editfoundry.core.hashing import sha256
from editfoundry.data_engine.records import Record, Reject

FORGOTTEN = "forgotten"


class Tombstones(Record):
    """Salted hashes of the content hashes, addresses and URLs that were forgotten."""

    salt: str = ""
    hashes: tuple[str, ...] = ()

    def with_values(self, values: Iterable[str]) -> "Tombstones":
        """These and the given content hashes or addresses."""
        salt = self.salt or secrets.token_hex(16)
        hashes = {*self.hashes, *(sha256(salt + value) for value in values)}
        return Tombstones(salt=salt, hashes=tuple(sorted(hashes)))

    def holds(self, value: str) -> bool:
        """Whether exactly this content hash, address or text was forgotten."""
        return bool(self.hashes) and sha256(self.salt + value) in self.hashes

    def anonymous(self, value: str) -> str:
        """The id that stands for a forgotten value; it tells nothing about it without the value."""
        return f"{FORGOTTEN}_{sha256(self.salt + value)[:16]}"

    def match(self, record: Any) -> str | None:
        """The anonymous id under which a record was forgotten; None if it was not.

        Looks at its address, source URL and content hash, whichever of them the record has.
        """
        if not self.hashes:
            return None
        return next((self.anonymous(value) for value in identifiers(record) if self.holds(value)), None)


def identifiers(record: Any) -> list[str]:
    """How a source or donor can be named: address (of a frame pair: also its video's), source URL, content hash.

    A sample goes by the names of its source.
    """
    record = (record.get("source") if isinstance(record, dict) else getattr(record, "source", None)) or record
    names = ("uri", "source_url", "sha256")
    values = [record.get(name) if isinstance(record, dict) else getattr(record, name, None) for name in names]
    uri = values[0] or ""
    found = [uri, uri.rsplit("#frames=", 1)[0], *values[1:]]
    return list(dict.fromkeys(value for value in found if value))


def forgotten_reject(stage: str, anonymous: str, unit: Any = "source") -> Reject:
    """The reject that stands for a forgotten source: it says that there was one, and nothing else."""
    return Reject(stage=stage, id=anonymous, reason=FORGOTTEN, unit=unit)
