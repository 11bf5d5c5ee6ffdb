-- The first schema. Columns carry the names of the records in `answerback.model`; times are integer microseconds, UTC.
-- What a call went through (`transitions`) is written by triggers, so no statement can forget it, and who wrote it
-- (incarnation, pid) comes from the one row of `meta`, set when the file is opened for writing.

CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    -- 0 after a roll-back: rows may be missing. See `answerback.store.opening`.
    complete INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    -- The number of the last batch committed by this incarnation: tells whether a COMMIT that failed landed.
    batch INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    local_id TEXT NOT NULL UNIQUE,
    session_id TEXT UNIQUE,
    key TEXT UNIQUE,
    origin TEXT NOT NULL,
    pending TEXT NOT NULL,
    state TEXT NOT NULL,
    status TEXT NOT NULL,
    last_turn_id TEXT,
    active INTEGER NOT NULL,
    reason TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    request BLOB
) STRICT;

-- The long columns stand last, so that looking for a call by its state or digest does not walk through payloads.
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    -- Whether `state` is one of those in which something is left to do. A column of its own, because an index that
    -- depends on `state` would be rewritten by every move (a quarter of the CPU of a call).
    open INTEGER NOT NULL,
    -- Of the last transition, for the trigger below.
    steps INTEGER NOT NULL DEFAULT 1,
    changed_at INTEGER NOT NULL,
    name TEXT NOT NULL,
    arguments_hash TEXT NOT NULL,
    effects TEXT NOT NULL,
    handler_version TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    token TEXT,
    incarnation INTEGER NOT NULL,
    crash_count INTEGER NOT NULL,
    outcome_kind TEXT,
    outcome_hash TEXT,
    submit_epoch INTEGER NOT NULL,
    submit_status TEXT NOT NULL,
    is_async INTEGER NOT NULL,
    deadline INTEGER,
    next_at INTEGER,
    hold_until INTEGER,
    observed_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    submitted_at INTEGER,
    closed_at INTEGER,
    reason TEXT,
    arguments BLOB NOT NULL,
    outcome BLOB,
    UNIQUE (session_id, turn_id, call_id)
) STRICT;

CREATE INDEX calls_open ON calls (session_id) WHERE open = 1;

CREATE TABLE transitions (
    call INTEGER NOT NULL REFERENCES calls (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    reason TEXT,
    PRIMARY KEY (call, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE inputs (
    seq INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    baseline_turn TEXT,
    baseline_open INTEGER NOT NULL,
    turn_id TEXT,
    reason TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    element BLOB NOT NULL,
    UNIQUE (session_id, key)
) STRICT;

CREATE INDEX inputs_open ON inputs (session_id) WHERE state NOT IN ('done', 'refused');

CREATE TABLE approvals (
    call INTEGER PRIMARY KEY REFERENCES calls (id) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    decided_at INTEGER,
    verdict TEXT,
    decided_by TEXT,
    reason TEXT,
    used_at INTEGER
) STRICT;

CREATE TABLE checkpoints (
    call INTEGER NOT NULL REFERENCES calls (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (call, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE late (
    id INTEGER PRIMARY KEY,
    call INTEGER NOT NULL REFERENCES calls (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    element BLOB NOT NULL
) STRICT;

CREATE INDEX late_call ON late (call);

CREATE TABLE substitutes (
    call INTEGER PRIMARY KEY REFERENCES calls (id) ON DELETE CASCADE,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL,
    element BLOB NOT NULL
) STRICT;

CREATE TRIGGER calls_observed AFTER INSERT ON calls BEGIN
    INSERT INTO transitions (call, seq, at, source, target, attempt, incarnation, pid, reason)
    SELECT new.id, new.steps, new.changed_at, '', new.state, new.attempt, meta.incarnation, meta.pid, new.reason
    FROM meta;
END;

CREATE TRIGGER calls_moved AFTER UPDATE OF state ON calls BEGIN
    INSERT INTO transitions (call, seq, at, source, target, attempt, incarnation, pid, reason)
    SELECT new.id, new.steps, new.changed_at, old.state, new.state, new.attempt, meta.incarnation, meta.pid, new.reason
    FROM meta;
END;

-- The promise "one outcome" does not rest on the code alone.
CREATE TRIGGER calls_outcome_is_final BEFORE UPDATE OF outcome ON calls
WHEN old.outcome IS NOT NULL AND new.outcome IS NOT old.outcome BEGIN
    SELECT RAISE(ABORT, 'an outcome is never changed');
END;

CREATE TRIGGER substitutes_are_final BEFORE UPDATE ON substitutes BEGIN
    SELECT RAISE(ABORT, 'a substitute is never changed');
END;

-- Other bytes need another key, so the next POST is a new one.
CREATE TRIGGER substitutes_reset_submission AFTER INSERT ON substitutes BEGIN
    UPDATE calls SET submit_epoch = submit_epoch + 1, submit_status = 'none' WHERE id = new.call;
END;
