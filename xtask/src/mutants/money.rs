//! Mistakes with what bills by itself: endpoints, budgets, purchases, settled jobs and spot.

use super::{Mutant, domain, it};

pub(super) const MUTANTS: [Mutant; 12] = [
    it(
        "an-extension-is-not-lived",
        "endpoints::a_longer_life_is_reserved_before_it_is_lived",
    ),
    it(
        "the-second-extension-is-swallowed",
        "budgets::two_extensions_in_a_row_leave_the_ledger_as_what_is_reserved",
    ),
    it(
        "a-new-end-is-not-announced",
        "endpoint_lives::each_new_end_is_announced",
    ),
    domain(
        "a-provisional-answer-is-bought",
        "ranking::purchase::tests::a_provisional_answer_is_bought_by_nobody_but_a_person",
    ),
    it(
        "silence-raises-a-stated-budget",
        "budgets::a_stated_budget_of_an_endpoint_is_raised_by_no_silence",
    ),
    domain(
        "the-first-is-stopped-at-its-figure",
        "ranking::race::tests::the_first_is_stopped_at_its_figure_while_another_is_measured",
    ),
    it(
        "a-race-stops-a-retry",
        "additions::a_race_does_not_stop_a_retry",
    ),
    it(
        "a-preparation-of-another-project",
        "processing_jobs::a_preparation_is_not_reused_by_another_project",
    ),
    it(
        "a-model-is-looked-for-since-our-clock",
        "registry::a_lost_answer_or_a_crash_leaves_one_version",
    ),
    domain(
        "a-deleted-record-is-not-over",
        "sagemaker::observed::tests::a_job_whose_record_is_being_deleted_ended_as_its_secondary_status_says",
    ),
    it(
        "a-settled-job-is-an-orphan",
        "orphans::a_settled_job_with_an_unknown_status_is_no_orphan",
    ),
    domain(
        "a-checkpoint-after-an-interruption-saves-it",
        "lifecycle::spot::tests::an_interruption_loses_the_training_since_the_newest_checkpoint_before_it",
    ),
];
