"""`editfoundry doctor`: what is installed, which weights are present, and what each enables.

A part that is absent is a fact; a part of the embedded stack that is missing from the installation, outside its version
range, not importable or damaged is a fault, and makes the exit code 1. Weights not pulled yet are a fact.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.box import SIMPLE
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table

from editfoundry import __version__
from editfoundry.core.errors import ModelMissing
from editfoundry.models.store import ModelCorruptError, Store
from editfoundry.photographs import photographs_home, read_lock

IMPORT_SECONDS = 120
EXTRAS = {"full": "the full-size models", "train": "training the editor", "eval": "evaluation",
          "rate": "the rating page", "ray": "running on a Ray cluster", "dev": "tests and checks",
          "docs": "these documents as a site",
          "quantised": "renderers and optimisers in 8 or 4 bits, on a GPU", "sam2": "the original SAM 2 package",
          "yolo": "exporting YOLO-World (AGPL-3.0)"}
PROGRAMS = {"chromium": "the tests that look at pages in a browser",
            "apt-get": "photographs and cut-outs from Debian packages",
            "dpkg-deb": "reading them without installing"}
IMPORTER = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        fault = ""
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    print(json.dumps([name, fault]), flush=True)
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False) -> None:
    """Say what is installed, which weights are present, and what each enables; exit 1 if a needed part is broken."""
    findings = examine(Store())
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        _show(findings)
    raise typer.Exit(1 if findings["faults"] else 0)


def examine(store: Store) -> dict[str, Any]:
    """Everything the command reports, as plain data; `faults` holds one sentence per broken part."""
    packages = _packages()
    broken = broken_imports([row["name"] for row in packages if row["extra"] == "core" and row["version"]])
    weights = [_weights(store, model) for model in store.manifest.models]
    faults = [f"package {row['name']}: {row['state']}; run `pip install '{row['name']}{row['needs']}'`"
              for row in packages if row["extra"] == "core" and row["state"] != "ok"]
    faults += [f"package {name}: installed, but its import fails ({fault})" for name, fault in broken.items()]
    faults += [row["fault"] for row in weights if row["fault"]]
    return {
        "editfoundry": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": _machine(store.cache_dir),
        "packages": packages,
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "models": {"cache": str(store.cache_dir), "weights": weights},
        "photographs": {"home": str(photographs_home()), "present": _photographs(photographs_home())},
        "faults": faults,
    }


def _packages() -> list[dict[str, str]]:
    """One row per requirement and extra: name, what is needed, the installed version ("" if absent), and its state."""
    rows = []
    offered = metadata.metadata("editfoundry").get_all("Provides-Extra") or []
    for line in metadata.requires("editfoundry") or []:
        requirement = Requirement(line)
        extras = [extra for extra in offered if requirement.marker and requirement.marker.evaluate({"extra": extra})]
        for extra in extras or ["core"]:
            rows.append({"extra": extra, "name": requirement.name, "needs": str(requirement.specifier),
                         **_installed(requirement)})
    return rows


def _installed(requirement: Requirement) -> dict[str, str]:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return {"version": "", "state": "not installed"}
    inside = requirement.specifier.contains(version, prereleases=True)
    return {"version": version, "state": "ok" if inside else f"{version} is outside {requirement.specifier}"}


def broken_imports(distributions: list[str]) -> dict[str, str]:
    """Distributions whose modules cannot be imported, and why. Done in a child, which a broken binary may kill."""
    owners = dict(_modules({str(canonicalize_name(name)): name for name in distributions}))
    child = subprocess.run([sys.executable, "-c", IMPORTER, *owners], capture_output=True, text=True, check=False,
                           timeout=IMPORT_SECONDS)
    answers = dict(json.loads(line) for line in child.stdout.splitlines() if line.startswith("["))
    broken = {owners[module]: fault for module, fault in answers.items() if fault}
    if child.returncode != 0:
        culprit = next(module for module in owners if module not in answers)
        broken[owners[culprit]] = f"the process ended with code {child.returncode}"
    return broken


def _modules(distributions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(module, distribution) of the public top-level modules, or of the private ones where there are no others."""
    found: dict[str, list[str]] = {}
    for module, owners in metadata.packages_distributions().items():
        for owner in {str(canonicalize_name(owner)) for owner in owners} & set(distributions):
            found.setdefault(owner, []).append(module)
    for owner, modules in sorted(found.items()):
        for module in [name for name in modules if not name.startswith("_")] or modules:
            yield module, distributions[owner]


