"""The local judge against the loop that people write: for every pair the processor, then the model's `generate`.

Both sides have the same model and pairs: several editors' results for one instruction on one photograph, and the rubric
`types` with its three scores. The model is of Qwen2.5-VL's classes with random weights. Its vision tower takes about a
tenth of its language model's floating-point operations for one question; they are counted, and printed with the times.
Random weights do not end a reply where a trained model would, so no reply ends by itself: the output layer gives
nothing to tokens that end a reply or a line, and both sides write as many tokens of a reason.

Forward passes and pictures are counted by hooks on the model, whoever calls it. Photographs are decoded beforehand; our
judge is made anew for every run, so that nothing is kept from the one before but the weights.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from _measure import Case, arguments, measure, report, timed
from PIL import Image as PillowImage
from torch.utils.flop_counter import FlopCounterMode

from editfoundry.core.config import cache_root
from editfoundry.core.images import decode
from editfoundry.models.editor.initialise import drawn
from editfoundry.models.editor.miniature import FACE, vlm_config, vlm_processor
from editfoundry.models.judge import types
from editfoundry.models.judge.corruption import corrupt
from editfoundry.models.judge.local import LocalJudge, LocalJudgeOptions
from editfoundry.models.judge.prefix import Counts
from editfoundry.models.judge.rubric import Picture, Rubric, load_rubric, scored_line
from editfoundry.models.judge.types import Scored
from editfoundry.models.language.local import Resident, resident

TYPE = "replace"
INSTRUCTION = "Replace the largest thing in the foreground by a wooden crate, with its shadow."
EDITORS = tuple(product(("blur", "noise", "blocks"), (1, 2, 3, 4)))
"""Each stands for an editor: its result is the photograph, damaged like this."""
WIDTH, LAYERS, HEAD, VISION_WIDTH = 256, 2, 64, 48
LEAST_PIXELS = 4 * FACE**2
CHAINED, REASONED = "scores, chained", "reason and scores, fast"
NAIVE, FLOOR = "naive generate", "floor: naive, one forward each"


def write_model(folder: Path, most_pixels: int, vision_layers: int) -> Path:
    """Random weights; nothing ends a reply or a line."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    processor = vlm_processor(LEAST_PIXELS, most_pixels)
    plain = vlm_config(WIDTH, processor.tokenizer).to_dict()
    plain["text_config"].pop("layer_types")
    plain["text_config"] |= {
        "num_hidden_layers": LAYERS,
        "intermediate_size": 4 * WIDTH,
        "num_attention_heads": WIDTH // HEAD,
        "num_key_value_heads": WIDTH // HEAD // 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    }
    plain["vision_config"] |= {
        "depth": vision_layers,
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 8 * VISION_WIDTH // 3,
        "num_heads": VISION_WIDTH // 16,
        "window_size": 4 * FACE,
        "fullatt_block_indexes": [vision_layers - 1],
    }
    config = Qwen2_5_VLConfig(**plain)
    for part in (config, config.text_config, config.vision_config):
        part.initializer_range = WIDTH**-0.5
    with drawn(0, "benchmark"):
        model = Qwen2_5_VLForConditionalGeneration(config).eval()
    tokenizer = processor.tokenizer
    ends = [token for token in range(len(tokenizer)) if "\n" in tokenizer.decode([token])]
    model.lm_head.weight.data[[*ends, *tokenizer.all_special_ids]] = 0
    processor.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def cases_of(photographs: Sequence[Path], sources: int, editors: int, side: int) -> list[types.Case]:
    """Results of so many editors for each of so many photographs, cut to squares."""
    made = []
    for number in range(sources):
        picture = decode(photographs[number % len(photographs)].read_bytes())[:side, :side]
        for name, degree in EDITORS[:editors]:
            result = corrupt(name, degree, picture, picture, None, seed=number)
            made.append(types.Case(f"{number} {name} {degree}", picture, result, INSTRUCTION, TYPE))
    return made


@dataclass
class Naive:
    """One question after the other, through the processor and the model's own methods."""

    held: Resident
    cases: Sequence[types.Case]
    rubric: Rubric
    most_pixels: int

    def inputs(self, case: types.Case) -> Any:
        prompt = self.rubric.prompt(case.type, case.instruction, "compat")
        shown = {"source": case.source, "result": case.result}
        content: list[dict[str, Any]] = [
            {"type": "image", "image": PillowImage.fromarray(shown[part.slot])}
            if isinstance(part, Picture) else {"type": "text", "text": part}
            for part in prompt.parts
        ]  # fmt: skip
        system = {"role": "system", "content": [{"type": "text", "text": prompt.system}]}
        size = {"shortest_edge": LEAST_PIXELS, "longest_edge": self.most_pixels}
        return self.held.processor.apply_chat_template(
            [system, {"role": "user", "content": content}], tokenize=True, add_generation_prompt=True,
            return_dict=True, return_tensors="pt", processor_kwargs={"images_kwargs": {"size": size}},
        )  # fmt: skip

    @torch.inference_mode()
    def generate(self, tokens: int) -> list[list[int]]:
        """So many tokens of a reply to each question."""
        replies = []
        for case in self.cases:
            inputs = self.inputs(case)
            output = self.held.model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
            replies.append(output[0, inputs["input_ids"].shape[1] :].tolist())
        return replies

    @torch.inference_mode()
    def forward(self) -> list[list[float]]:
        """Probabilities of the first score alone; without a reply there are no others."""
        tokenizer, scale = self.held.processor.tokenizer, self.rubric.scale
        digits = [tokenizer(str(value))["input_ids"][0] for value in scale.values]
        line = scored_line(self.rubric.section(TYPE).dimensions[0])
        begun = torch.tensor([tokenizer(line)["input_ids"]])
        found = []
        for case in self.cases:
            inputs = self.inputs(case)
            for name, more in (
                ("input_ids", begun),
                ("attention_mask", begun * 0 + 1),
                ("mm_token_type_ids", begun * 0),
            ):
                inputs[name] = torch.cat([inputs[name], more], 1)
            logits = self.held.model(**inputs, logits_to_keep=1).logits[0, -1, digits]
            found.append(torch.softmax(logits.double(), -1).tolist())
        return found


class Noting(LocalJudge):
    """A judge that notes the tokens of its replies, those too that did not end."""

    replies: list[list[int]]

    def _text(self, tokens: list[int]) -> str:
        if len(tokens) > 1:
            self.replies.append(tokens)
        return super()._text(tokens)


@contextmanager
def counted(held: Resident) -> Iterator[Counts]:
    """What whoever calls the model has it do meanwhile; a forward pass of one token a row is decoding."""
    counts = Counts()

    def language(*given: Any) -> None:
        embeds = given[-1]["inputs_embeds"]
        counts.forwards += 1
        if embeds.shape[1] > 1:
            counts.prefill_tokens += embeds.shape[0] * embeds.shape[1]
        else:
            counts.decode_tokens += embeds.shape[0]

    def vision(*given: Any) -> None:
        counts.vision_encodes += len(given[-1]["grid_thw"])

    inner = held.model.model
    hooks = [
        part.register_forward_pre_hook(hook, with_kwargs=True)
        for part, hook in ((inner.language_model, language), (inner.visual, vision))
    ]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


class Bench:
    """Model, pairs, and both sides' runs over all of them."""

    def __init__(self, held: Resident, folder: Path, cases: Sequence[types.Case], options: argparse.Namespace) -> None:
        self.held, self.folder, self.cases, self.options = held, folder, cases, options
        self.most_pixels = options.picture_tokens * FACE**2
        self.naive = Naive(held, cases, load_rubric(options.rubric), self.most_pixels)

    def judge(self, **settings: Any) -> Noting:
        judge = Noting(LocalJudgeOptions(
            checkpoint=str(self.folder), rubric=self.options.rubric,
            min_pixels=LEAST_PIXELS, max_pixels=self.most_pixels,
            max_new_tokens=self.options.reason_tokens, **settings,
        ))  # fmt: skip
        judge.replies = []
        return judge

    def ours(self, **settings: Any) -> Callable[[], object]:
        return lambda: self.judge(**settings).score(self.cases)

    def contenders(self) -> tuple[dict[str, dict[str, Any]], dict[str, Callable[[], object]]]:
        """Our rows by name as settings, and the naive ones as functions."""
        batch, generate = {"batch": self.options.batch} if self.options.batch else {}, {"head": "generate"}
        ours: dict[str, dict[str, Any]] = {
            CHAINED: batch,
            "scores, independent": {"steps": "independent", **batch},
            REASONED: {**generate, "order": "fast", **batch},
            "reason and scores, compat": {**generate, **batch},
        }
        tokens = self.options.reason_tokens
        return ours, {
            NAIVE: lambda: self.naive.generate(tokens),
            FLOOR: self.naive.forward,
        }

    def work(self) -> dict[str, Any]:
        """What each contender has the model do; ours as the judge itself counts it, checked against the hooks."""
        ours, naive = self.contenders()
        made: dict[str, Any] = {}
        for name, job in naive.items():
            with counted(self.held) as counts:
                job()
            made[name] = asdict(counts)
        for name, settings in ours.items():
            judge = self.judge(**settings)
            with counted(self.held) as counts:
                judge.score(self.cases)
            own = judge.counts
            if (own.forwards, own.vision_encodes) != (counts.forwards, counts.vision_encodes):
                sys.exit(f"{name}: the judge counts {own}, the hooks {counts}")
            made[name] = asdict(own)
        return made

    def same(self) -> dict[str, Any]:
        """Whether both sides say the same: replies in compat, and probabilities of the first score."""
        judge = self.judge(head="generate")
        judge.score(self.cases)
        theirs = sorted(self.naive.generate(self.options.reason_tokens))
        equal = sum(one == other for one, other in zip(sorted(judge.replies), theirs, strict=True))
        first = self.naive.rubric.section(TYPE).dimensions[0].key
        scored = [one for one in self.judge().score(self.cases) if isinstance(one, Scored)]
        pairs = zip(scored, self.naive.forward(), strict=True)
        apart = max(abs(a - b) for one, row in pairs for a, b in zip(one.probabilities[first], row, strict=True))
        return {"replies identical in compat": f"{equal} of {len(theirs)}",
                "largest difference of a probability of the first score": float(f"{apart:.1e}")}  # fmt: skip

    @torch.inference_mode()
    def cost(self) -> dict[str, float]:
        """Operations and seconds of the vision tower (two pictures) and of the language model, for one question."""
        inputs, inner = self.naive.inputs(self.cases[0]), self.held.model.model
        embeds = torch.randn(1, inputs["input_ids"].shape[1], WIDTH)
        parts: dict[str, Callable[[], object]] = {
            "vision": lambda: inner.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]),
            "language": lambda: inner.language_model(inputs_embeds=embeds, attention_mask=inputs["attention_mask"]),
        }
        found: dict[str, float] = {"tokens": embeds.shape[1]}
        for name, part in parts.items():
            with FlopCounterMode(display=False) as flops:
                part()
            found[f"{name}_gflop"] = round(flops.get_total_flops() / 1e9, 3)
            found[f"{name}_ms"] = round(1e3 * min(timed(part)() for _ in range(5)), 1)
        return found


