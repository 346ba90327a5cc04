"""SmolLM2-135M-Instruct (Allal et al. 2025), 4-bit GGUF read through transformers: rewords an instruction.

A model of this size follows examples, not rules. It is shown rewordings of the same kind of edit and continues the
pattern; a good part of what it writes still changes the meaning, so the caller validates every reply and keeps its own
wording when the reply fails.
"""

from typing import Any

from editfoundry.core.hashing import rng_for
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.store import Store

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LONGEST_REPLY = 40
SHOTS = 5
TASK = "Reword the photo editing request. Keep every object, colour and place. Answer with one short sentence."
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "remove": (
        ("Remove the bicycle.", "Take the bicycle out of the photo."),
        ("Remove the lamp in the upper-left corner.", "Erase the lamp in the upper-left corner."),
        ("Remove the horse on the right.", "Get rid of the horse on the right."),
        ("Remove the small boat in the middle.", "Delete the small boat in the middle."),
        ("Remove the chair.", "Make the chair disappear."),
        ("Remove the red kite at the top.", "Wipe out the red kite at the top."),
    ),
    "add": (
        ("Add a bicycle.", "Put a bicycle into the photo."),
        ("Add a lamp in the upper-left corner.", "Place a lamp in the upper-left corner."),
        ("Add a horse on the right.", "Insert a horse on the right."),
        ("Add a small boat in the middle.", "Include a small boat in the middle."),
        ("Add a chair next to the table.", "Set a chair next to the table."),
        ("Add a red kite at the top.", "Show a red kite at the top."),
    ),
    "replace": (
        ("Replace the bicycle with a scooter.", "Swap the bicycle for a scooter."),
        ("Replace the lamp in the upper-left corner with a clock.", "Put a clock where the upper-left lamp is."),
        ("Replace the horse on the right with a cow.", "Exchange the horse on the right for a cow."),
        ("Replace the small boat with a ship.", "Turn the small boat into a ship."),
        ("Replace the chair with a bench.", "Substitute a bench for the chair."),
        ("Replace the red kite with a balloon.", "Switch the red kite to a balloon."),
    ),
    "adjust": (
        ("Make the bicycle yellow.", "Paint the bicycle yellow."),
        ("Change the colour of the lamp to green.", "Give the lamp a green colour."),
        ("Make the horse on the right darker.", "Darken the horse on the right."),
        ("Make the small boat wooden.", "Let the small boat look wooden."),
        ("Turn the chair blue.", "Recolour the chair in blue."),
        ("Change the kite's colour to red.", "Colour the kite red."),
    ),
    "move": (
        ("Move the bicycle to the left.", "Shift the bicycle to the left."),
        ("Move the lamp up.", "Place the lamp higher up."),
        ("Move the horse to the right.", "Bring the horse over to the right."),
        ("Make the small boat bigger.", "Enlarge the small boat."),
        ("Make the chair smaller.", "Shrink the chair."),
        ("Move the red kite down.", "Slide the red kite down."),
    ),
}
KIND_OF_VERB = {
    "remove": "remove", "erase": "remove", "delete": "remove", "take": "remove", "clear": "remove",
    "add": "add", "place": "add", "put": "add", "insert": "add", "include": "add",
    "replace": "replace", "swap": "replace", "exchange": "replace", "substitute": "replace",
    "move": "move", "shift": "move", "enlarge": "move", "shrink": "move", "slide": "move",
}


class SmolLmParaphraser(EmbeddedModel):
    """`Paraphraser`: takes about 20 seconds to load and a second for a reply."""

    name = "smollm2-135m-instruct-q4"
    weights = ("smollm2-135m-instruct-q4",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._tokenizer: Any = None
        self._model: Any = None

    def _load(self) -> None:
        directory = str(self.store.path("smollm2-135m-instruct-q4").parent)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        torch.set_num_threads(1)
        disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=FILE, local_files_only=True)
        self._model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=FILE, local_files_only=True,
                                                           dtype=torch.float32).eval()

    def paraphrase(self, instruction: str, seed: int) -> str:
        """One rewording of an imperative; the first line of the model's own text, unchecked, possibly empty.

        The seed picks and orders the examples; decoding itself is greedy, so the reply depends on nothing else.
        """
        import torch

        self.load()
        messages = [{"role": "system", "content": TASK}]
        for request, rewording in self._shots(instruction, seed):
            messages += [{"role": "user", "content": request}, {"role": "assistant", "content": rewording}]
        messages.append({"role": "user", "content": instruction})
        prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            output = self._model.generate(**tokens, max_new_tokens=LONGEST_REPLY, do_sample=False,
                                          pad_token_id=self._tokenizer.eos_token_id)
        reply: str = self._tokenizer.decode(output[0, tokens["input_ids"].shape[1]:], skip_special_tokens=True)
        return reply.strip().split("\n")[0].strip()

    @staticmethod
    def _shots(instruction: str, seed: int) -> list[tuple[str, str]]:
        verb = next(iter(instruction.lower().split()), "")
        pool = EXAMPLES[KIND_OF_VERB.get(verb, "adjust")]
        order = rng_for(seed, "paraphrase", instruction).permutation(len(pool))
        return [pool[index] for index in order[:SHOTS]]
