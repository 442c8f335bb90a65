//! Mistakes in CI: in what a run is found by, what it is compared with, and in what is sent of it.

use super::{Mutant, it};

pub(super) const MUTANTS: [Mutant; 12] = [
    it(
        "a-silent-registry-is-waited-for",
        "ci::images::a_registry_that_never_answers_ends_the_run_after_a_day",
    ),
    it(
        "the-baseline-is-of-any-branch",
        "ci::one_bill::another_branch_is_no_baseline",
    ),
    it(
        "a-run-is-found-by-who-tells-of-it",
        "ci::one_bill::whoever_tells_of_a_commit_joins_its_run",
    ),
    it(
        "an-older-push-ends-a-newer-run",
        "ci::superseding::an_older_push_that_comes_late_ends_nothing",
    ),
    it(
        "a-replay-counts-earlier-tries",
        "ci::waits::a_replay_has_all_its_tries",
    ),
    it(
        "a-try-counts-when-it-is-claimed",
        "ci::waits::a_courier_that_dies_before_it_sends_uses_up_no_try",
    ),
    it(
        "a-copy-sends-webhooks",
        "ci::waits::a_copy_of_the_database_sends_nothing",
    ),
    it(
        "a-copy-sends-commit-statuses",
        "ci::waits::a_copy_of_the_database_sends_nothing",
    ),
    it(
        "a-status-is-sent-after-standing-still",
        "ci::waits::a_status_is_not_sent_by_a_process_that_stood_still",
    ),
    it(
        "a-held-status-is-claimed",
        "ci::commit_status::a_status_is_told_again_after_a_crash_and_in_order",
    ),
    it(
        "an-old-webhook-ends-the-head",
        "ci::superseding::of_pushes_that_were_never_told_the_commits_time_decides",
    ),
    it(
        "a-script-ends-runs",
        "ci::superseding::a_script_ends_no_run",
    ),
];
