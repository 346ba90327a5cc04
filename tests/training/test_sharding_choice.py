"""What the launcher asked for is what is built, or is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.utils import DistributedType

from editfoundry.core.errors import UsageError
from editfoundry.training.sharding import engine_kind, make_accelerator


def asked(kind: DistributedType, **config: Any) -> Any:
    """An accelerator as far as the choice looks at it."""
    return SimpleNamespace(distributed_type=kind, deepspeed_plugin=SimpleNamespace(deepspeed_config=config))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS"):
        monkeypatch.delenv(name, raising=False)


def test_each_kind_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_kind(asked(DistributedType.NO)) == "none"
    assert engine_kind(asked(DistributedType.MULTI_CPU)) == engine_kind(asked(DistributedType.MULTI_GPU)) == "ddp"
    for stage in (1, 2, 3):
        config = {
            "zero_optimization": {"stage": stage, "offload_param": {"device": "none"}},
            "bf16": {"enabled": False},
        }
        assert engine_kind(asked(DistributedType.DEEPSPEED, **config)) == f"zero{stage}"
    assert engine_kind(asked(DistributedType.FSDP)) == "fsdp2"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert engine_kind(asked(DistributedType.MULTI_CPU)) == "fsdp2"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"zero_optimization": {"stage": 0}}, "stage is 0"),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, "bf16 is on: trained weights stay float32"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer is on"),
    ],
)
def test_deepspeed_settings_that_are_not_built_for_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine_kind(asked(DistributedType.DEEPSPEED, **config))


@pytest.mark.parametrize(("name", "value"), [("FSDP_VERSION", "1"), ("FSDP_OFFLOAD_PARAMS", "true")])
def test_fsdp_settings_that_are_not_built_for_are_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="fsdp_version 2 without fsdp_offload_params"):
        engine_kind(asked(DistributedType.FSDP))


def test_other_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="MULTI_XPU"):
        engine_kind(asked(DistributedType.MULTI_XPU))


def test_deepspeed_that_accelerate_would_leave_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(UsageError, match="leaves DeepSpeed out where ACCELERATE_USE_CPU is set"):
        make_accelerator()
