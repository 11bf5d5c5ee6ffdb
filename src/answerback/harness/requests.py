"""What may be asked of a session: creation, update and messages, read into plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from answerback.harness.bodies import Reader, read_metadata
from answerback.harness.errors import invalid, unsupported
from answerback.harness.records import JSON

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TIERS = ("auto", "default", "flex", "priority", "fast", "ultrafast")
MAX_TOOLS_BYTES = 3 * 1024 * 1024
UNSUPPORTED_TOOLS = {
    "tool_search": "tool_search",
    "mcp": "mcp tools",
    "web_search": "web_search",
    "computer_use": "computer_use",
    "automations": "automations",
}


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """A session creation that is fine."""

    agent: JSON
    environment: JSON
    messages: list[JSON]
    metadata: dict[str, str]
    vault_ids: list[str]
    prompt_cache_options: JSON | None
    stream: bool
    include_obfuscation: bool


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A session update that is fine; None leaves a thing as it is."""

    agent: JSON | None
    metadata: dict[str, str] | None
    prompt_cache_options: JSON | None
    clears_prompt_cache_options: bool


def read_creation(body: JSON) -> Creation:
    """Read the body of a session creation.

    Raises:
        WireError: 400, by path or by the feature this harness lacks.
    """
    root = Reader(body)
    root.only(
        "agent", "agent_id", "environment", "input", "metadata", "prompt_cache_options", "review", "stream",
        "stream_options", "vault_ids",
    )  # fmt: skip
    root.refuse("agent_id", "saved agents (agent_id)")
    root.refuse("vault_ids", "vaults (vault_ids)")
    if root.choice("review", ("none", "auto_review"), default="none") == "auto_review":
        raise unsupported("review: auto_review", param="review")
    environment = _environment(root)
    agent = root.child("agent")
    if agent is None:
        raise root.missing("agent.model")
    stream = root.flag("stream", default=False)
    messages = _initial_input(root)
    if not messages:
        required = "streaming session creation requires initial input" if stream else None
        raise invalid(required or "conversation-only sessions currently require initial input", param="input")
    return Creation(
        agent=_agent(agent),
        environment=environment,
        messages=messages,
        metadata=read_metadata(root),
        vault_ids=[],
        prompt_cache_options=_prompt_cache_options(root),
        stream=stream,
        include_obfuscation=_include_obfuscation(root, stream=stream),
    )


def read_update(body: JSON) -> Update:
    """Read the body of a session update.

    Raises:
        WireError: 400, by path or by the feature this harness lacks, or when there is nothing to update.
    """
    root = Reader(body)
    root.only("agent", "metadata", "prompt_cache_options", "review")
    if not body:
        raise invalid("At least one update field is required.")
    if root.choice("review", ("none", "auto_review"), default="none") == "auto_review":
        raise unsupported("review: auto_review", param="review")
    agent = root.child("agent")
    return Update(
        agent=_agent_update(agent) if agent is not None else None,
        metadata=read_metadata(root) if "metadata" in body else None,
        prompt_cache_options=_prompt_cache_options(root),
        clears_prompt_cache_options="prompt_cache_options" in body and not root.has("prompt_cache_options"),
    )


def read_messages(reader: Reader, key: str) -> list[JSON]:
    """Read an array of user messages, at least one; `type`, if sent, must be "message" (observed)."""
    entries = reader.array(key)
    if not entries:
        raise reader.wrong(key, "an array of at least one message")
    messages: list[JSON] = []
    for entry in reader.children(key):
        entry.only("type", "role", "content")
        if entry.value.get("type", "message") != "message":
            raise entry.wrong("type", '"message"')
        if entry.required_text("role") != "user":
            raise entry.wrong("role", '"user"')
        messages.append({"role": "user", "content": read_content(entry, "content")})
    return messages


def read_content(reader: Reader, key: str) -> list[JSON]:
    """Read an array of text and image parts, at least one; a text may be blank but not empty (observed)."""
    parts = reader.children(key)
    if not parts:
        raise reader.wrong(key, "an array of at least one part")
    content: list[JSON] = []
    for part in parts:
        kind = part.required_text("type")
        if kind == "input_text":
            part.only("type", "text")
            content.append({"type": kind, "text": part.required_text("text")})
        elif kind == "input_image":
            part.only("type", "image_url")
            content.append({"type": kind, "image_url": part.required_text("image_url")})
        else:
            raise part.wrong("type", "input_text or input_image")
    return content


