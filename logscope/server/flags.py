"""Which command-line flags and defaults a vLLM version has, so that no flag is ever named that the version lacks.

`flag_for` gives a setting's spelling; defaults that depend on more are in `logscope.server.defaults`. The facts stand in `tables/flags.json`: collected from the
argument parsers and configuration classes of 98 releases, 0.1.0 to 0.33.0. A version between two releases counts as the earlier
one, a newer one as the latest known.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from packaging.version import Version

__all__ = ["ALIASES", "FlagSpelling", "declared_default", "flag_for", "parsed_version", "release_of", "since"]

# Names of `--set` that differ from vLLM's own setting.
ALIASES = {"num_blocks": "num_gpu_blocks_override", "policy": "scheduling_policy"}

# Settings that make the V1 engine of older versions give way to V0 (0.8.0 to 0.10.2): first version that keeps V1.
_V1_SINCE = {"scheduling_policy": "0.9.2", "long_prefill_token_threshold": "0.8.3"}


@lru_cache(maxsize=1024)
def parsed_version(version: str) -> Version:
    """Sorts versions: 0.8.5.dev1 < 0.8.5rc1 < 0.8.5 < 0.8.5.post1 < 0.10.1 < 0.10.1.1. Raises ValueError on other text."""
    return Version(version)


@dataclass(frozen=True, slots=True)
class FlagSpelling:
    """A setting's flag as one version spells it."""

    setting: str
    flag: str
    negation: str | None = None
    values: tuple[str, ...] = ()
    unit: str | None = None
    note: str | None = None
    _boolean: str = "none"

    def text(self, value: object) -> str | None:
        """The flag with its value (`--max-num-seqs 12`, `--no-enable-chunked-prefill`), or None where it cannot say it."""
        if self._boolean == "none" or not isinstance(value, bool):
            return None if value is None else f"{self.flag} {value}"
        if value:
            return self.flag
        if self._boolean == "equals":
            return f"{self.flag}=False"
        return self.negation


@cache
def _table() -> dict[str, Any]:
    text = resources.files("logscope.server").joinpath("flags.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def _releases() -> tuple[tuple[Version, str], ...]:
    return tuple((parsed_version(release), release) for release in _table()["releases"])


@cache
def release_of(version: str) -> str | None:
    """The known release whose facts hold for `version`: itself, else the last one before it; None before the first."""
    try:
        key = parsed_version(version)
    except ValueError:
        return None
    best = None
    for release_key, release in _releases():
        if release_key <= key:
            best = release
    return best


def _within(release: str, versions: str) -> bool:
    """Whether a release is in ranges such as `0.2.0..0.5.2,0.10.0..0.33.0`."""
    key = parsed_version(release)
    for part in versions.split(" ")[0].split(","):
        first, _, last = part.partition("..")
        if parsed_version(first) <= key <= parsed_version(last or first):
            return True
    return False


def since(release: str, version: str) -> bool:
    """Whether a release is `version`, or later."""
    return parsed_version(release) >= parsed_version(version)


def declared_default(setting: str, release: str) -> str | None:
    """The default as the release's source declares it (an expression's text), or None where it lacks the setting."""
    entry = _table()["settings"].get(setting)
    for versions, default in entry["defaults"] if entry else ():
        if _within(release, versions):
            text: str = default
            return text
    return None


def flag_for(setting: str, version: str | None, *, engine: str | None = None) -> FlagSpelling | None:
    """The flag for a setting (also by its `--set` name) in a version, or None where that version has none.

    With `engine` (`V0`, `V1`) it is None too where the flag has no effect on that engine, or would make a V1 server fall back to
    V0. Without a version only a flag counts that all releases of the engine since 0.8.0 (V0: 0.6.3 to 0.10.2) spell alike.
    """
    setting = ALIASES.get(setting, setting)
    entry = _table()["settings"].get(setting)
    if entry is None:
        return None
    if version is None:
        return _common_flag(setting, engine)
    release = release_of(version)
    if release is None or (engine is not None and not _works_on(entry, setting, release, engine)):
        return None
    for versions, spellings in entry["flags"]:
        if _within(release, versions):
            return _spelling(setting, entry, spellings, release, engine)
    return None


def _common_flag(setting: str, engine: str | None) -> FlagSpelling | None:
    first, last = ("0.6.3", "0.10.2") if engine == "V0" else ("0.8.0", _table()["releases"][-1])
    found = {
        flag_for(setting, release, engine=engine)
        for key, release in _releases()
        if parsed_version(first) <= key <= parsed_version(last)
    }
    spellings = {None if spelling is None else spelling.flag for spelling in found}
    return flag_for(setting, last, engine=engine) if None not in spellings and len(spellings) == 1 else None


def _works_on(entry: dict[str, Any], setting: str, release: str, engine: str) -> bool:
    only = entry.get("engine", "")
    if engine == "V1":
        first = _V1_SINCE.get(setting)
        return not only.startswith("V0 only") and (first is None or since(release, first))
    also_v0 = re.search(r"and V0 ([\d.]+)", only)
    return not only.startswith("V1") or (also_v0 is not None and also_v0[1] == release)


def _spelling(
    setting: str, entry: dict[str, Any], spellings: list[str], release: str, engine: str | None
) -> FlagSpelling:
    # Aliases: the one that is the setting's own name, else the first long one.
    own = "--" + setting.replace("_", "-")
    flag = own if own in spellings else next((s for s in spellings if s.startswith("--")), spellings[0])
    negation = entry.get("negation")
    boolean = "none"
    if negation is not None:
        # `--x` alone, then (enable_chunked_prefill) `--x=False`, then `--no-x`.
        can_negate = since(release, "0.6.5" if setting == "enable_prefix_caching" else "0.8.5")
        boolean = "switch"
        if setting == "enable_chunked_prefill":
            boolean = "equals" if since(release, "0.5.3") and not can_negate else "switch"
            # V1 ignores a False until 0.11.0.
            if engine == "V1" and not since(release, "0.11.1"):
                can_negate, boolean = False, "switch"
        negation = negation if can_negate else None
    elif any(default == "False" for _, default in entry["defaults"]):
        boolean = "switch"
    return FlagSpelling(
        setting, flag, negation, tuple(entry.get("values", ())), entry.get("unit"), entry.get("note"), boolean
    )
