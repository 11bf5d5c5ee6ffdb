"""The scripted model: plays the rules of a script, with templates filled from what the turn knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from answerback.harness.models.base import ModelRequest
from answerback.harness.models.script import Script
from answerback.harness.models.steps import Call, Calls, Fail, FailSession, Reason, Say, Sleep, Step
from answerback.harness.records import is_array, is_object


class ScriptedModel:
    """Play a script. A text no rule matches is answered by one sentence that says so."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._used: set[int] = set()
        self._templates = Templates()

    def __repr__(self) -> str:
        return f"<ScriptedModel {len(self.script.rules)} rules, {len(self._used)} used up>"

    def resume(self, memories: Iterable[dict[str, Any]]) -> None:
        """Learn from the turns of an earlier process which rules are used up."""
        for memory in memories:
            number = memory.get("rule")
            if isinstance(number, int) and number < len(self.script.rules) and self.script.rules[number].once:
                self._used.add(number)

    async def __call__(self, request: ModelRequest) -> AsyncIterator[Step]:
        """Yield the steps of the rule that is for this turn; a template that cannot be filled fails the turn."""
        steps = self._choose(request)
        last = max((n for n, step in enumerate(steps) if isinstance(step, Say)), default=-1)
        for number, step in enumerate(steps):
            try:
                yield self._fill(step, request, final=number == last)
            except jinja2.TemplateError as error:
                yield Fail("internal_error", f"script template: {error}")
                return

    def _choose(self, request: ModelRequest) -> tuple[Step, ...]:
        chosen = request.memory.get("rule")
        if not isinstance(chosen, int):
            candidates = enumerate(self.script.rules)
            open_rules = ((n, rule) for n, rule in candidates if n not in self._used and rule.matches(request.input))
            chosen = next((n for n, _ in open_rules), None)
            if chosen is None:
                return (Say("The script has no rule for this input."),)
            request.memory["rule"] = chosen
        # A script put in place of another may be shorter than a turn begun under the other remembers.
        if chosen >= len(self.script.rules):
            return (Fail("internal_error", "The script was replaced while this turn ran."),)
        rule = self.script.rules[chosen]
        if rule.once:
            self._used.add(chosen)
        return rule.steps

    def _fill(self, step: Step, request: ModelRequest, *, final: bool) -> Step:
        fill = self._templates
        match step:
            case Say(text, phase):
                return Say(fill.text(text, request), phase or ("final_answer" if final else "commentary"))
            case Reason(text):
                return Reason(fill.text(text, request))
            case Call():
                return fill.call(step, request)
            case Calls(calls):
                return Calls(tuple(fill.call(call, request) for call in calls))
            case Fail(code, message):
                return Fail(code, fill.text(message, request))
            case FailSession(message):
                return FailSession(fill.text(message, request))
            case Sleep():
                return step


class Templates:
    """Jinja2 templates in a sandbox, compiled once; texts without a template cost nothing."""

    def __init__(self) -> None:
        self._environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
        self._compiled: dict[str, jinja2.Template] = {}

    def __repr__(self) -> str:
        return f"<Templates {len(self._compiled)} compiled>"

    def text(self, source: str, request: ModelRequest) -> str:
        """Fill one template.

        Raises:
            jinja2.TemplateError: for a template that does not compile or names what is not there.
        """
        if "{{" not in source and "{%" not in source:
            return source
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = self._environment.from_string(source)
        return template.render(results=request.results, input=request.input, turn=request.turn, session=request.session)

    def call(self, call: Call, request: ModelRequest) -> Call:
        """Fill every string in a call's arguments, however deep."""
        return Call(call.name, self._deep(call.arguments, request), call.call_id)

    def _deep(self, value: Any, request: ModelRequest) -> Any:
        if isinstance(value, str):
            return self.text(value, request)
        if is_object(value):
            return {key: self._deep(member, request) for key, member in value.items()}
        if is_array(value):
            return [self._deep(element, request) for element in value]
        return value
