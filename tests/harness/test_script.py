"""Scripts in every form: rules, steps, templates, and what is refused with its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.beta.session_turn_error import SessionTurnError

from answerback.harness.errors import ScriptError
from answerback.harness.models.script import Script as ScriptType
from answerback.harness.models.steps import TURN_ERROR_CODES
from answerback.testing import Script, call, calls, fail, reason, rule, say, sleep
from harness.flow import created, function, message, open_session, post, result, strict_harness, until

JSON = {
    "rules": [
        {
            "when": "compare",
            "steps": [
                {"reason": "Need stock and demand"},
                {
                    "call": [
                        {"name": "get_inventory", "arguments": {"sku": "{{ input }}"}},
                        {"name": "get_demand", "arguments": {"skus": ["{{ input | upper }}"], "deep": {"n": 1}}},
                    ]
                },
                {"say": "Short by {{ [results[1].output.units - results[0].output.units, 0] | max }}."},
            ],
        },
        {"steps": [{"say": "Turn {{ turn }} of {{ session.metadata.who }}: {{ input }}"}]},
    ]
}


async def said(client: Any, session_id: str) -> str:
    await until(client, session_id, "idle")
    newest = (await client.beta.agents.sessions.items.list(session_id, limit=1)).data[0]
    return str(newest.output_text)


async def test_a_script_from_json_calls_with_templates_and_says_what_came_back() -> None:
    async with strict_harness(Script.from_data(JSON)) as (_, client):
        tools = (function("get_inventory"), function("get_demand"))
        session = await open_session(client, "compare a1", *tools, metadata={"who": "Ada"})
        session = await until(client, session.id, "requires_action")
        inventory, demand = session.required_actions
        assert inventory.arguments == {"sku": "compare a1"}
        assert demand.arguments == {"skus": ["COMPARE A1"], "deep": {"n": 1}}
        turn_id = inventory.turn_id
        await post(client, session.id, result(inventory.call_id, turn_id, success=True, output='{"units": 3}'))
        await post(client, session.id, result(demand.call_id, turn_id, success=True, output='{"units": 10}'))
        assert await said(client, session.id) == "Short by 7."
        await post(client, session.id, message("hello"))
        assert await said(client, session.id) == "Turn 2 of Ada: hello"


def test_yaml_and_files_are_read_too(tmp_path: Path) -> None:
    text = "rules:\n- when: a\n  once: true\n  steps:\n  - say: hi\n  - sleep: 1\n  - fail: {code: server_error}\n"
    (tmp_path / "script.yaml").write_text(text)
    for script in (Script.from_text(text), Script.from_file(tmp_path / "script.yaml")):
        assert (script.rules[0].when, script.rules[0].once, len(script.rules[0].steps)) == ("a", True, 3)


def test_python_and_json_say_the_same() -> None:
    by_hand = Script(
        rule("a", reason("r"), calls(call("f", x=1).identified("c1")), say("s"), sleep(1), fail("server_error", "m"))
    )
    read = Script.from_data({"rules": [{"when": "a", "steps": [
        {"reason": "r"}, {"call": [{"name": "f", "arguments": {"x": 1}, "call_id": "c1"}]}, {"say": "s"},
        {"sleep": 1}, {"fail": {"code": "server_error", "message": "m"}}]}]})  # fmt: skip
    assert by_hand.rules == read.rules


NO_SCRIPTS: list[tuple[Any, str]] = [
    ([], "script"),
    ({"rules": 1}, "script.rules"),
    ({"rules": [{"steps": [{"say": 1}]}]}, "rules[0].steps[0]"),
    ({"rules": [{"steps": [{"say": "x", "reason": "y"}]}]}, "rules[0].steps[0]"),
    ({"rules": [{"steps": [{"say": "x", "phase": "loud"}]}]}, "rules[0].steps[0]"),
    ({"rules": [{"steps": [{"sleep": True}]}]}, "rules[0].steps[0]"),
    ({"rules": [{"steps": [{"call": [{"arguments": {}}]}]}]}, "rules[0].steps[0].call[0]"),
    ({"rules": [{"steps": [], "colour": 1}]}, "rules[0]"),
    ({"rules": [{"when": "(", "steps": []}]}, "rules[0].when"),
    ({"rules": [{"steps": [{"fail": {"code": "tired"}}]}]}, "tired"),
    ({"rules": [{"steps": [{"program": "1"}]}]}, "program"),
    ({"rules": [{"steps": [{"mcp": {}}]}]}, "mcp"),
]


@pytest.mark.parametrize(("data", "place"), NO_SCRIPTS)
def test_a_script_that_is_none_is_refused_with_its_place(data: Any, place: str) -> None:
    with pytest.raises(ScriptError, match=place.replace("[", r"\[").replace("]", r"\]")):
        ScriptType.from_data(data)


def test_the_error_codes_are_those_of_the_official_client() -> None:
    assert get_args(SessionTurnError.model_fields["code"].annotation) == TURN_ERROR_CODES


def test_serving_does_not_import_the_official_client() -> None:
    check = "import sys, answerback.harness.server; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=30, check=False).returncode == 0


async def test_rules_match_without_case_in_order_and_once_rules_are_used_up() -> None:
    script = Script(rule("HELLO", say("one"), once=True), rule("hello", say("two")), rule("bye", say("three")))
    async with strict_harness(script) as (_, client):
        session = await open_session(client, "Hello there")
        texts = [await said(client, session.id)]
        for text in ("hello again", "bye", "what?"):
            await post(client, session.id, message(text))
            texts.append(await said(client, session.id))
        assert texts == ["one", "two", "three", "The script has no rule for this input."]


@pytest.mark.parametrize("template", ["{{ results[5].output }}", "{{ input.__class__.__mro__ }}", "{% for %}"])
async def test_a_template_that_cannot_be_filled_fails_the_turn_and_reaches_nothing(template: str) -> None:
    async with strict_harness(Script(rule(say(template)))) as (_, client):
        async with created(client, "x") as stream:
            await stream.end()
        assert stream.types[-2:] == ["turn.failed", "idle"]
        assert stream.events[-2].turn.error.code == "internal_error"


async def test_only_the_last_message_is_the_final_answer() -> None:
    async with strict_harness(Script(rule(say("a"), reason("hm"), say("b"), sleep(0)))) as (_, client):
        async with created(client, "x") as stream:
            await stream.end()
        done = [e.item for e in stream.events if e.type.endswith("item.done") and e.item.type == "message"]
        assert [(item.phase, item.content[0].text) for item in done] == [("commentary", "a"), ("final_answer", "b")]


async def test_the_results_of_failed_calls_carry_their_error() -> None:
    script = Script(rule(call("get_customer"), say("{{ results[0].success }}: {{ results[0].error }}")))
    async with strict_harness(script) as (_, client):
        session = await until(client, (await open_session(client, "x")).id, "requires_action")
        action = session.required_actions[0]
        await post(client, session.id, result(action.call_id, action.turn_id, success=False, error="none such"))
        assert await said(client, session.id) == "False: none such"
