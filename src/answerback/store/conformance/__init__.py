"""The suite every store passes: plain coroutines, so that any test framework can run them.

Each check takes `make_store`, which returns a store (not opened) over the same data every time it is called within one
check, and over empty data for each new check. With pytest and anyio's plugin:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_conforms(check, tmp_path):
        await check(lambda: MyStore(tmp_path / "calls"))

A check that fails raises AssertionError.
"""

from __future__ import annotations

from collections.abc import Sequence

from answerback.store.conformance import calls, life, sessions, writing
from answerback.store.conformance.builders import Check as Check
from answerback.store.conformance.builders import MakeStore as MakeStore

CHECKS: Sequence[Check] = (
    calls.check_an_observed_call_is_read_back_as_it_was,
    calls.check_a_call_observed_twice_stays_the_first,
    calls.check_the_same_call_id_in_two_turns_is_two_calls,
    calls.check_an_update_applies_only_from_its_sources,
    calls.check_an_outcome_is_taken_from_the_holder_of_the_token_only,
    calls.check_the_first_outcome_is_the_only_one,
    calls.check_every_move_leaves_a_transition,
    calls.check_columns_a_write_may_not_change_are_refused_at_once,
    calls.check_a_substitute_is_kept_once_and_asks_for_another_key,
    calls.check_checkpoints_overwrite_by_name_and_late_returns_add_up,
    calls.check_an_approval_is_decided_once_and_serves_the_arguments_it_was_asked_with,
    calls.check_calls_are_listed_by_session_state_and_age,
    calls.check_many_calls_are_found_by_their_keys_at_once,
    calls.check_calls_are_found_by_a_prefix_of_their_id,
    sessions.check_the_names_of_a_session_are_unique,
    sessions.check_a_session_row_is_changed_by_its_local_id,
    sessions.check_inputs_are_idempotent_by_key_and_keep_their_order,
    sessions.check_unfinished_sessions_are_those_with_something_left,
    sessions.check_open_sessions_are_paged_through_by_their_id,
    writing.check_writes_apply_in_the_order_they_were_made,
    writing.check_statements_on_one_call_keep_their_order_in_one_transaction,
    writing.check_a_compare_and_set_that_fails_does_not_undo_its_neighbours,
    writing.check_a_transaction_that_cannot_be_applied_fails_alone_and_whole,
    writing.check_a_cancelled_waiter_keeps_its_write,
    writing.check_lazy_writes_are_committed_without_being_asked_for,
    writing.check_lazy_writes_ride_with_the_next_commit,
    writing.check_flush_covers_lazy_writes,
    writing.check_many_writes_share_commits,
    writing.check_an_empty_write_is_done_at_once,
    life.check_closing_commits_what_is_queued,
    life.check_a_store_is_used_between_open_and_close_only,
    life.check_a_cancelled_owner_loses_no_write,
)
"""Every check, in reading order."""
