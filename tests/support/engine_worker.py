"""Trains a small editor model under some kinds of sharding and writes what came of it.

`first` trains three steps, with a checkpoint after two; `again` loads it and trains the third. Each rank writes
OUT/KIND/ACTION-RANKS-RANK.safetensors and .json. Ranks are forks, which need not import torch again.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from diffusers import FluxTransformer2DModel
from safetensors.torch import save_file
from torch import Tensor, nn

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.stages import trainable
from editfoundry.models.editor.types import Condition
from editfoundry.training.checkpoint import Checkpoints
from editfoundry.training.config import Optimiser
from editfoundry.training.ema import Ema
from editfoundry.training.sharding import Engine, build_engine, make_accelerator

OPTIONS = Optimiser(lr=1e-2)
SAMPLES = 4
STEPS = 3
CLIP = 0.5


class Mixed(nn.Module):
    """A trained layer in float32 around a frozen one in bfloat16, as on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6, dtype=torch.bfloat16).requires_grad_(False)
        generator = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)

    def forward(self, values: Tensor) -> Tensor:
        return self.frozen(self.trained(values))


def model() -> EditorModel:
    """The same weights every time; biases, which start at 0, too."""
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 4, 8),
    )
    editor = EditorModel(Connector(16, 24, 32, 8), Connector(12, 24, 32), transformer)
    generator = torch.Generator().manual_seed(1)
    for tensor in editor.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) / 4)
    return editor


def sample(number: int) -> tuple[Tensor, Tensor, Condition, Tensor]:
    """Noisy latents, noise level, condition and target of one sample."""
    generator = torch.Generator().manual_seed(number)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    condition = Condition(
        draw(1, 5, 16), torch.ones(1, 5, dtype=torch.bool), torch.tensor([[3]]), draw(1, 1, 4, 12), None
    )
    return draw(1, 4, 8, 8), torch.rand(1, generator=generator), condition, draw(1, 16, 16)


def backward(engine: Engine, step: int) -> None:
    """The gradients of one global batch: this rank's samples of it, one micro-batch each."""
    per_rank = SAMPLES // engine.ranks
    for micro in range(per_rank):
        noisy, sigma, condition, target = sample(100 * step + micro * engine.ranks + engine.rank)
        with engine.accumulate(last=micro == per_rank - 1):
            prediction = engine.forward(noisy, sigma, condition, 1.0)
            engine.backward((prediction - target).square().mean() / SAMPLES)


def train_step(engine: Engine, ema: Ema, step: int) -> float:
    engine.zero_grad()
    backward(engine, step)
    norm = engine.clip(CLIP)
    engine.step(OPTIONS.lr / (1 + step))
    ema.update()
    return norm


def spoiled_norm(engine: Engine) -> float:
    """The norm of gradients of which the last rank's are not finite."""
    noisy, sigma, condition, _ = sample(0)
    with engine.accumulate(last=True):
        loss = engine.forward(noisy, sigma, condition, 1.0).square().mean()
        engine.backward(loss * float("nan") if engine.rank == engine.ranks - 1 else loss)
    return engine.clip(CLIP)


def gradients(engine: Engine) -> dict[str, Tensor]:
    """The whole gradients of the named parameters, after the last micro-batch and before the step."""
    if engine.kind.startswith("zero"):
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(parameter) for name, parameter in engine.named.items()}
    grads = {name: parameter.grad for name, parameter in engine.named.items()}
    return {name: grad.full_tensor() if engine.kind == "fsdp2" else grad for name, grad in grads.items()}


def predicted(engine: Engine) -> Tensor:
    """A forward pass without a backward one, as in validation."""
    noisy, sigma, condition, _ = sample(7)
    with torch.no_grad():
        return engine.forward(noisy, sigma, condition, 1.0).clone()


def mixed_step(accelerator: Any) -> dict[str, Tensor]:
    """Weights after a step under bfloat16 autocast with a frozen layer in bfloat16."""
    small = Mixed()
    engine = build_engine(accelerator, small, dict(small.trained.named_parameters(prefix="trained")), OPTIONS)
    engine.zero_grad()
    values = torch.randn(2, 6, generator=torch.Generator().manual_seed(3))
    was = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", engine.kind.startswith("zero"))  # what DeepSpeed looks at, on a GPU
    with engine.accumulate(last=True), torch.autocast("cpu", torch.bfloat16):
        output = engine.forward(values)
        assert output.dtype == torch.bfloat16, output.dtype
        engine.backward(output.float().square().mean() / engine.ranks)
    torch.set_autocast_enabled("cuda", was)
    engine.clip(CLIP)
    engine.step(OPTIONS.lr)
    return engine.trained_state()