def _initial_input(root: Reader) -> list[JSON]:
    given: Any = root.value.get("input")
    if given is None or given == []:
        return []
    if isinstance(given, str):
        text = root.required_text("input")
        return [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
    return read_messages(root, "input")


def _environment(root: Reader) -> JSON:
    environment = root.child("environment")
    if environment is None:
        raise root.missing("environment")
    kind = environment.required_text("type")
    if kind in ("openai_hosted", "self_hosted"):
        raise unsupported(f"{kind} environments", param="environment.type")
    if kind != "none":
        raise environment.wrong("type", "none, openai_hosted or self_hosted")
    environment.only("type")
    return {"type": "none"}


def _prompt_cache_options(root: Reader) -> JSON | None:
    options = root.child("prompt_cache_options")
    if options is None:
        return None
    options.only("ttl")
    return {"ttl": options.choice("ttl", ("30m", "12h"), default="30m")}


def _include_obfuscation(root: Reader, *, stream: bool) -> bool:
    options = root.child("stream_options")
    if options is None:
        return True
    if not stream:
        raise invalid("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    options.only("include_obfuscation")
    return options.flag("include_obfuscation", default=True)


def _agent(agent: Reader) -> JSON:
    agent.only(
        "compaction", "experimental", "instructions", "model", "multi_agent", "reasoning", "service_tier", "text", "tools",
    )  # fmt: skip
    agent.refuse("compaction", "compaction settings")
    agent.refuse("experimental", "experimental settings")
    return {
        "name": None,
        "model": agent.required_text("model"),
        "instructions": agent.text("instructions"),
        "reasoning": _reasoning(agent),
        "text": _text(agent),
        "service_tier": agent.choice("service_tier", TIERS, default="auto"),
        "multi_agent": _multi_agent(agent),
        "tools": read_tools(agent),
    }


def _agent_update(agent: Reader) -> JSON:
    agent.only("model", "reasoning", "service_tier", "tools")
    changes: JSON = {}
    if "model" in agent.value:
        changes["model"] = agent.required_text("model")
    if "service_tier" in agent.value:
        changes["service_tier"] = agent.choice("service_tier", TIERS, default="auto")
    if "tools" in agent.value:
        changes["tools"] = read_tools(agent)
    reasoning = agent.child("reasoning")
    if reasoning is not None:
        reasoning.only("effort")
        changes["effort"] = reasoning.choice("effort", EFFORTS, default="medium")
    if not changes:
        raise invalid("At least one update field is required.", param="agent")
    return changes


def _reasoning(agent: Reader) -> JSON:
    reasoning = agent.child("reasoning")
    if reasoning is None:
        return {"effort": "medium", "summary": None}
    reasoning.only("effort", "summary")
    summary = reasoning.text("summary")
    if summary is not None and summary not in ("concise", "detailed", "auto"):
        raise reasoning.wrong("summary", "one of concise, detailed, auto")
    return {"effort": reasoning.choice("effort", EFFORTS, default="medium"), "summary": summary}


def _text(agent: Reader) -> JSON:
    text = agent.child("text")
    if text is None:
        return {"format": {"type": "text"}, "verbosity": "medium"}
    text.only("format", "verbosity")
    verbosity = text.choice("verbosity", ("low", "medium", "high"), default="medium")
    form = text.child("format")
    if form is None:
        return {"format": {"type": "text"}, "verbosity": verbosity}
    form.only("type", "schema")
    kind = form.choice("type", ("text", "json_schema"), default="text")
    if kind == "text":
        return {"format": {"type": "text"}, "verbosity": verbosity}
    schema = form.child("schema")
    if schema is None:
        raise form.missing("schema")
    return {"format": {"type": "json_schema", "schema": schema.value}, "verbosity": verbosity}


def _multi_agent(agent: Reader) -> JSON:
    multi_agent = agent.child("multi_agent")
    if multi_agent is not None:
        multi_agent.only("enabled", "max_concurrent_subagents")
        if multi_agent.flag("enabled", default=False):
            raise unsupported("multi_agent (subagents)", param=multi_agent.path)
    return {"enabled": False, "max_concurrent_subagents": None}


def read_tools(agent: Reader) -> list[JSON]:
    """Read `tools`: functions, and programmatic tool calling where it is switched off; the rest is refused by name."""
    tools: list[JSON] = []
    names: set[str] = set()
    for tool in agent.children("tools"):
        kind = tool.required_text("type")
        if kind in UNSUPPORTED_TOOLS:
            raise unsupported(UNSUPPORTED_TOOLS[kind], param=tool.path)
        if kind == "programmatic_tool_calling":
            tool.only("type", "enabled")
            if tool.flag("enabled", default=True):
                raise unsupported("programmatic_tool_calling", param=tool.path)
            tools.append({"type": kind, "enabled": False})
        elif kind == "function":
            function = _function(tool)
            if function["name"] in names:
                raise invalid(f"duplicate function tool name: {function['name']}", param=tool.at("name"))
            names.add(function["name"])
            tools.append(function)
        else:
            raise tool.wrong("type", "a tool type of the API")
    if len(msgspec.json.encode(tools)) > MAX_TOOLS_BYTES:
        raise invalid(f"'{agent.at('tools')}' is larger than {MAX_TOOLS_BYTES} bytes.", param=agent.at("tools"))
    return tools


def _function(tool: Reader) -> JSON:
    tool.only("type", "name", "description", "parameters", "defer_loading", "async")
    if tool.flag("defer_loading", default=False):
        raise unsupported("deferred functions (defer_loading with tool_search)", param=tool.at("defer_loading"))
    parameters = tool.child("parameters")
    if parameters is None:
        raise tool.missing("parameters")
    if parameters.value.get("type", "object") != "object":
        raise tool.wrong("parameters", "a JSON Schema whose type is object")
    function: JSON = {
        "type": "function",
        "name": tool.required_text("name"),
        "description": tool.required_text("description", empty=True),
        "parameters": parameters.value,
        "defer_loading": False,
    }
    if "async" in tool.value:
        function["async"] = tool.flag("async", default=False)
    return function
