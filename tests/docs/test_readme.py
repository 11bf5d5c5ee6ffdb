"""Everything the README and the pages of docs/ show runs, and every table that comes from the code is up to date."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import anyio
import click
import pytest
import yaml

from answerback import CallState, Handlers, MemoryStore, Runtime, SQLiteStore, ToolContext
from answerback.daemon.cli import program
from answerback.harness.models.script import Script
from answerback.testing import HarnessThread, call, rule, run_harness, run_harness_thread, say
from doc_pages import PAGES, Block, blocks, blocks_of, fragments, run_block
from example_run import EXAMPLES, PATIENCE, finish, local_api, start
from source_tree import ROOT

README = ROOT / "README.md"
TEST_PLUGINS = ("-p", "anyio.pytest_plugin", "-p", "answerback.pytest_plugin", "-p", "no:cacheprovider")


def _generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The README's promises to a newcomer


def test_the_readme_has_the_two_commands_as_they_are() -> None:
    assert next(blocks_of(README, "sh")).text == "pip install uv && uv run answerback demo\nuv run pytest\n"
    assert "virtual environment" in README.read_text(encoding="utf-8")
    assert "pipx" in README.read_text(encoding="utf-8")


def test_the_readme_shows_the_example_that_is_run() -> None:
    (shown,) = blocks_of(README, "python")
    assert shown.text == (EXAMPLES / "embed.py").read_text(encoding="utf-8")


def test_the_readme_names_the_variables_and_commands_that_run_the_example(tmp_path: Path) -> None:
    lines = [line for block in blocks_of(README, "sh") for line in block.text.splitlines()]
    exported = next(line for line in lines if line.startswith("export "))
    port = "8321"
    assert f"uv run answerback harness --port {port} --script examples/script.yaml" in lines
    assert "uv run python examples/embed.py" in lines
    names = dict(word.split("=", 1) for word in exported.split()[1:])
    assert names == {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "local"}
    with local_api() as api:
        assert api.environment.keys() >= names.keys()
        assert finish(start(EXAMPLES / "embed.py", tmp_path, api)).startswith("Order 7 is refunded")
    listed = subprocess.run(
        [sys.executable, "-m", "answerback", "calls", "--db", "calls.db"], cwd=tmp_path, capture_output=True, text=True
    )
    assert listed.stdout.count("acked") == 2


def test_the_readme_does_not_claim_effects_exactly_once() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for claim in re.finditer(r"exactly once", text):
            before = text[max(0, claim.start() - 60) : claim.start()]
            assert re.search(r"\*answered\* $|Not promised: $|does not make an effect happen $", before), page.name


# Fragments, test modules, scripts


@pytest.fixture(scope="module")
def api() -> Any:
    with run_harness_thread(
        Script(rule("weather", call("get_weather", city="Oslo"), say("Sunny.")), rule(say("Hi.")))
    ) as one:
        yield one


@pytest.mark.parametrize("page", [page for page in PAGES if fragments(page)], ids=lambda page: page.stem)
async def test_the_fragments_of_a_page_run(
    page: Path, api: HarnessThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", api.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", api.api_key)
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    async with run_harness() as harness, Runtime(harness.client, handlers=Handlers(), store=MemoryStore()) as runtime:
        module.__dict__["runtime"] = runtime
        with anyio.fail_after(PATIENCE):
            for block in fragments(page):
                await run_block(block, module.__dict__)


async def test_a_call_that_is_held_is_decided_as_the_page_on_recovery_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "recovery.md"
    deciding = next(one for one in fragments(page) if "runtime.decide(" in one.text)
    handlers = Handlers()

    @handlers.tool(on_interrupted="hold", timeout=0.01, settle=0)
    async def pay() -> str:
        """Pay."""
        await anyio.sleep_forever()
        raise AssertionError

    script = Script(rule(call("pay"), say("{{ results[0].output }}")))
    async with run_harness(script) as harness:
        # A first life that is stopped in the middle leaves the call indeterminate.
        store = tmp_path / "calls.db"
        handlers_of_first = Handlers()
        entered = anyio.Event()

        @handlers_of_first.tool(name="pay", on_interrupted="hold")
        async def first(ctx: ToolContext) -> str:
            """Pay."""
            entered.set()
            await anyio.sleep_forever()
            raise AssertionError

        with anyio.fail_after(PATIENCE):
            async with Runtime(
                harness.client, handlers=handlers_of_first, store=SQLiteStore(store), drain_timeout=0, cancel_grace=0.01
            ) as runtime:
                session = await runtime.open("t", agent={"model": "any"}, input="Pay.")
                await entered.wait()
            async with Runtime(harness.client, handlers=handlers, store=SQLiteStore(store)) as runtime:
                session = await runtime.open("t", agent={"model": "any"}, input="Pay.")
                while not await runtime.calls(states=[CallState.INDETERMINATE]):
                    await anyio.sleep(0)
                await run_block(deciding, {"runtime": runtime})
                turn = await session.wait()
    assert json.loads(turn.output_text.replace("'", '"')) == {"refund": "rf_902"}


@pytest.mark.parametrize("block", [one for one in blocks("python") if one.test_name], ids=str)
def test_a_test_module_that_is_shown_passes(block: Block, tmp_path: Path) -> None:
    assert block.test_name is not None
    (tmp_path / block.test_name).write_text(block.text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\nfilterwarnings = error\n", encoding="utf-8")
    # Only these plugins: the fixture is found by its entry point where answerback was installed since it has one.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *TEST_PLUGINS, block.test_name],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_fixture_is_registered_as_a_pytest_plugin_and_costs_others_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"answerback": "answerback.pytest_plugin"}
    code = (
        "import sys, pytest; before = set(sys.modules); import answerback.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["answerback", "answerback.pytest_plugin"]


@pytest.mark.parametrize("block", list(blocks("yaml")), ids=str)
def test_a_script_that_is_shown_is_a_script(block: Block) -> None:
    assert len(Script.from_data(yaml.safe_load(block.text)).rules) == 3


# Commands, links, tables


def _commands() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for block in blocks("sh"):
        for line in block.text.splitlines():
            words = shlex.split(line.split(" && ")[-1], comments=True)
            words = words[2:] if words[:2] == ["uv", "run"] else words
            if words and words[0] == "answerback":
                found.append((f"{block} {line}", words[1:]))
    return found


@pytest.mark.parametrize(("where", "words"), _commands())
def test_a_command_that_is_shown_exists_with_its_options(where: str, words: list[str]) -> None:
    del where
    parent = click.Context(program, info_name="answerback", **program.context_settings)
    command = program.get_command(parent, words[0])
    assert command is not None
    arguments = [str(ROOT / word) if word.startswith("examples/") else word for word in words[1:]]
    context = command.make_context(words[0], arguments, parent=parent)
    assert context.args == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve()
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_the_tables_that_come_from_the_code_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == _generator().regenerated(text), "run: python tools/generate_docs.py"


def test_every_part_that_is_generated_stands_on_a_page() -> None:
    generator = _generator()
    shown = {place[2] for page in PAGES for place in generator.PLACE.finditer(page.read_text(encoding="utf-8"))}
    assert shown == set(generator.SECTIONS)
