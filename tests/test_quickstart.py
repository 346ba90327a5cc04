"""The quickstart command on one photograph, from another directory, as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from editfoundry.photographs import photographs_home
from editfoundry.quickstart import PeakMemory

PHOTOGRAPH = "photographs/coffee.png"
ALLOCATE = "block = b'x' * (80 << 20); print('ready', flush=True); input()"


def test_peak_memory_counts_the_whole_process_tree() -> None:
    with PeakMemory() as alone:
        pass
    with subprocess.Popen([sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with PeakMemory() as during:
            pass
        child.communicate("\n")
    assert alone.peak > 10 << 20
    assert during.peak - alone.peak > 70 << 20


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.skipif(not (photographs_home() / PHOTOGRAPH).is_file(), reason="the quickstart's photographs are not here")
def test_quickstart_makes_a_dataset_and_finds_nothing_to_do_again(tmp_path: Path) -> None:
    source = f'{{path: "{photographs_home() / PHOTOGRAPH}", manifest: data/photographs.yaml}}'
    command = [sys.executable, "-m", "editfoundry", "quickstart", "-o", "run", "--workers", "1", "--json",
               "--set", f"ingest.sources=[{source}]", "--set", "val_fraction=0"]
    first, second = (json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True,
                                               timeout=550).stdout) for _ in range(2))
    index = pq.read_table(tmp_path / first["dataset"] / "index.parquet").to_pylist()
    assert len(index) == first["stats"]["edges"] > 0
    assert sum(first["stats"]["pairs"].values()) == sum(row["conversation_kind"] == "single" for row in index)
    assert (tmp_path / first["report"]).stat().st_size > 100_000
    assert first["workers"] == {"shards": {"worker0": 10}, "changes": 0}
    assert 500 << 20 < first["peak_pss_bytes"] < 4 << 30
    assert second["workers"] == first["workers"]
    assert second["stats"] == first["stats"]
    assert second["peak_pss_bytes"] < first["peak_pss_bytes"]
    editor = first["editor"]
    assert editor["steps"] == second["editor"]["steps"] == 80
    assert editor["loss"][1] < 0.5 * editor["loss"][0]
    assert second["editor"]["loss"] == editor["loss"]
    report = (tmp_path / editor["report"]).read_text("utf-8")
    assert "random-weight miniature" in report
    assert (tmp_path / editor["run"] / "validation" / "grid-00000080.jpg").is_file()
