"""What a judge asks, by the straightforward way: transformers' processor and the model's own forward and `generate`."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from judge_data import draw
from PIL import Image
from torch import Tensor

from editfoundry.models.judge.folder import read_settings
from editfoundry.models.judge.rubric import (
    FOLDER,
    Dimension,
    Picture,
    Prompt,
    Rubric,
    Scale,
    Slot,
    reply_text,
    scored_line,
)
from editfoundry.models.judge.types import Case, Order

SIZES = ((60, 84), (1, 1), (9, 900), (300, 200), (56, 56))
"""Heights and widths: one pixel, the widest that is judged, and one that the miniature is shown smaller."""
INSTRUCTIONS = ("Add a hat.", "Remove the old tree behind the wall, and its shadow on the grass.", "把天空变成粉红色。")
THREE = {"following": "Following", "naturalness": "Naturalness", "detail": "Fine Detail"}
STEPS = 40
"""Of training, until a few replies are known by heart."""
TWO = {name: THREE[name] for name in ("following", "naturalness")}


class Reference:
    """A judge's model, loaded apart from the judge."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

        self.processor = AutoProcessor.from_pretrained(folder)
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.end = int(self.tokenizer.eos_token_id)
        self.model.generation_config = GenerationConfig(
            eos_token_id=[self.end], pad_token_id=self.tokenizer.pad_token_id
        )
        settings = read_settings(folder)
        assert settings is not None
        self.size = {"shortest_edge": settings.min_pixels, "longest_edge": settings.max_pixels}

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def inputs(
        self, prompts: Sequence[Prompt], pictures: Sequence[Mapping[Slot, np.ndarray]], begun: Sequence[int] = ()
    ) -> Any:
        """What the processor makes of conversations, padded on the left; begun: tokens their replies begin with."""
        inputs = self.processor.apply_chat_template(
            [conversation(*one) for one in zip(prompts, pictures, strict=True)],
            tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
            processor_kwargs={"text_kwargs": {"padding": True}, "images_kwargs": {"size": self.size}},
        )  # fmt: skip
        if begun:
            tokens = torch.tensor([list(begun)] * len(prompts))
            fill = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
            for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
                inputs[name] = torch.cat([inputs[name], fill.get(name, torch.zeros_like(tokens))], 1)
        return inputs

    def states(self, inputs: Any) -> Tensor:
        """The last token's state [B, H]."""
        with torch.inference_mode():
            return self.model.model(**inputs).last_hidden_state[:, -1]

    def logits(self, inputs: Any) -> Tensor:
        """Logits [B, vocabulary] of what comes next."""
        with torch.inference_mode():
            return self.model(**inputs).logits[:, -1]

    def generate(self, inputs: Any, most: int, allowed: Callable[[int, Tensor], list[int]] | None = None) -> list[int]:
        """The tokens that greedy search adds to one conversation, the end of the turn included."""
        with torch.inference_mode():
            output = self.model.generate(
                **inputs, do_sample=False, max_new_tokens=most, prefix_allowed_tokens_fn=allowed
            )  # fmt: skip
        tokens: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def constrained(self, inputs: Any, dimensions: Sequence[Dimension], scale: Scale, before: str = "") -> list[int]:
        """The scores of the reply that greedy search writes when it is held to the rubric's form."""
        start = inputs["input_ids"].shape[1]
        permitted: dict[tuple[int, ...], set[int]] = {}
        replies: dict[tuple[int, ...], list[int]] = {}
        for scores in product(scale.values, repeat=len(dimensions)):
            reply = (*self.ids(before + reply_text(dimensions, scores)), self.end)
            replies[reply] = list(scores)
            for place, token in enumerate(reply):
                permitted.setdefault(reply[:place], set()).add(token)
        most = max(map(len, replies))
        written = self.generate(inputs, most, lambda _, ids: sorted(permitted[tuple(ids[start:].tolist())]))
        return replies[tuple(written)]


def conversation(prompt: Prompt, pictures: Mapping[Slot, np.ndarray]) -> list[dict[str, Any]]:
    """The turns of a prompt as the processor takes them."""
    content = [
        {"type": "image", "image": Image.fromarray(pictures[part.slot])}
        if isinstance(part, Picture) else {"type": "text", "text": part}
        for part in prompt.parts
    ]  # fmt: skip
    system = [{"role": "system", "content": [{"type": "text", "text": prompt.system}]}] if prompt.system else []
    return [*system, {"role": "user", "content": content}]


def pictures_of(case: Case) -> dict[Slot, np.ndarray]:
    """The pictures of a case by their places."""
    return {"source": case.source, "result": case.result}


def some_cases(types: Sequence[str] = ("add", "remove", "style"), sizes: Sequence[Any] = SIZES) -> list[Case]:
    """Two results of each of several sources, of every size, and one result of another size than its source."""
    cases = []
    for number, size in enumerate(sizes):
        source, kind = draw(10 * number, size), types[number % len(types)]
        words = INSTRUCTIONS[number % len(INSTRUCTIONS)]
        results = [draw(10 * number + 1, size), draw(10 * number + 2, size if number else sizes[-1])]
        cases += [Case(f"{number}-{place}", source, one, words, kind) for place, one in enumerate(results)]
    return cases


def write_rubric(file: Path, scale: tuple[int, int], **dimensions: Mapping[str, str]) -> str:
    """A rubric file with `short`'s words, and these dimensions by type of edit."""
    plain = yaml.safe_load((FOLDER / "short.yaml").read_text("utf-8"))
    plain["scale"] = list(scale)
    plain["types"] = {name: {"dimensions": dict(labels), "text": ""} for name, labels in dimensions.items()}
    file.write_text(yaml.safe_dump(plain, sort_keys=False), "utf-8")
    return str(file)


def teach(
    folder: Path, taught: Path, rubric: Rubric, cases: Sequence[Case], replies: Sequence[tuple[str, Sequence[int]]]
) -> Path:
    """Write a copy of a judge that learned by heart to answer each case with that reason, if any (in both orders), and

    these scores, and to give the scores when a reply has to begin with them.
    """
    reference = Reference(folder)
    rows = []
    for case, (reason, scores) in zip(cases, replies, strict=True):
        dimensions = rubric.section(case.type).dimensions
        reasoned: list[tuple[str, Order]] = [(reason, "compat"), (reason, "fast")] if reason else []
        ways: list[tuple[str, Order]] = [("", "compat"), *reasoned]
        for words, order in ways:
            reply = [*reference.ids(reply_text(dimensions, scores, words)), reference.end]
            given = 0 if words == reason else len(reference.ids(scored_line(dimensions[0])))
            prompt = rubric.prompt(case.type, case.instruction, order)
            inputs = reference.inputs([prompt], [pictures_of(case)], reply)
            rows.append((inputs, torch.tensor(reply[given:])))
    optimiser = torch.optim.Adam(reference.model.model.language_model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        for inputs, reply in rows:
            logits = reference.model(**inputs, logits_to_keep=len(reply) + 1).logits[0, :-1]
            torch.nn.functional.cross_entropy(logits, reply).div(len(rows)).backward()
        optimiser.step()
        optimiser.zero_grad()
    shutil.copytree(folder, taught)
    reference.model.save_pretrained(taught)
    return taught
