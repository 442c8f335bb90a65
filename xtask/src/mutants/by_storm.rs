//! Which mutants the storm is run against.

/// Number of seeds within which the storm finds what it can find.
pub(super) const STORM_SEEDS: u32 = 40;

/// Mutants that the storm is run against, and why it need not find some of them: the damage is
/// repaired elsewhere, and nothing in the region's record is wrong. Tests cover those.
pub(super) const BY_STORM: [(&str, Option<&str>); 13] = [
    ("budget-cap-ignored", None),
    ("cancel-sends-no-stop", None),
    ("release-a-reservation-twice", None),
    (
        "give-back-a-lease-without-the-token",
        Some(
            "two then hold one trial: they send the same create under the same name, and the writes of the first are \
             stale",
        ),
    ),
    (
        "throttled-page-ends-a-listing-as-complete",
        Some(
            "nothing is concluded from a listing alone: Describe is asked of what it did not show",
        ),
    ),
    (
        "quarantine-half-as-long",
        Some(
            "six looks in a row have to find nothing after it, two seconds apart here: a create that was held up has \
             arrived by then",
        ),
    ),
    ("an-old-event-overrides-a-newer-status", None),
    ("one-denial-and-the-job-has-vanished", None),
    (
        "a-cancel-during-a-claim-is-forgotten",
        Some("it is remembered at the next look, two seconds later here"),
    ),
    ("sessions-without-timeouts", None),
    (
        "a-sweep-that-was-cut-off-counts",
        Some(
            "what runs is shown by the next listing; only a job that is over and billed to nobody waits for the next \
             sweep",
        ),
    ),
    ("sdk-retries-on", None),
    ("limiter-waits-for-the-old-time", None),
];
