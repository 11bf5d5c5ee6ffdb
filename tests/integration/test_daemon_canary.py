"""A value that goes through arguments, results and exceptions shows in nothing an operator collects."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from daemon_rig import APP, CANARY, PATIENCE, Rig, following, in_state, rig, until

TRACING = '''

# What an application does that traces: the SDK, and somewhere to write.
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=open(here / "spans", "a", buffering=1), formatter=lambda s: s.to_json(indent=None) + "\\n"))
)
trace.set_tracer_provider(provider)


@handlers.tool
async def forget(card: str) -> str:
    """Leave a task behind that fails by itself."""
    import asyncio

    async def later():
        raise KeyError(card)

    asyncio.get_running_loop().create_task(later())
    return card
'''


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Rig]:
    with rig(tmp_path) as one:
        yield one


def _collect(bench: Rig) -> dict[str, str]:
    """Drive every kind of call through a daemon, and return what can be collected of it, by place."""
    (bench.folder / "bot.py").write_text(APP + TRACING)
    up = bench.up("--log-level", "debug", environment={"OPENAI_LOG": "debug", "PYTHONASYNCIODEBUG": "1"}).served()
    command = [sys.executable, "-m", "answerback", "tail", "--json", "--db", str(bench.store)]
    found: dict[str, str] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=bench.environment
    ) as tail:
        assert tail.stderr is not None
        tail.stderr.readline()
        with up.remote() as daemon, following(daemon) as entries:
            daemon.post("/sessions", {"key": "pay", "text": "please pay"})
            name: str = until(entries, in_state("waiting_approval"))["id"]
            found["approve"] = bench.run("approve", name, "--reason", "fine").stdout
            daemon.post("/sessions/pay/wait")
            for key in ("fail", "forget"):
                daemon.post("/sessions", {"key": key, "text": f"please {key}"})
                daemon.post(f"/sessions/{key}/wait")
            daemon.post("/sessions", {"key": "hold", "text": "hold"})
            bench.entered(entries)
            up.send(signal.SIGUSR1)
            found["health"] = json.dumps(daemon.get("/healthz"))
            found["metrics"] = daemon._http.get("/metrics").text
            bench.release("a")
            daemon.post("/sessions/hold/wait")
        for command_line in (
            ("ls",), ("ls", "--json"), ("calls",), ("calls", "--json"), ("show", "pay"), ("show", "pay", "--json"),
            ("show", name), ("show", name, "--json"), ("approve", name), ("reject", name), ("resend", name),
            ("decide", name, "--unknown"), ("cancel", "pay"), ("doctor",), ("config", "--show"),
        ):  # fmt: skip
            done = bench.run(*command_line)
            found[" ".join(command_line)] = done.stdout + done.stderr
        assert up.send(signal.SIGTERM).ended() == 0
        found["tail"] = "".join(tail.communicate(timeout=PATIENCE))
    assert up.process.stdout is not None
    found["printed"] = up.process.stdout.read()
    found["log"] = up.log
    found["spans"] = (bench.folder / "spans").read_text()
    return found


def test_a_value_of_a_call_shows_in_no_log_metric_span_feed_or_output(bench: Rig) -> None:
    found = _collect(bench)
    assert {place: text for place, text in found.items() if CANARY in text} == {}
    # The same places do tell of these calls: an empty log would hide everything.
    assert 'answerback_calls_total{outcome="failed",tool="fail"} 1.0' in found["metrics"]
    assert 'answerback_calls_total{outcome="ok",tool="pay"}' in found["metrics"]
    assert {"execute_tool pay", "execute_tool fail", "invoke_agent"} <= {
        json.loads(line)["name"] for line in found["spans"].splitlines()
    }
    assert '"tool": "fail"' in found["log"]
    assert "KeyError at bot.py:" in found["log"]
    assert "raised ValueError" in found["log"]
    assert '"event": "dump"' in found["log"]
    assert '"tool":"pay"' in found["tail"].replace(" ", "")


def test_the_same_value_does_show_where_it_was_asked_for(bench: Rig) -> None:
    up = bench.up().served()
    with up.remote() as daemon:
        daemon.post("/sessions", {"key": "k", "text": "please fail"})
        daemon.post("/sessions/k/wait")
    (call,) = bench.json("calls")["calls"]
    assert CANARY in bench.run("show", call["id"], "--values").stdout
    assert CANARY not in bench.run("show", call["id"]).stdout
