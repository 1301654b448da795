"""Options: csrc/core/options.def as a Python dataclass (a test compares their fields).

Precedence: arguments of enable(), then GPUMEM_ALLOC_CONF="key:value,key:value", then defaults. A
preset only changes defaults, wherever it stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import OptionError

ENVIRONMENT = "GPUMEM_ALLOC_CONF"


_OF_PRESET: Any = None  # the default of every field but one: what the preset says


@dataclass(frozen=True)
class Options:
    """Every option; `gpumem_alloc._C.option_table()` has units, ranges and a sentence for each.

    A field that is not given holds what `preset` gives it. Raises OptionError for a preset that
    does not exist; other values are checked when they are put in force.
    """

    preset: str = "balanced"
    strategy: str = _OF_PRESET
    isolation: str = _OF_PRESET
    guard: str = _OF_PRESET
    guard_alignment: int = _OF_PRESET
    redzone_bytes: int = _OF_PRESET
    quarantine_gb: int = _OF_PRESET
    poison: str = _OF_PRESET
    scrub: str = _OF_PRESET
    mapping_thread: str = _OF_PRESET
    on_violation: str = _OF_PRESET
    slack_percent: float = _OF_PRESET
    stream_slack_mb: int = _OF_PRESET
    max_chunk_mb: int = _OF_PRESET
    chunk_divisor: int = _OF_PRESET
    cross_stream: str = _OF_PRESET
    limit_mb: int = _OF_PRESET
    max_split_size_mb: int = _OF_PRESET
    roundup_power2_divisions: str = _OF_PRESET
    max_non_split_rounding_mb: int = _OF_PRESET
    large_segment_size_mb: int = _OF_PRESET
    garbage_collection_threshold: float = _OF_PRESET
    event_ring_entries: int = _OF_PRESET

    def __post_init__(self) -> None:
        given = _parse(f"preset:{self.preset}")
        for field in fields(self):
            if getattr(self, field.name) is _OF_PRESET:
                object.__setattr__(self, field.name, given[field.name])

    def __str__(self) -> str:
        """In the form that GPUMEM_ALLOC_CONF takes."""
        return ",".join(f"{key}:{value}" for key, value in vars(self).items() if value != "")


def options() -> Options:
    """Return the options in force, or those that the allocator would be made with now."""
    return Options(**_C.options_in_force())


def split(text: str) -> dict[str, str]:
    """Split "key:value,key:[a:1,b:2]" at the commas outside brackets.

    What is no pair becomes a key with an empty value, for the parser to name.
    """
    pairs: dict[str, str] = {}
    depth, start = 0, 0
    for at, character in enumerate(text + ","):
        depth += (character == "[") - (character == "]")
        if character == "," and (depth <= 0 or at == len(text)):
            key, _, value = text[start:at].partition(":")
            if key.strip() or value:
                pairs[key.strip()] = value.strip()
            start = at + 1
    return pairs


def resolve(arguments: Mapping[str, object]) -> str:
    """Return arguments over the environment, as text for the compiled parser.

    An argument of None counts as not given. Raises OptionError for unknown keys and bad values.
    """
    given = {key: _text(key, value) for key, value in arguments.items() if value is not None}
    pairs = {**split(os.environ.get(ENVIRONMENT, "")), **given}
    text = ",".join(f"{key}:{value}" for key, value in pairs.items())
    _parse(text)
    return text


def _parse(text: str) -> dict[str, Any]:
    """Return every option's value; raises OptionError."""
    try:
        return dict(_C.parse_options(text))
    except _C.StatusError as error:
        raise OptionError(error.args[1]) from None


def _text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise OptionError(
            f"option {key}: {value!r} is a {type(value).__name__}.\n"
            "Options are numbers or text.\n"
            f'Give it as in {ENVIRONMENT}="{key}:value".'
        )
    text = str(value)
    if "," in text and not (text.startswith("[") and text.endswith("]")):
        raise OptionError(
            f"option {key}: {text!r} has a comma.\n"
            "A comma ends a value, except between brackets.\n"
            "Give each option as an argument of its own."
        )
    return text