def turned(result: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the naive loop against one of our rows, seen from our row: the loop runs once a round."""
    ratio = result["ratio"]
    inverse = {"median": 1 / ratio["median"], "min": 1 / ratio["max"], "max": 1 / ratio["min"]}
    return {
        **result, "case": result["peer"], "peer": result["case"], "ours_seconds": result["peer_seconds"],
        "peer_seconds": result["ours_seconds"], "ratio": inverse,
    }  # fmt: skip


def main(options: argparse.Namespace) -> None:
    photographs = sorted(path for path in options.photographs.glob("*.jpg"))
    if not photographs:
        sys.exit(
            f"{options.photographs}: no photographs; `editfoundry quickstart` fetches some, or name a folder with "
            "--photographs"
        )
    torch.set_num_threads(1)
    # libraries that log to the standard output must not get between the lines of the report
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name) / "model", options.picture_tokens * FACE**2, options.vision_layers)
        held = resident(str(folder), "cpu", torch.float32)
        side = round((options.picture_tokens * FACE**2) ** 0.5)
        bench = Bench(held, folder, cases_of(photographs, options.sources, options.editors, side), options)
        items = len(bench.cases)
        ours, naive = bench.contenders()
        rows = {name: timed(bench.ours(**settings)) for name, settings in ours.items()}
        loop = Case(NAIVE, items, timed(naive[NAIVE]), rows)
        results = [turned(result) for result in measure(loop, options.rounds)]
        results += measure(Case(CHAINED, items, rows[CHAINED], {FLOOR: timed(naive[FLOOR])}), options.rounds)
        for case in (CHAINED, REASONED):
            one, *more = (timed(bench.ours(**{**ours[case], "batch": batch})) for batch in options.batches)
            named = {f"batch {batch}": job for batch, job in zip(options.batches[1:], more, strict=True)}
            name = f"{case}, batch {options.batches[0]}"
            results += measure(Case(name, items, one, named), options.rounds, warm_ups=0)
        work = bench.work()
        rates = {
            f"{result['case']} | {result['peer']}": [
                round(items / result[side]["median"], 2) for side in ("ours_seconds", "peer_seconds")
            ]
            for result in results
        }
        facts = {
            **{f"work, {name}": counts for name, counts in work.items()},
            "prefill tokens, chained / naive": round(
                work[CHAINED]["prefill_tokens"] / work[NAIVE]["prefill_tokens"], 3
            ),
            **bench.same(),
            "one question costs": bench.cost(),
            "edits/s, ours and peer": rates,
        }
        data = {
            "sources": options.sources, "editors": options.editors, "pairs": items, "rubric": options.rubric,
            "picture_tokens": options.picture_tokens, "vision_layers": options.vision_layers,
            "reason_tokens": options.reason_tokens,
            "batch": options.batch or LocalJudgeOptions.model_fields["batch"].default,
        }  # fmt: skip
    report(
        options.json, "judge/inference", rounds=options.rounds, results=results, facts=facts, data=data,
        packages=("torch", "transformers"),
    )  # fmt: skip


if __name__ == "__main__":
    parser = arguments("The local judge against a loop of generate.", rounds=3)
    parser.add_argument("--sources", type=int, default=2, help="photographs (default: %(default)s)")
    parser.add_argument(
        "--editors", type=int, default=4, choices=range(1, len(EDITORS) + 1), metavar=f"1..{len(EDITORS)}",
        help="results of each photograph (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--picture-tokens", type=int, default=256, help="of one picture (default: %(default)s)")
    parser.add_argument("--vision-layers", type=int, default=2, help="of the vision tower (default: %(default)s)")
    parser.add_argument("--reason-tokens", type=int, default=64, help="written by both sides (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=None, help="of our rows (default: the judge's own)")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 2, 4, 8], help="compared with each other (default: 1 2 4 8)"
    )
    parser.add_argument("--rubric", default="types", help="packaged name or file (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two small pairs, the rubric `short`, few tokens")
    parser.add_argument("--photographs", type=Path, default=cache_root() / "photographs" / "photographs",
                        help="folder of JPEGs (default: those of the quickstart)")  # fmt: skip
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(rubric="short", sources=1, editors=2, picture_tokens=16, reason_tokens=8, batches=[1, 2])
    main(chosen)
