"""What a judge asks, by the straightforward way: transformers' processor and the model's own forward and `generate`."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from judge_data import draw
from PIL import Image
from torch import Tensor

from editfoundry.models.judge.folder import read_settings
from editfoundry.models.judge.rubric import FOLDER, Picture, Prompt, Rubric, Slot, reply_text
from editfoundry.models.judge.types import Case

SIZES = ((60, 84), (1, 1), (9, 900), (300, 200), (84, 60), (500, 500), (56, 56))
"""Heights and widths: one pixel, the widest that is judged, and some that the miniature is shown smaller."""
INSTRUCTIONS = ("Add a hat.", "Remove the old tree behind the wall, and its shadow on the grass.", "把天空变成粉红色。")
THREE = {"following": "Following", "naturalness": "Naturalness", "detail": "Fine Detail"}
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

    def inputs(self, prompts: Sequence[Prompt], pictures: Sequence[Mapping[Slot, np.ndarray]], begun: str = "") -> Any:
        """What the processor makes of conversations, padded on the left; begun: what their replies begin with."""
        inputs = self.processor.apply_chat_template(
            [conversation(*one) for one in zip(prompts, pictures, strict=True)],
            tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
            processor_kwargs={"text_kwargs": {"padding": True}, "images_kwargs": {"size": self.size}},
        )  # fmt: skip
        if begun:
            tokens = torch.tensor([self.tokenizer(begun, add_special_tokens=False)["input_ids"]] * len(prompts))
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

    def generate(self, inputs: Any, allowed: Callable[[int, Tensor], list[int]] | None = None, **options: Any) -> Any:
        """Greedy search."""
        with torch.inference_mode():
            return self.model.generate(
                **inputs, do_sample=False, prefix_allowed_tokens_fn=allowed, return_dict_in_generate=True,
                output_logits=True, **options,
            )  # fmt: skip


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


def teach(folder: Path, taught: Path, rubric: Rubric, cases: Sequence[Case], steps: int = 24) -> Path:
    """Write a copy of a judge that learned a reply to each case by heart, with a reason."""
    reference = Reference(folder)
    model, tokenizer = reference.model, reference.tokenizer
    rows = []
    for number, case in enumerate(cases):
        dimensions, values = rubric.section(case.type).dimensions, list(rubric.scale.values)
        scores = [values[(number + 2 * place) % len(values)] for place in range(len(dimensions))]
        reply = reply_text(dimensions, scores, f"{'good' if number % 2 else 'no'} edit") + tokenizer.eos_token
        inputs = reference.inputs([rubric.prompt(case.type, case.instruction, "compat")], [pictures_of(case)], reply)
        length = len(tokenizer(reply, add_special_tokens=False)["input_ids"])
        rows.append((inputs, length))
    optimiser = torch.optim.Adam(model.model.language_model.parameters(), lr=2e-3)
    for _ in range(steps):
        for inputs, length in rows:
            logits = model(**inputs, logits_to_keep=length + 1).logits[0, :-1]
            torch.nn.functional.cross_entropy(logits, inputs["input_ids"][0, -length:]).div(len(rows)).backward()
        optimiser.step()
        optimiser.zero_grad()
    shutil.copytree(folder, taught)
    model.save_pretrained(taught)
    return taught
