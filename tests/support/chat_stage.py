"""Toy stages that ask a language model about every source. Importable by spawned workers."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import toy_engine as toy

from editfoundry.core.chat.client import ChatClient, Endpoint
from editfoundry.core.chat.messages import Answered, ChatRequest
from editfoundry.data_engine.records import Record, Reject
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage


class AskingFilter(Stage):
    """Asks the server at $TOY_CHAT, with $TOY_BUDGET as its cap, and turns away what is not answered."""

    name: ClassVar[str] = "filter"
    row: ClassVar[type[Record]] = toy.Source
    blobs: ClassVar[str] = "ingest"
    batch_size: ClassVar[int] = 3

    def setup(self, artifacts: Artifacts) -> None:
        self.client = ChatClient(
            Endpoint(
                base_url=os.environ["TOY_CHAT"], model="m", price_output=10, budget_usd=float(os.environ["TOY_BUDGET"])
            )
        )

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        requests = [
            ChatRequest("", [item.record.text], max_tokens=100, subject=item.record.sha256, purpose="toy")
            for item in batch
        ]
        replies = self.client.ask(requests)
        return [
            [item]
            if isinstance(reply, Answered)
            else [Reject(stage=self.name, id=item.record.id, reason="unanswered", source_sha256=item.record.sha256)]
            for item, reply in zip(batch, replies, strict=True)
        ]


STAGES: tuple[type[Stage], ...] = (toy.ToyIngest, AskingFilter)


def run(sources: Path, path: Path, workers: int = 2) -> None:
    """Run both stages in worker processes."""
    toy.run(sources, path, workers=workers, stages=STAGES)
