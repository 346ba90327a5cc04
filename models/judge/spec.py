"""Judges by name: `local:DIR` is a model in this process, `openai:MODEL@URL` one behind an OpenAI-compatible server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from editfoundry.core.errors import UsageError
from editfoundry.core.text import one_line
from editfoundry.models.judge.types import Head, Order, Steps

if TYPE_CHECKING:
    from editfoundry.models.judge.types import EditJudge

FORMS = "local:DIR or openai:MODEL@URL"


@dataclass(frozen=True)
class JudgeOptions:
    """How a judge is asked; None: what its folder was trained with, else the default.

    rubric: packaged name or file (`edit`). head (`expected`), steps, order (`compat`): see `types`. batch, device,
    dtype, max_pixels: of a local model. max_new_tokens: most tokens of a reply. api_key_env, concurrency, ledger: of a
    server; the ledger keeps replies that were paid for. endpoint: further settings of `core.chat.endpoint.Endpoint`.
    """

    rubric: str | None = None
    head: Head | None = None
    steps: Steps = "chained"
    order: Order | None = None
    batch: int | None = None
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_pixels: int | None = None
    max_new_tokens: int | None = None
    api_key_env: str | None = None
    concurrency: int | None = None
    ledger: Path | None = None
    endpoint: Mapping[str, Any] = field(default_factory=dict)


def open_judge(spec: str, options: JudgeOptions | None = None) -> "EditJudge":
    """The judge of a SPEC; its weights are loaded when it is first asked.

    Raises UsageError for a SPEC of no known form and for options that do not go with it, ModelMissing for a folder that
    is not there.
    """
    options = options or JudgeOptions()
    kind, _, rest = spec.partition(":")
    if kind == "local" and rest:
        return _local(rest, options)
    if kind == "openai":
        model, at, url = rest.partition("@http")
        if model and at:
            return _api(model, f"http{url}", options)
    raise UsageError(f"--judge {one_line(spec, 80)!r}: expected {FORMS}")


def _local(folder: str, options: JudgeOptions) -> "EditJudge":
    from editfoundry.models.checkpoint import checkpoint_path
    from editfoundry.models.judge.folder import read_settings
    from editfoundry.models.judge.local import LocalJudge, LocalJudgeOptions

    trained = read_settings(checkpoint_path(folder))
    wanted: dict[str, Any] = {
        "rubric": options.rubric or (trained.rubric if trained else "edit"),
        "order": options.order or (trained.order if trained else "compat"),
        "head": options.head or (trained.head if trained else "expected"),
        "max_pixels": options.max_pixels or (trained.max_pixels if trained else None),
        "min_pixels": trained.min_pixels if trained else None,
        "batch": options.batch,
        "max_new_tokens": options.max_new_tokens,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if "min_pixels" in given and "max_pixels" in given:
        given["min_pixels"] = min(given["min_pixels"], given["max_pixels"])
    return LocalJudge(
        LocalJudgeOptions(checkpoint=folder, steps=options.steps, device=options.device, dtype=options.dtype, **given)
    )


def _api(model: str, url: str, options: JudgeOptions) -> "EditJudge":
    from editfoundry.core.config import validate
    from editfoundry.models.judge.api import ApiJudge, ApiJudgeOptions

    of_a_folder = {"--batch": options.batch, "--max-pixels": options.max_pixels}
    if wrong := [name for name, value in of_a_folder.items() if value is not None]:
        raise UsageError(f"{', '.join(wrong)}: only for local:DIR; a server does as it is configured")
    wanted: dict[str, Any] = {
        "base_url": url,
        "model": model,
        "rubric": options.rubric,
        "head": options.head,
        "steps": options.steps,
        "order": options.order,
        "api_key_env": options.api_key_env,
        "concurrency": options.concurrency,
        "max_tokens": options.max_new_tokens,
        "ledger": options.ledger,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return ApiJudge(validate(ApiJudgeOptions, {**options.endpoint, **given}, "--judge openai:MODEL@URL"))
