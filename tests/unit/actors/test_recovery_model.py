"""The promises hold whatever the network, the server and the power supply do: a model of all three, and the real table.

A small process performs the decisions of the real `reconcile` and the real `submit.interpret` between a server and a
store that play every trick: frames late, twice, out of order and never; GETs answered late; POSTs cut before and after
they were applied, answered 429 and 503, landing after the sender's death; results forgotten; turns ended; a crash
between any two steps, losing what was not committed. Asserted where it would happen: P1 to P4 (see
`model_process`); and when the faults stop, P5.

The model is worth what it catches. Each of these was put into `reconcile` by hand and was found by
`test_the_promises_hold_under_every_fault`, in these words:

- an accepted or acknowledged call that is listed is run instead of sent again: "P2: two outcomes for one call"
- a call whose POST got no clear answer is run instead of sent again: "P4: silently run again"
- a frame's absence, or that of a GET older than the row, counts: "P5: given up while the session waited for it"
- STARTED of a dead process is rerun for `once` too: "P4: silently run again"
- an accepted result is sent again without the grace: "a new epoch for a result that was not lost"
- `running` is ignored: "P1: a second task for a call that has one"
- a lost result is sent again under its old key: "P5: it is sent round and round"
- a closed call listed by an old GET asks for no newer one: "P5: left as None"
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from answerback.actors.messages import Reading
from answerback.errors import ApiError
from answerback.model import CallKey, CallState
from unit.actors.model_process import EFFECTS, Log, Post, Process, Verdict
from unit.actors.model_server import Clock, ModelServer, lost_answer
from unit.actors.model_store import ModelStore
from unit.actors.rows import SECOND, asked, key

TURNS = ("turn_1", "turn_2")
PLAIN = 2_000
FULL = 20_000
STEPS = 40

some = st.integers(0, 11)
verdicts: st.SearchStrategy[Verdict] = st.sampled_from(("hook", "tell_model", "hold"))
lags = st.integers(0, 4)
fates = st.sampled_from(("ok", "ok", "cut before", "cut after", "503", "503 after", "429"))


class World(RuleBasedStateMachine):
    """One session, one store, and one process after another."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.server = ModelServer(self.clock)
        self.store = ModelStore()
        self.log = Log()
        self.orphans: list[Post] = []
        self.calls: list[CallKey] = []
        self.lives = 1
        self.process = Process(1, self.clock, self.server, self.store, self.log)
        self.get: tuple[int, Reading | None] | None = None

    # --- the server -----------------------------------------------------------------------------------------------

    @initialize(effects=st.sampled_from(sorted(EFFECTS)))
    def begin(self, effects: str) -> None:
        """Let the model call a first function, which the session waits for."""
        self.server.register(self._call(effects, "turn_1"))

    def _call(self, effects: str, turn_id: str) -> CallKey:
        call = key(f"call_{len(self.calls)}", turn_id)
        self.calls.append(call)
        self.server.announce(call, asked(effects))
        return call

    @precondition(lambda self: len(self.calls) < 4)
    @rule(effects=st.sampled_from(sorted(EFFECTS)), turn_id=st.sampled_from(TURNS), too_large=st.booleans())
    def the_model_calls_a_function(self, effects: str, turn_id: str, too_large: bool) -> None:
        if turn_id not in self.server.over:
            call = self._call(effects, turn_id)
            if too_large:
                self.server.too_large.add(call)

    @precondition(lambda self: self.server.announced)
    @rule()
    def a_call_is_registered(self) -> None:
        self.server.register(next(iter(self.server.announced)))

    @rule(turn_id=st.sampled_from(TURNS), sure=some)
    def a_turn_ends(self, turn_id: str, sure: int) -> None:
        if sure == 0:
            self.server.end_turn(turn_id)

    @precondition(lambda self: self.server.results and self.process.post is None)
    @rule(which=some, when=st.sampled_from(("at once", "later", "while nobody runs")))
    def the_server_forgets_a_result(self, which: int, when: str) -> None:
        call = sorted(self.server.results)[which % len(self.server.results)]
        if call.turn_id in self.server.over or self.server.losses[call] == 2:
            return
        if when != "at once":
            self.the_session_is_read_at_once()
            self.clock.now += 10 * SECOND
        if when == "while nobody runs":
            self.the_process_dies_and_another_starts(lands=False, committed=True, reads=False)
        self.server.lose(call)
        if when == "later":
            self.the_session_is_read_at_once()

    @precondition(lambda self: self.orphans)
    @rule()
    def a_dead_process_s_post_lands(self) -> None:
        post = self.orphans.pop(0)
        self.server.take(post.body, post.key, lag=0)

    # --- hints ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.server.frames)
    @rule(which=some, newest=st.booleans())
    def a_frame_arrives_now_late_or_again(self, which: int, newest: bool) -> None:
        frames = self.server.frames
        frame = frames[-1 if newest else which % len(frames)]
        self.process.read(Reading(frame))

    @precondition(lambda self: self.server.results)
    @rule(which=some)
    def an_output_item_arrives(self, which: int) -> None:
        self.process.output_seen(sorted(self.server.results)[which % len(self.server.results)])

    @rule()
    def a_get_is_sent_or_served_or_answered(self) -> None:
        if self.get is None:
            self.process.wants_to_read = False
            self.get = (self.clock.tick(), None)
            return
        sent_at, reading = self.get
        if reading is None:
            self.clock.tick()
            self.get = (sent_at, Reading(self.server.listing(), sent_at))
            return
        self.get = None
        self.process.read(reading)

    @rule()
    def the_session_is_read_at_once(self) -> None:
        self.get = None
        for _ in range(3):
            self.a_get_is_sent_or_served_or_answered()

    # --- the process ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.process.tasks)
    @rule(which=some, verdict=verdicts)
    def a_task_does_a_step(self, which: int, verdict: Verdict) -> None:
        tasks = sorted(self.process.tasks)
        self.process.step(tasks[which % len(tasks)], verdict)

    @precondition(lambda self: self.process.tasks)
    @rule(which=some, verdict=verdicts)
    def a_task_runs_to_its_end(self, which: int, verdict: Verdict) -> None:
        tasks = sorted(self.process.tasks)
        call = tasks[which % len(tasks)]
        while call in self.process.tasks and self.process.tasks[call].phase != "held":
            self.process.step(call, verdict)

    @precondition(lambda self: self.process.outgoing)
    @rule(choice=some, fate=fates, lag=lags)
    def a_post_leaves_or_is_served_or_answered(self, choice: int, fate: str, lag: int) -> None:
        if self.process.post is None:
            self.process.begin_post(choice)
        elif self.process.answer is None:
            self.process.answer = (self._serve(self.process.post, fate, lag),)
        else:
            self.process.take_answer()

    @precondition(lambda self: self.process.outgoing)
    @rule(choice=some, fate=fates, lag=lags)
    def a_post_is_sent_and_answered(self, choice: int, fate: str, lag: int) -> None:
        if self.process.post is None:
            self.process.begin_post(choice)
        if self.process.post is not None:
            self.process.answer = self.process.answer or (self._serve(self.process.post, fate, lag),)
            self.process.take_answer()

    def _serve(self, post: Post, fate: str, lag: int) -> ApiError | None:
        answer: ApiError | None = None
        if fate in {"ok", "cut after", "503 after"}:
            answer = self.server.take(post.body, post.key, lag=lag * SECOND)
        if fate.startswith("cut"):
            return lost_answer(None)
        return answer if fate == "ok" else lost_answer(int(fate[:3]))

    @rule()
    def the_writer_commits(self) -> None:
        self.store.commit()

    # A GET or POST on its way is shorter than the grace: the rest of the time passes between them.
    @precondition(lambda self: self.get is None and self.process.post is None)
    @rule(seconds=st.sampled_from((1, 6, 600)))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds * SECOND

    @rule(lands=st.booleans(), committed=st.booleans(), reads=st.booleans())
    def the_process_dies_and_another_starts(self, lands: bool, committed: bool, reads: bool) -> None:
        if committed:
            self.store.commit()
        if self.process.post is not None and self.process.answer is None and lands:
            self.orphans.append(self.process.post)
        self.store.crash()
        self.lives += 1
        self.get = None
        self.process = Process(self.lives, self.clock, self.server, self.store, self.log)
        if reads:
            self.the_session_is_read_at_once()

    # --- the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Stop the faults: whatever is pending must end answered, or held where somebody can see it."""
        while self.server.announced:
            self.a_call_is_registered()
        self.process.wants_to_read = True
        for _ in range(40):
            self._calm_round()
            if self._settled():
                break
        else:
            raise AssertionError("P5: it goes round and round")
        for call in self.server.pending:
            state = self.process.record(call).state if call in self.process.entries else None
            assert state is CallState.INDETERMINATE, f"P5: left as {state}"
            assert self.process.tasks[call].phase == "held", "P5: undecided, and nobody is waiting for a decision"
        for call, taken in self.server.results.items():
            row = self.store.rows[call]
            assert taken in {row.outcome, row.substitute}, "P3: the server has bytes that were never stored"
        assert all(entry.record.state is CallState.INDETERMINATE for entry in self.process.entries.values())
        assert all(count == 1 for call, count in self.log.effects.items() if self.server.asked[call].name == "once")

    def _calm_round(self) -> None:
        rounds = 0
        while self.process.outgoing:
            rounds += 1
            assert rounds < 50, "P5: it is sent round and round"
            self.a_post_is_sent_and_answered(0, "ok", 0)
            # What a turn does with a result is told by its next frames.
            self.the_session_is_read_at_once()
        for call in sorted(self.process.tasks):
            if call in self.process.tasks and self.process.tasks[call].phase != "held":
                self.process.step(call, "tell_model")
        self.clock.now += 10 * SECOND
        # One poll in the beginning; whatever else must be read has to be asked for.
        if self.process.wants_to_read:
            self.the_session_is_read_at_once()
        self.store.commit()

    def _settled(self) -> bool:
        busy = any(task.phase != "held" for task in self.process.tasks.values())
        waits = self.process.outgoing or self.process.wants_to_read
        return not busy and not waits and self._nothing_open()

    def _nothing_open(self) -> bool:
        return all(entry.record.state is CallState.INDETERMINATE for entry in self.process.entries.values())


def _play(examples: int, *, same_every_time: bool) -> None:
    run_state_machine_as_test(
        World,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=same_every_time,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
        ),
    )


def test_the_promises_hold_under_every_fault() -> None:
    _play(PLAIN, same_every_time=True)


@pytest.mark.full
def test_the_promises_hold_under_every_fault_at_length() -> None:
    _play(FULL, same_every_time=False)
