"""`answerback store`: facts, checks, copies, pruning and migrating from the command line."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from answerback.daemon.cli import main
from answerback.store.migrations.migrate import load_steps

GOLDEN = Path(__file__).parents[1] / "store" / "golden" / "0001.db"
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}
TEXT, NUMBER, MAYBE_TEXT = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": ["string", "null"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "info": {
        "path": TEXT,
        "schema": NUMBER,
        "newest_schema": NUMBER,
        "store_id": TEXT,
        "incarnation": NUMBER,
        "complete": {"type": "boolean"},
        "created_at": TEXT,
        "size_bytes": NUMBER,
        "log_bytes": NUMBER,
        "reclaimable_bytes": NUMBER,
        "free_bytes": NUMBER,
        "prunable_bytes": NUMBER,
        "sessions": COUNTS,
        "calls": COUNTS,
        "inputs": COUNTS,
        "oldest_open_call": {
            "type": ["object", "null"],
            "required": ["id", "name", "state", "observed_at"],
            "additionalProperties": TEXT,
        },
        "owner": {"type": ["object", "null"]},
    },
    "check": {
        "ok": {"type": "boolean"},
        "problems": {
            "type": "array",
            "items": {"type": "object", "required": ["rule", "subject"], "additionalProperties": TEXT},
        },
    },
    "backup": {"path": TEXT, "copy": TEXT, "size_bytes": NUMBER},
    "prune": dict.fromkeys(("payloads", "inputs", "calls", "sessions", "freed_bytes"), NUMBER),
    "migrate": {"from": NUMBER, "to": NUMBER, "copy": MAYBE_TEXT},
}
Run = Callable[..., str]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN, tmp_path / "calls.db"))


@pytest.fixture
def store(db: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs one command on the store and returns what it printed."""

    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["store", *arguments, "--db", str(db)])
        out, err = capsys.readouterr()
        assert ended.value.code == code, out + err
        return err if code > 1 else out

    return run


@contextmanager
def owned(path: Path) -> Generator[int]:
    """Let another process have the store for the length of the block."""
    code = (
        "import sys, anyio\n"
        "from answerback.store.sqlite import SQLiteStore\n"
        "async def hold():\n"
        "    async with SQLiteStore(sys.argv[1]):\n"
        "        print('ready', flush=True)\n"
        "        await anyio.to_thread.run_sync(sys.stdin.read)\n"
        "anyio.run(hold)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        yield owner.pid
        owner.communicate("")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_command_prints_json_of_its_schema(store: Run, tmp_path: Path, name: str) -> None:
    arguments = [name, str(tmp_path / "copy.db")] if name == "backup" else [name]
    document = json.loads(store(*arguments, "--json"))
    properties = SCHEMAS[name]
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    jsonschema_rs.validate(schema, document)


@pytest.mark.parametrize("name", ["", *SCHEMAS])
def test_every_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", *([name] if name else []), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"answerback store {name}".strip() in text


def test_info_tells_a_person_what_matters(store: Run) -> None:
    text = store("info")
    assert "1 acked, 1 finished, 1 started, 1 waiting_approval" in text
    assert f"1, this release writes {load_steps()[-1].version}" in text
    assert "nobody" in text


def test_a_store_in_use_is_told_about_checked_and_copied_but_not_pruned(store: Run, db: Path, tmp_path: Path) -> None:
    with owned(db) as pid:
        assert json.loads(store("info", "--json"))["owner"]["pid"] == pid
        assert "nothing is wrong" in store("check")
        store("backup", str(tmp_path / "copy.db"))
        refused = store("prune", code=3)
    assert f"pid {pid}" in refused
    assert "store.prune()" in refused
    assert refused.count("\n") == 1


def test_a_store_of_an_older_release_in_use_is_not_migrated(store: Run, db: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    shutil.copy(GOLDEN, other)
    with owned(other):
        db.with_name("calls.db.lock").symlink_to(other.with_name("other.db.lock"))
        assert "stop" in store("migrate", code=3)
    assert json.loads(store("info", "--json"))["schema"] == 1


def test_problems_are_named_and_exit_1(store: Run, db: Path) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as raw:
        raw.execute("DELETE FROM approvals")
    assert "a call that waits for an approval was asked about" in store("check", code=1)
    assert json.loads(store("check", "--json", code=1))["ok"] is False


def test_migrating_keeps_the_old_file_and_is_done_once(store: Run, db: Path) -> None:
    moved = json.loads(store("migrate", "--json"))
    assert (moved["from"], moved["to"]) == (1, load_steps()[-1].version)
    with closing(sqlite3.connect(moved["copy"])) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (1,)
    assert "already" in store("migrate")
    assert json.loads(store("migrate", "--json"))["copy"] is None
    assert "nothing is wrong" in store("check")


def test_pruning_says_what_it_took(store: Run, db: Path) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as raw:
        raw.executescript(
            "DELETE FROM calls WHERE state != 'acked'; UPDATE inputs SET state = 'done';"
            "UPDATE sessions SET active = 0, key = NULL;"
        )
    assert json.loads(store("info", "--json"))["prunable_bytes"] > 0
    assert "forgot the payloads of 1 calls" in store("prune", "--rows-after", "1000000")
    assert json.loads(store("prune", "--json"))["sessions"] == 1
    assert "--rows-after" in store("prune", "--rows-after", "1", "--payloads-after", "2", code=2)


@pytest.mark.parametrize("name", ["info", "check", "prune", "migrate"])
def test_no_command_makes_a_store_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(SystemExit) as ended:
        main(["store", name, "--db", str(missing)])
    assert ended.value.code == 3
    assert "there is no store at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
