"""What a message family's table is made of: one `Format` a line of text, and the `Match` that reading it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parsers.families.formats import anchor_of, compile_template

__all__ = ["Fields", "Format", "Match", "Reader"]

_LOG_PREFIX = "{log_prefix}"
_NEEDLE_WITHIN = 4000  # characters

Fields = dict[str, object]
Reader = Callable[[str], "Fields | None"]


@dataclass(frozen=True, slots=True)
class Match:
    """A record's text, understood: `prompt_fields` names those of `fields` that hold users' text."""

    family: str
    variant: str
    fields: Fields
    prompt_fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Format:
    """One format of one family, declared once: it both reads lines and is listed by `logscope formats`.

    `engine` is `V0`, `V1` or `any`; `versions` is `first..last` of the releases that print it; `template` is in the
    language of `parsers.families.formats`. `read` takes over where a template does not suffice (key/value lines):
    it gets the whole message and gives its fields or None; the template's literal beginning still dispatches.
    `per_engine` True asks for the `Engine 000: ` (or `4 Engines Aggregated: `) in front, False for none; that prefix is
    taken off before the template is tried, and its numbers are among the match's fields. `foreign` text is printed by
    others (uvicorn), so it needs no record prefix of vLLM's.
    """

    family: str
    variant: str
    engine: str
    versions: str
    level: str
    template: str
    example: str
    read: Reader | None = None
    anchor: str = ""
    per_engine: bool | None = None
    foreign: bool = False
    prompt_fields: frozenset[str] = field(default=frozenset())

    @property
    def first(self) -> str:
        """The first release that prints it."""
        return self.versions.split("..")[0]

    @property
    def last(self) -> str:
        """The last release that prints it."""
        return self.versions.split("..")[-1]

    @property
    def raised(self) -> bool:
        """Whether the text is that of an exception, so that a traceback may end in it."""
        return self.level.startswith("raise")

    @property
    def keeps_prefix(self) -> bool:
        """Whether the engine prefix is itself a field, `log_prefix`."""
        return self.template.startswith(_LOG_PREFIX)

    @property
    def body(self) -> str:
        """The template without `{log_prefix}`."""
        return self.template.removeprefix(_LOG_PREFIX)

    @property
    def floating(self) -> bool:
        """Whether the text begins with a field, so that its first word does not tell the format."""
        return self.body.startswith(("{", "[["))

    @property
    def needle(self) -> str:
        """A literal that each line of this format holds."""
        return self.anchor or anchor_of(self.body)

    def fields(self, text: str) -> Fields | None:
        """The fields of a message of this format, or None where `text` is another message."""
        if self.read is not None:
            return self.read(text) if self.needle in text[:_NEEDLE_WITHIN] else None
        return compile_template(self.body).read(text)