def facts(engine: Engine, norms: list[float]) -> dict[str, Any]:
    """What kind of engine it is, and how much of everything this rank holds."""
    states = [value for entry in engine.optimiser.state.values() for value in entry.values()]
    local = [value.to_local() if hasattr(value, "to_local") else value for value in states]
    return {
        "kind": engine.kind,
        "ranks": engine.accelerator.num_processes,
        "device": engine.accelerator.device.type,
        "norms": norms,
        "parameters": sum(tensor.numel() for tensor in engine.local_parameters().values()),
        "held": sum(
            (parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel()
            for parameter in engine.named.values()
        ),
        "optimiser": sum(value.numel() for value in local if isinstance(value, Tensor) and value.dim()),
    }


def first(engine: Engine, ema: Ema, checkpoints: Checkpoints) -> tuple[dict[str, Tensor], list[float]]:
    """Two steps, a checkpoint, a step that is left out, a look at the average, and a third step."""
    backward(engine, 0)
    found = {f"gradient/{name}": grad.clone() for name, grad in gradients(engine).items()}
    engine.zero_grad()
    spoiled = spoiled_norm(engine)
    engine.zero_grad()  # leaves a step out: nothing of it may remain
    norms = [spoiled, *(train_step(engine, ema, step) for step in range(STEPS - 1))]
    checkpoints.save(STEPS - 1, {"step": STEPS - 1, "config": {}}, engine, ema)
    before = predicted(engine)
    with engine.averaged(ema):
        averaged = predicted(engine)
    found |= {"prediction": before, "averaged": averaged, "after": predicted(engine)}
    norms.append(train_step(engine, ema, STEPS - 1))
    return found, norms


def again(engine: Engine, ema: Ema, checkpoints: Checkpoints) -> tuple[dict[str, Tensor], list[float]]:
    """Load the checkpoint and take the third step."""
    newest = checkpoints.latest()
    assert newest is not None
    state = checkpoints.load(newest, engine, ema)
    found = {"prediction": predicted(engine)}
    return found, [train_step(engine, ema, state["step"])]


def run(out: Path, action: str) -> None:
    """One kind, in this process."""
    out.mkdir(exist_ok=True)
    accelerator = make_accelerator()
    editor = model()
    parameters = dict(editor.named_parameters())
    editor.requires_grad_(False)
    named = {name: parameters[name].requires_grad_() for name in trainable(editor, "joint")}
    engine = build_engine(accelerator, editor, named, OPTIONS)
    ema = Ema(engine.local_parameters(), 0.5)
    checkpoints = Checkpoints(out, 2, engine.rank, engine.ranks)
    found, norms = {"first": first, "again": again}[action](engine, ema, checkpoints)
    checkpoints.wait()
    found |= {f"weight/{name}": tensor for name, tensor in engine.trained_state().items()}
    found |= {f"ema/{name}": tensor for name, tensor in engine.gather(ema.state()).items()}
    described = facts(engine, norms)
    name = f"{action}-{engine.ranks}-{engine.rank}"
    if action == "first":
        found |= {f"mixed/{name}": tensor for name, tensor in mixed_step(accelerator).items()}
    save_file({key: tensor.contiguous() for key, tensor in found.items()}, out / f"{name}.safetensors")
    (out / f"{name}.json").write_text(json.dumps(described))


def environment(kind: str) -> dict[str, str]:
    """What accelerate's launcher sets for a kind, on the CPU."""
    if kind.startswith("zero"):
        return {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": kind[-1]}
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if kind == "fsdp2" else {}
    return {"ACCELERATE_USE_CPU": "true", **fsdp}


def forked_ranks(out: Path, action: str, kinds: Sequence[str], ranks: int) -> None:
    """Run the action for every kind in turn, in the same new processes. Raises RuntimeError with a rank's traceback."""
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ |= {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            os._exit(_rank(out, action, kinds, out / f"{action}-{ranks}-{rank}.log"))
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        logs = [(out / f"{action}-{ranks}-{rank}.log").read_text() for rank in range(ranks)]
        raise RuntimeError(f"exit codes {codes}\n" + "\n".join(logs))


def _rank(out: Path, action: str, kinds: Sequence[str], log: Path) -> int:
    """What a fork does; returns its exit code."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w")
    try:
        for kind in kinds:
            AcceleratorState._reset_state(reset_partial_state=True)
            for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
                del os.environ[name]
            os.environ.update(environment(kind))
            run(out / kind, action)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the fork must not return into the tests
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0
