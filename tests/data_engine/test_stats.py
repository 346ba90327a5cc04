from pathlib import Path

import pytest
import toy_engine as toy

from editfoundry.core.errors import EditFoundryError
from editfoundry.data_engine.ledger import Commit, Step, replace_file
from editfoundry.data_engine.rundir import RunDir, StageState
from editfoundry.data_engine.stats import stats


def test_counts_shares_and_costs(tmp_path: Path) -> None:
    toy.run_here(toy.write_sources(tmp_path / "src", 6, {2: "odd"}), tmp_path / "run")
    result = stats(RunDir(tmp_path / "run"))
    assert (result.edges, result.pairs, result.pair_shares) == (20, {"add": 5}, {"add": 1.0})
    assert (result.conversations, result.turns) == ({"version_backtracking": 5}, 15)
    assert (result.photographs, result.distinct_scenes, result.large_photographs) == (5, 5, 0)
    assert result.largest_photograph_share == 0.2
    assert result.sizes == {"16x16": 20}
    assert result.area_histogram[5] == 20
    assert sum(result.splits.values()) == 20
    assert result.licences == {"CC0-1.0": 20}
    assert list(result.elapsed_s) == ["ingest", "filter", "catalogue", "instruct", "render", "emit"]
    assert result.proposed_gate_order == ()


def test_cheap_gates_that_refuse_much_come_first(tmp_path: Path) -> None:
    toy.run_here(toy.write_sources(tmp_path / "src", 2), tmp_path / "run")
    run = RunDir(tmp_path / "run")
    state = run.state()
    verify = StageState(name="verify", fingerprint="f" * 16)
    run.save_state(state.model_copy(update={"stages": (*state.stages, verify)}))
    store = run.store("verify", "f" * 16)
    store.commits_folder.mkdir(parents=True)
    for shard in (0, 1):
        steps = {"slow": Step(seconds=9, calls=9, refused=4), "idle": Step(seconds=0.5, calls=5, refused=0),
                 "quick": Step(seconds=0.09, calls=9, refused=4)}
        commit = Commit(stage="verify", fingerprint="f" * 16, shard=shard, inputs=0, accepted=0, rejected=0, outputs=0,
                        digest="", steps=steps)
        replace_file(store.record_path(shard), commit.to_json().encode())
    result = stats(run)
    assert result.proposed_gate_order == ("quick", "idle", "slow")
    gates = {gate.name: gate for gate in result.gates}
    assert (gates["slow"].calls, gates["slow"].refused, gates["slow"].seconds_per_call) == (18, 8, 1.0)
    assert gates["slow"].refusal_rate == pytest.approx(8 / 18, abs=1e-4)


def test_without_a_dataset_there_are_no_stats(tmp_path: Path) -> None:
    with pytest.raises(EditFoundryError, match="has no dataset yet"):
        stats(RunDir(tmp_path))
