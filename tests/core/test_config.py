"""Configuration files and overrides: one line that names the file, the key and the nearest valid key, for any input."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from editfoundry.core.config import Config, load_config, read_yaml
from editfoundry.core.errors import ConfigError
from editfoundry.core.yaml_text import MAX_ALIASED


class Part(Config):
    path: str = Field(min_length=1)
    rate: float = 1.0


class Whole(Config):
    seed: int = 0
    name: str = ""
    parts: tuple[Part, ...] = Field(default=(), min_length=1)


def load(tmp_path: Path, text: str | bytes, *overrides: str) -> Whole:
    file = tmp_path / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(Whole, file, overrides)


def refused(tmp_path: Path, text: str | bytes, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{tmp_path / 'c.yaml'}: ")


GOOD = "parts: [{path: a}]\n"


@pytest.mark.parametrize(("text", "message"), [
    (GOOD + "sede: 3", "sede: unknown key; did you mean seed?"),
    ("parts: [{pth: a}]", "parts.0.pth: unknown key; did you mean parts.0.path?"),
    ("parts: [{path: ''}]", "parts.0.path: String should have at least 1 character (got '')"),
    (GOOD + "seed: x", "seed: Input should be a valid integer, unable to parse string as an integer (got 'x')"),
    (GOOD + "zzzzzz: 1", "zzzzzz: unknown key; valid keys: name, parts, seed"),
    ("parts: [{path: a, rate: .nan}]", "parts.0.rate: Input should be a finite number (got 'nan')"),
    ("parts: [{path: a, rate: .inf}]", "parts.0.rate: Input should be a finite number (got 'inf')"),
    (GOOD + "seed: 1\nseed: 2", "not valid YAML: the key 'seed' is given twice"),
    ("- a", "the top level must be a mapping of keys to values"),
    (b"name: \xff\xfe", "not UTF-8 text (byte 6)"),
    ("a: !!python/object/apply:os.system [x]", "not valid YAML: could not determine a constructor for the tag"),
    ("a: [", "not valid YAML: while parsing a flow node"),
    ("a: " + "[" * 3000 + "]" * 3000, "not valid YAML: nested too deeply"),
    ("a: " + "[" * 60 + "]" * 60, "not valid YAML: nested deeper than 50"),
    ("a: &a\n  b: *a", "not valid YAML: an alias contains itself"),
    ("a: 1\n---\nb: 2", "not valid YAML: expected a single document"),
    ("? [a, b]\n: 2", "not valid YAML: while constructing a mapping"),
    ("seed: " + "9" * 5000, "not valid YAML: a value cannot be read"),
    (GOOD + "name: 2020-01-01", "not a configuration: Value 'date' is not a supported primitive type"),
    (GOOD + "name: ${nope}", "Interpolation key 'nope' not found"),
    (GOOD + "name: ${name}", "Recursive interpolation detected"),
])
def test_bad_files_are_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_two_problems_are_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path, "parts: [{path: a}]\nseed: x\nnme: y").count("; ") == 2


def test_aliases_may_save_writing_but_not_multiply(tmp_path: Path) -> None:
    assert load(tmp_path, "x: &p {path: a}\n".replace("x: &p", "parts: [&p") + ", *p]".replace("\n", "")).parts == (
        Part(path="a"), Part(path="a"))
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    assert refused(tmp_path, bomb).endswith(f"values, more than {MAX_ALIASED}")


@pytest.mark.parametrize("override", ["seed", "=3", " =3", "a..b=1", ".=1", ".seed=1", "seed.=1"])
def test_overrides_without_a_key_are_refused(tmp_path: Path, override: str) -> None:
    assert refused(tmp_path, GOOD, override).endswith("expected KEY=VALUE, for example --set seed=7")


@pytest.mark.parametrize(("override", "message"), [
    ("parts.foo=1", "--set parts.foo=1: "),
    ("parts.9.path=x", "--set parts.9.path=x: "),
    ("name=${", "--set name=${: "),
    ("name=!!python/name:os.system x", "--set name=!!python/name:os.system x: could not determine"),
    ("seed=", "seed: Input should be a valid integer (got 'None')"),
    ("parts=3", "parts: Input should be a valid tuple (got '3')"),
])
def test_bad_overrides_are_one_line(tmp_path: Path, override: str, message: str) -> None:
    assert refused(tmp_path, GOOD, override).startswith(message)


def test_overrides_apply_in_order(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD, "seed=1", "parts.0.path=b", "seed=2") == Whole(seed=2, parts=(Part(path="b"),))


@pytest.mark.parametrize("path", ["nowhere.yaml", "", ".", "x" * 5000, "a\0b"])
def test_a_path_that_is_no_file_names_the_packaged_ones(path: Any) -> None:
    with pytest.raises(ConfigError, match=r"no such config file, nor a packaged one; packaged configs: .*quickstart"):
        load_config(Whole, path)


def test_plain_yaml_is_not_interpolated(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: ${oc.env:HOME}")
    assert read_yaml(tmp_path / "a.yaml") == {"name": "${oc.env:HOME}"}


def test_a_config_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\nname: base\nparts: [{path: a}, {path: b}]\n")
    merged = load(tmp_path, "extends: base.yaml\nname: mine\nparts: [{path: c}]\n", "seed=9")
    assert (merged.seed, merged.name, [part.path for part in merged.parts]) == (9, "mine", ["c"])


@pytest.mark.parametrize(("text", "message"), [
    ("extends: c.yaml\n" + GOOD, "extends c.yaml, which extends it"),
    ("extends: nowhere.yaml\n" + GOOD, "nowhere.yaml: no such config file"),
    ("extends: [a]\n" + GOOD, "extends names one other configuration file"),
])
def test_a_config_that_extends_itself_or_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_a_list_over_a_mapping_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("parts: {path: a}\n")
    assert "does not fit over base.yaml" in refused(tmp_path, "extends: base.yaml\nparts: [{path: a}]\n")


@pytest.mark.parametrize(("held", "message"), [
    ("secret:x:0:0\nother:y\n", "not a configuration mapping"),
    ("name: x\nsecret: a: b", "not valid YAML at line 2"),
    ("secret", "not a configuration mapping"),
    ("- secret", "not a configuration mapping"),
    ("name: [secret", "not valid YAML at line 1"),
    ("secret: 1\nsecret: 2", "not valid YAML at line 2"),
    ("secret: 2020-01-01", "not a configuration mapping"),
])
def test_errors_about_an_extended_file_quote_nothing_of_it(tmp_path: Path, held: str, message: str) -> None:
    (tmp_path / "held").write_text(held)
    assert refused(tmp_path, "extends: held\n" + GOOD) == f"{tmp_path / 'held'}: {message}"
