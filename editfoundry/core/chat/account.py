"""The summary of a ledger: how many requests ended how, and what they cost by purpose."""

import sqlite3

from pydantic import Field

from editfoundry.core.config import Config

NANO = 1_000_000_000
_OUTCOMES = """
SELECT sum(open), sum(kind = 'answered'), sum(kind = 'refused'), sum(kind IS NULL AND NOT open)
FROM (SELECT kind, kind IS NULL AND max(state = 'started') AS open
      FROM requests JOIN attempts ON attempts.request = requests.id GROUP BY requests.id)
"""
_PURPOSES = """
SELECT purpose, count(*), sum(state IN ('in_doubt', 'started')), sum(prompt_tokens), sum(completion_tokens),
       sum(cost), sum(CASE WHEN state IN ('in_doubt', 'started') THEN cost ELSE 0 END)
FROM attempts GROUP BY purpose ORDER BY purpose
"""


class Spent(Config):
    """Attempts, and what they took. cost_usd: all that counts against the budget; in_doubt_usd: the part of it that

    was set aside for attempts whose bill is not known (timed out, cut off, or of a process that died) or not yet.
    """

    attempts: int = 0
    in_doubt: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    in_doubt_usd: float = 0.0


class Account(Spent):
    """A whole ledger: its requests by how they ended, its attempts together, and by purpose.

    requests = answered + refused + failed + open (still being asked, or left so by a process that died).
    cached_hits: requests of this process that were answered without asking.
    """

    requests: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    open: int = 0
    cached_hits: int = 0
    purposes: dict[str, Spent] = Field(default_factory=dict)


def summarise(database: sqlite3.Connection, cached_hits: int) -> Account:
    """Add the ledger's tables up."""
    open_, answered, refused, failed = (value or 0 for value in database.execute(_OUTCOMES).fetchone())
    rows = database.execute(_PURPOSES).fetchall()
    totals = [sum(row[column] for row in rows) for column in range(1, 7)]
    return Account(
        requests=open_ + answered + refused + failed,
        answered=answered,
        refused=refused,
        failed=failed,
        open=open_,
        cached_hits=cached_hits,
        purposes={row[0]: _spent(*row[1:]) for row in rows},
        **_spent(*totals).model_dump(),
    )


def _spent(attempts: int, in_doubt: int, prompt: int, completion: int, cost: int, doubtful: int) -> Spent:
    return Spent(
        attempts=attempts,
        in_doubt=in_doubt,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost_usd=cost / NANO,
        in_doubt_usd=doubtful / NANO,
    )


def usd(nano: int) -> str:
    """An amount for people: cents, or four significant digits below a dollar."""
    value = nano / NANO
    return f"${value:.2f}" if value >= 1 or nano == 0 else f"${value:.4g}"
