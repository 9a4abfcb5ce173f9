"""What is shipped, and what a newcomer's machine needs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings tomli on 3.10
    import tomli as tomllib

PACKAGES = ("logscope", "parsers", "reference_engine")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked() -> list[Path]:
    """Files of the project: what git knows, or everything but what tools made, outside a clone."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30
        ).stdout.decode()
        return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [
            p
            for p in ROOT.rglob("*")
            if p.is_file() and not any(part.startswith(".") for part in p.relative_to(ROOT).parts)
        ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(ROOT),
    ]
    subprocess.run(build, check=True, timeout=300)
    return zipfile.ZipFile(next(out.glob("logscope-*.whl")))


def test_the_wheel_holds_the_packages_their_types_templates_and_tables(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tree = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert "logscope/output/report/template.html.j2" in held
    assert held == tree


def test_the_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    [points] = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "logscope = logscope.commands.cli:main" in wheel.read(points).decode()
    assert [n for n in wheel.namelist() if n.endswith("licenses/LICENSE")]


def test_every_import_is_declared() -> None:
    project = PROJECT["project"]
    extras = [group for name, group in project["optional-dependencies"].items() if name != "dev"]
    declared = [*project["dependencies"], *(name for group in extras for name in group)]
    allowed = {re.split(r"[^A-Za-z0-9_-]", name)[0].replace("-", "_") for name in declared}
    allowed |= set(PACKAGES)
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        if name.split(".")[0] not in sys.stdlib_module_names and name.split(".")[0] not in allowed
    }
    assert foreign == set()


def test_no_path_of_a_developers_machine_is_in_the_tree() -> None:
    marks = (str(ROOT).encode(), str(Path.home()).encode() + b"/")
    named = [str(path.relative_to(ROOT)) for path in tracked() if any(mark in path.read_bytes() for mark in marks)]
    assert named == []


def test_samples_are_small_and_each_is_explained() -> None:
    explained = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    logs = [p for p in (ROOT / "samples").iterdir() if p.name != "README.md"]
    assert len(logs) >= 4
    assert [p.name for p in logs if p.name not in explained or p.stat().st_size > 250_000] == []


def test_the_version_has_one_home_and_the_changelog_knows_it() -> None:
    from logscope import __version__

    assert PROJECT["project"]["dynamic"] == ["version"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


RECIPE = ROOT / "docs" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """The recipe's steps: (word, the rest), with continued lines joined."""
    text = RECIPE.read_text(encoding="utf-8").replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, rest in steps]


def test_the_image_is_built_from_pinned_bases_and_runs_as_nobody_special() -> None:
    steps = instructions()
    words = {word for word, _ in steps}
    assert words <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}
    bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
    least = re.search(r"(\d+)\.(\d+)", PROJECT["project"]["requires-python"])
    for base in bases:
        tag = re.fullmatch(r"python:(\d+)\.(\d+)-slim", base)
        assert tag, base
        assert least
        assert (int(tag[1]), int(tag[2])) >= (int(least[1]), int(least[2]))
    last = [(word, rest) for word, rest in steps[max(i for i, (word, _) in enumerate(steps) if word == "FROM") :]]
    assert [rest for word, rest in last if word == "USER"][-1] not in ("root", "0")
    assert ("ENTRYPOINT", '["logscope"]') in last
    assert all("--no-cache-dir" in rest for word, rest in steps if word == "RUN" and " pip " in rest)


def copied() -> list[str]:
    """What the recipe takes from the tree."""
    return [
        name.rstrip("/")
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    ]


def test_what_the_image_takes_is_there_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert copied()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored


def test_what_the_image_takes_makes_the_whole_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The recipe's own steps, in a folder that holds nothing else."""
    source = tmp_path / "src"
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."]
    subprocess.run([str(part) for part in build], cwd=source, check=True, timeout=300)
    with zipfile.ZipFile(next(tmp_path.glob("logscope-*.whl"))) as made:
        assert sorted(made.namelist()) == sorted(wheel.namelist())
