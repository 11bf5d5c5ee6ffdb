"""Scripts: rules that choose the steps of a turn by the newest user text, in Python, JSON or YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from answerback.harness.errors import ScriptError
from answerback.harness.models.steps import Call, Calls, FailSession, Reason, Say, Sleep, Step, fail
from answerback.harness.records import is_array, is_object

LATER_STEPS = ("program", "search", "mcp", "subagent", "environment")
"""Steps of the script language whose features this harness does not have."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Steps, and the text that chooses them."""

    steps: tuple[Step, ...]
    when: str | None = None
    """A case-insensitive regular expression searched in the newest user text; None matches any."""
    once: bool = False
    """Whether the rule is used up by its first turn."""

    def matches(self, text: str) -> bool:
        """Tell whether the rule is for this text."""
        return self.when is None or re.search(self.when, text, re.IGNORECASE) is not None


class Script:
    """The rules of a scripted model; the first that matches gives a turn's steps."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def __repr__(self) -> str:
        return f"<Script {len(self.rules)} rules>"

    @classmethod
    def from_data(cls, data: Any) -> Script:
        """Read a script from parsed JSON or YAML.

        Raises:
            ScriptError: naming the place, for anything that is not a script.
        """
        document = _mapping(data, "script", allowed=("rules",))
        rules = document.get("rules")
        if not is_array(rules):
            raise ScriptError("script.rules must be a list of rules")
        return cls(*(_rule(entry, f"rules[{n}]") for n, entry in enumerate(rules)))

    @classmethod
    def from_text(cls, text: str) -> Script:
        """Read a script from JSON or YAML text (YAML reads both)."""
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ScriptError(f"the script is neither JSON nor YAML: {error}") from error
        return cls.from_data(data)

    @classmethod
    def from_file(cls, path: str | Path) -> Script:
        """Read a script from a JSON or YAML file; blocks while reading."""
        return cls.from_text(Path(path).read_text(encoding="utf-8"))


def rule(when: str | Step | None = None, /, *steps: Step, once: bool = False) -> Rule:
    """Build a rule: an optional regular expression, then steps.

    Raises:
        ScriptError: for an expression that does not compile.
    """
    if when is not None and not isinstance(when, str):
        return Rule(steps=(when, *steps), once=once)
    return Rule(when=_pattern(when, "rule") if when is not None else None, steps=steps, once=once)


def _rule(data: Any, path: str) -> Rule:
    entry = _mapping(data, path, allowed=("when", "steps", "once"))
    steps = entry.get("steps")
    if not is_array(steps):
        raise ScriptError(f"{path}.steps must be a list of steps")
    when = entry.get("when")
    return Rule(
        when=_pattern(when, f"{path}.when") if when is not None else None,
        steps=tuple(_step(step, f"{path}.steps[{n}]") for n, step in enumerate(steps)),
        once=bool(entry.get("once", False)),
    )


def _step(data: Any, path: str) -> Step:
    entry = _mapping(data, path, allowed=None)
    kinds = [key for key in entry if key != "phase"]
    later = next((name for name in LATER_STEPS if name in entry), None)
    if later is not None:
        raise ScriptError(f"{path}: the step {later!r} is not supported by this harness")
    step = _read_step(kinds[0], entry[kinds[0]], entry.get("phase"), path) if len(kinds) == 1 else None
    if step is None:
        raise ScriptError(f"{path} is no step; use say, reason, call, sleep, fail or fail_session")
    return step


def _read_step(kind: str, value: Any, phase: Any, path: str) -> Step | None:
    if phase is not None and kind != "say":
        return None
    if kind == "call" and is_object(value):
        # One call needs no list around it.
        return Calls((_call(value, f"{path}.call"),))
    if kind == "call" and is_array(value) and value:
        return Calls(tuple(_call(one, f"{path}.call[{n}]") for n, one in enumerate(value)))
    if kind == "fail" and is_object(value):
        fields = _mapping(value, f"{path}.fail", allowed=("code", "message"))
        return fail(str(fields.get("code", "server_error")), str(fields.get("message", "The model failed.")))
    match kind, value:
        case "say", str() if phase in (None, "commentary", "final_answer"):
            return Say(value, phase)
        case "reason", str():
            return Reason(value)
        case "sleep", int() | float() if not isinstance(value, bool):
            return Sleep(float(value))
        case "fail_session", str():
            return FailSession(value)
        case _:
            return None


def _call(data: Any, path: str) -> Call:
    entry = _mapping(data, path, allowed=("name", "arguments", "call_id"))
    name, arguments, call_id = entry.get("name"), entry.get("arguments", {}), entry.get("call_id")
    if not isinstance(name, str) or not isinstance(arguments, dict) or not isinstance(call_id, str | None):
        raise ScriptError(f"{path} needs a name, and may have arguments (an object) and a call_id")
    return Call(name, dict(_mapping(arguments, f"{path}.arguments", allowed=None)), call_id)


def _mapping(data: Any, path: str, *, allowed: Sequence[str] | None) -> Mapping[str, Any]:
    if not is_object(data):
        raise ScriptError(f"{path} must be an object")
    unknown = [key for key in data if allowed is not None and key not in allowed]
    if unknown:
        raise ScriptError(f"{path} has an unknown key {unknown[0]!r}; known are {', '.join(allowed or ())}")
    return data


def _pattern(when: Any, path: str) -> str:
    if not isinstance(when, str):
        raise ScriptError(f"{path} must be a regular expression")
    try:
        re.compile(when, re.IGNORECASE)
    except re.error as error:
        raise ScriptError(f"{path} is no regular expression: {error}") from error
    return when
