"""Three packages, one direction: logscope sees parsers and reference_engine; neither sees the other, nor logscope.

Within a package the rooms (folders) have an order too: a module imports from its own room and from those that stand before it in `ROOMS`,
whether it does so when it is loaded, inside a function, or for a type alone.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAY_SEE = {"parsers": set(), "reference_engine": set(), "logscope": {"parsers", "reference_engine"}}
# What an engine that knows no logs, and parsers that draw nothing, have no use for.
NEVER = {
    "parsers": {"click", "rich", "plotly", "jinja2"},
    "reference_engine": {"click", "rich", "plotly", "jinja2", "regex", "zstandard"},
    "logscope": set(),
}

# From the ground up. A module at a package's door is a room of its own.
ROOMS = {
    "parsers": ("lines", "families", "envelopes", "records", "sources", "reading", "reading.in_bulk"),
    "reference_engine": ("model", "cost", "v1", "v0", "replay", "sketch", "traces"),
    "logscope": (
        *("sanitize", "wording", "errors", "atomic_files"),
        *("server", "evidence", "log", "log.state"),
        *("inference", "inference.steps", "inference.windows"),
        *("diagnosis", "diagnosis.findings", "analysis"),
        *("witness", "execution", "output.report", "output", "comparison", "live", "output.terminal"),
        "commands",
    ),
}
DOORS = {
    "parsers": {"lines"},
    "reference_engine": set(),
    "logscope": {"analysis", "atomic_files", "comparison", "errors", "sanitize", "wording"},
}
MOST_MODULES = 14  # a folder; a newcomer should see about ten names


def module_name(path: Path, root: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, *, package: bool) -> list[tuple[str, list[str]]]:
    """(module, names taken from it) of every import in it, also those inside functions; relative ones resolved."""
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                drop = node.level - 1 if package else node.level
                base = ".".join([*parents[: len(parents) - drop], *([base] if base else [])])
            found.append((base, [alias.name for alias in node.names]))
    return found


def modules(room: str, root: Path = ROOT) -> dict[str, Path]:
    return {module_name(path, root): path for path in sorted((root / room).rglob("*.py"))}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def graph(room: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Module → modules of the same package that it imports, also those it needs for a type alone."""
    known = modules(room, root)
    edges: dict[str, set[str]] = {}
    for module, path in known.items():
        tree = parsed(path)
        edges[module] = set()
        for base, names in imports_of(tree, module, package=path.name == "__init__.py"):
            candidates = [f"{base}.{name}" for name in names]
            targets = {c for c in candidates if c in known}
            if len(targets) < max(1, len(names)) and base in known:
                targets.add(base)
            # what a package re-exports at its door is no need of its parts
            edges[module] |= {t for t in targets if t != module and not module.startswith(f"{t}.")}
    return edges


def circle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for target in sorted(edges[module]):
            if found := visit(target):
                return found
        path.pop()
        done.add(module)
        return []

    for module in edges:
        if found := visit(module):
            return found
    return []


@pytest.mark.parametrize("room", MAY_SEE)
def test_a_room_sees_only_the_rooms_below_it(room: str) -> None:
    forbidden = (set(MAY_SEE) - MAY_SEE[room] - {room}) | NEVER[room]
    seen = [
        f"{module} imports {base}"
        for module, path in modules(room).items()
        for base, _ in imports_of(parsed(path), module, package=path.name == "__init__.py")
        if base.split(".")[0] in forbidden
    ]
    assert modules(room)
    assert seen == []


@pytest.mark.parametrize("room", MAY_SEE)
def test_imports_run_downhill_without_circles(room: str) -> None:
    assert " → ".join(circle(graph(room))) == ""


def room_of(module: str) -> str:
    """The room of a module below its package: its folder, or its own name where it stands at the package's door."""
    inside = module.split(".")[1:]
    path = ROOT.joinpath(*module.split("."))
    return ".".join(inside if path.is_dir() or len(inside) == 1 else inside[:-1])


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_from_rooms_below_them(package: str) -> None:
    place = {room: index for index, room in enumerate(ROOMS[package])}
    uphill = [
        f"{module} imports {target}"
        for module, targets in graph(package).items()
        if room_of(module) not in ("", "__main__")
        for target in targets
        if room_of(target) and place[room_of(module)] < place[room_of(target)]
    ]
    assert uphill == []


@pytest.mark.parametrize("package", ROOMS)
def test_the_rooms_are_those_of_the_order_and_none_is_crowded(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    inside = {".".join(folder.relative_to(ROOT / package).parts) for folder in folders} - {""}
    assert inside | DOORS[package] == set(ROOMS[package])
    at_door = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert at_door == DOORS[package]
    crowded = [folder for folder in folders if len(list(folder.glob("*.py"))) - 1 > MOST_MODULES]
    assert crowded == []


@pytest.mark.parametrize("room", MAY_SEE)
def test_every_module_says_what_it_is(room: str) -> None:
    assert [m for m, path in modules(room).items() if not ast.get_docstring(parsed(path))] == []


def test_the_rule_catches_a_circle_and_an_import_uphill(tmp_path: Path) -> None:
    room = tmp_path / "parsers"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "a.py").write_text("from . import b\n")
    (room / "b.py").write_text("def f():\n    from parsers.a import g\n    import logscope.commands.cli\n")
    assert circle(graph("parsers", tmp_path)) == ["parsers.a", "parsers.b", "parsers.a"]
    uphill = imports_of(parsed(room / "b.py"), "parsers.b", package=False)
    assert ("logscope.commands.cli", []) in uphill


def test_the_rooms_are_the_only_packages() -> None:
    tops = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert tops == set(MAY_SEE)
    assert not tops & set(sys.stdlib_module_names)