def _weights(store: Store, model: str) -> dict[str, Any]:
    entry = store.manifest.entry(model)
    fault = ""
    try:
        store.path(model)
        present = True
    except ModelMissing:
        present = False
    except ModelCorruptError as error:
        present, fault = False, str(error)
    return {"id": model, "stack": entry.stack, "role": entry.role, "enables": entry.use, "bytes": entry.bytes,
            "present": present, "fault": fault}


def _photographs(home: Path) -> dict[str, dict[str, int]]:
    """By kind (photographs, cutouts, styles, videos): how many of the quickstart's files are here, of how many."""
    present: dict[str, dict[str, int]] = {}
    for name in read_lock().files:
        row = present.setdefault(name.partition("/")[0], {"here": 0, "of": 0})
        row["here"] += (home / name).is_file()
        row["of"] += 1
    return present


def _machine(cache: Path) -> dict[str, Any]:
    """Cores this process may use; bytes of memory, and free on the disks of the model cache and of this directory."""
    memory = psutil.virtual_memory()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    return {"cores": len(os.sched_getaffinity(0)), "memory": memory.total, "memory_available": memory.available,
            "disk_free_cache": shutil.disk_usage(existing).free, "disk_free_here": shutil.disk_usage(Path.cwd()).free}


def _show(findings: dict[str, Any]) -> None:
    console = Console(highlight=False)
    machine = findings["machine"]
    console.print(f"editfoundry {findings['editfoundry']}, Python {findings['python']}, {findings['platform']}")
    console.print(f"{machine['cores']} cores, {decimal(machine['memory'])} memory "
                  f"({decimal(machine['memory_available'])} available), "
                  f"{decimal(machine['disk_free_here'])} free here, "
                  f"{decimal(machine['disk_free_cache'])} free at the model cache")
    _show_packages(console, findings["packages"])
    _show_programs(console, findings["programs"])
    _show_weights(console, findings["models"])
    _show_photographs(console, findings["photographs"])
    for fault in findings["faults"]:
        console.print(f"fault: {fault}", soft_wrap=True)
    console.print("Something the embedded stack needs is broken." if findings["faults"] else "Nothing is broken.")


def _show_packages(console: Console, packages: list[dict[str, str]]) -> None:
    table = Table(Column("extra", no_wrap=True), "installed", "missing", "enables", box=SIMPLE, title="packages",
                  title_justify="left")
    purposes = {"core": "building datasets with the embedded stack", **EXTRAS}
    for extra in dict.fromkeys([*purposes, *(row["extra"] for row in packages)]):
        rows = [row for row in packages if row["extra"] == extra]
        missing = [row["name"] if not row["version"] else f"{row['name']} ({row['state']})"
                   for row in rows if row["state"] != "ok"]
        table.add_row(extra, f"{sum(row['state'] == 'ok' for row in rows)} of {len(rows)}", ", ".join(missing),
                      purposes.get(extra, ""))
    console.print(table)


def _show_programs(console: Console, programs: dict[str, str | None]) -> None:
    table = Table("program", "where", "enables", box=SIMPLE, title="programs", title_justify="left")
    for name, where in programs.items():
        table.add_row(name, where or "not found", PROGRAMS[name])
    console.print(table)


def _show_weights(console: Console, models: dict[str, Any]) -> None:
    for stack in dict.fromkeys(row["stack"] for row in models["weights"]):
        table = Table(Column("role"), Column("model", no_wrap=True), "here", "enables", box=SIMPLE,
                      title=f"weights of the {stack} stack", title_justify="left")
        rows = [row for row in models["weights"] if row["stack"] == stack]
        for row in sorted(rows, key=lambda row: str(row["role"])):
            here = "yes" if row["present"] else "damaged" if row["fault"] else "no"
            table.add_row(row["role"], row["id"], here, row["enables"])
        console.print(table)
    if not all(row["present"] for row in models["weights"] if row["stack"] == "embedded"):
        console.print("`editfoundry models pull` fetches the missing weights of the embedded stack.")


def _show_photographs(console: Console, photographs: dict[str, Any]) -> None:
    counts = ", ".join(f"{row['here']} of {row['of']} {kind}" for kind, row in sorted(photographs["present"].items()))
    console.print(f"quickstart material in {photographs['home']}: {counts}", soft_wrap=True)
    if any(row["here"] < row["of"] for row in photographs["present"].values()):
        console.print("`editfoundry quickstart` fetches what is missing.")
