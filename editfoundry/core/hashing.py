"""Canonical JSON, content hashes and per-sample seeds: what makes two runs of one configuration the same bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, UTF-8 kept as is. NaN and infinities raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(data: bytes | str) -> str:
    """Hex SHA-256 of bytes, or of a text's UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in one streaming pass."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*parts: Any) -> str:
    """First 16 hex digits of the SHA-256 over the canonical JSON of the parts: a short, stable name for a setting."""
    return sha256(canonical_json(list(parts)))[:16]


def seed_for(*parts: Any) -> int:
    """A 63-bit seed that depends only on its parts, e.g. `seed_for(run_seed, sample_key, "render")`."""
    return int(sha256(canonical_json(list(parts)))[:16], 16) >> 1


def rng_for(*parts: Any) -> np.random.Generator:
    """A NumPy generator seeded by `seed_for(*parts)`. The only source of randomness in the engine."""
    return np.random.default_rng(seed_for(*parts))
