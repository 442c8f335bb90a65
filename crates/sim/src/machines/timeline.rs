//! The life of one job, laid out in advance: every phase with its times, drawn from the request and
//! a seed. A stop cuts it short. Pure: the state of a job at any moment is a query on its timeline.

use bakeoff_domain::clock::seconds;
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::account::billing::Span;
use crate::machines::curve::Curve;
use crate::machines::failures::ScriptFailure;
use crate::machines::saves::Saves;

/// Checkpoint interval; an interruption loses the work since the last checkpoint.
pub(crate) const CHECKPOINT_SECONDS: f64 = 1800.0;
/// Time from SIGTERM to SIGKILL; these scripts use all of it (API reference, StopTrainingJob).
const STOP_GRACE_SECONDS: f64 = 120.0;

/// A container that fails at once still had to start.
const FAILS_AFTER_SECONDS: f64 = 20.0;

/// A job without instances stops at once.
const UNLAUNCHED_STOP_SECONDS: f64 = 5.0;

const INSUFFICIENT_CAPACITY: &str =
    "Insufficient capacity error from EC2 while launching instances, retrying!";

/// The inputs that decide a job's life.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) created_at: DateTime<Utc>,
    /// Seconds of training at full speed that the script needs.
    pub(crate) work_seconds: f64,
    /// How it gets through its work.
    pub(crate) curve: Curve,
    pub(crate) max_runtime_seconds: f64,
    pub(crate) spot: Option<Spot>,
    pub(crate) failure: Option<Failure>,
    /// Takes over a warm pool, so there is no launch to wait for.
    pub(crate) is_warm: bool,
    /// Waits in a queue before it is launched.
    pub(crate) is_queued: bool,
    /// Fixed launch and download time; drawn when `None`.
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) seed: u64,
}

/// How a job fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Failure {
    /// Before it starts.
    Capacity,
    /// In the middle of training, through AWS's fault.
    Internal,
    /// Through the script's fault.
    Script(&'static ScriptFailure),
}

impl Failure {
    /// How the script fails, if it is the script.
    pub(crate) fn of_script(self) -> Option<&'static ScriptFailure> {
        match self {
            Self::Script(script) => Some(script),
            Self::Capacity | Self::Internal => None,
        }
    }

    /// Share of the work that is done before.
    fn at_share(self) -> f64 {
        match self {
            Self::Script(script) => script.at_share,
            Self::Capacity | Self::Internal => 0.5,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Spot {
    pub(crate) max_wait_seconds: f64,
    pub(crate) mean_hours_between_interruptions: f64,
    pub(crate) saves: Saves,
    /// No capacity appears for as long as the job may wait.
    pub(crate) never_launches: bool,
}

/// One phase: a SecondaryStatus with its times. A training phase also knows how much work was done
/// before it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Phase {
    pub(crate) status: &'static str,
    pub(crate) message: &'static str,
    pub(crate) start: DateTime<Utc>,
    pub(crate) end: DateTime<Utc>,
    pub(crate) work_before: f64,
}

/// The whole life of a job, and how it ends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timeline {
    pub(crate) phases: Vec<Phase>,
    /// TrainingJobStatus after the last phase.
    pub(crate) end_status: &'static str,
    pub(crate) end_secondary: &'static str,
    pub(crate) failure_reason: Option<&'static str>,
}

struct Drawing {
    rng: StdRng,
    at: DateTime<Utc>,
    phases: Vec<Phase>,
}

impl Drawing {
    fn phase(
        &mut self,
        status: &'static str,
        message: &'static str,
        duration: f64,
        work_before: f64,
    ) {
        let end = self.at + whole_seconds(duration);
        self.phases.push(Phase {
            status,
            message,
            start: self.at,
            end,
            work_before,
        });
        self.at = end;
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.rng.random_range(low..high)
    }
}

fn whole_seconds(duration: f64) -> TimeDelta {
    seconds(duration.max(0.0).round())
}

/// Draws the life of a job.
pub(crate) fn draw(life: &Life) -> Timeline {
    let rng = StdRng::seed_from_u64(life.seed);
    let mut drawing = Drawing {
        rng,
        at: life.created_at,
        phases: Vec::new(),
    };
    if life.is_queued {
        let wait = drawing.between(60.0, 600.0);
        drawing.phase("Pending", "Waiting for its turn", wait, 0.0);
    }
    if let Some(spot) = life.spot.as_ref().filter(|spot| spot.never_launches) {
        return never_launched(drawing, spot);
    }
    launch(life, &mut drawing);
    if life.failure == Some(Failure::Capacity) {
        return short_of_capacity(drawing);
    }
    let download = drawing.between(60.0, 200.0);
    let download = life.launch_seconds.unwrap_or(download);
    drawing.phase(
        "Downloading",
        "Downloading input data and training image",
        download,
        0.0,
    );
    if let Some(failure) = life.failure {
        let ran = life
            .curve
            .wall_for(life.work_seconds * failure.at_share())
            .min(life.max_runtime_seconds)
            .max(FAILS_AFTER_SECONDS);
        drawing.phase(
            "Training",
            "Training image download completed. Training in progress.",
            ran,
            0.0,
        );
        return failed(drawing, failure);
    }
    let (status, secondary) = train(life, &mut drawing);
    let upload = drawing.between(40.0, 120.0);
    drawing.phase(
        "Uploading",
        "Uploading generated training model",
        upload,
        life.work_seconds,
    );
    Timeline {
        phases: drawing.phases,
        end_status: status,
        end_secondary: secondary,
        failure_reason: None,
    }
}

fn launch(life: &Life, drawing: &mut Drawing) {
    let drawn = if life.is_warm {
        drawing.between(5.0, 15.0)
    } else {
        drawing.between(120.0, 420.0)
    };
    let duration = life.launch_seconds.unwrap_or(drawn);
    drawing.phase(
        "Starting",
        "Launching requested ML instances",
        duration,
        0.0,
    );
}

/// Spot capacity never comes: the wait times out, and nothing is billed.
fn never_launched(mut drawing: Drawing, spot: &Spot) -> Timeline {
    drawing.phase(
        "Starting",
        INSUFFICIENT_CAPACITY,
        spot.max_wait_seconds,
        0.0,
    );
    drawing.phase(
        "Stopping",
        "Stopping the training job",
        UNLAUNCHED_STOP_SECONDS,
        0.0,
    );
    Timeline {
        phases: drawing.phases,
        end_status: "Stopped",
        end_secondary: "MaxWaitTimeExceeded",
        failure_reason: None,
    }
}

/// SageMaker gives up after retrying for a while.
fn short_of_capacity(mut drawing: Drawing) -> Timeline {
    let wait = drawing.between(300.0, 1200.0);
    drawing.phase("Starting", INSUFFICIENT_CAPACITY, wait, 0.0);
    Timeline {
        phases: drawing.phases,
        end_status: "Failed",
        end_secondary: "Failed",
        failure_reason: Some(
            "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type.",
        ),
    }
}

fn failed(drawing: Drawing, failure: Failure) -> Timeline {
    let reason = match failure {
        Failure::Script(script) => &script.reason,
        Failure::Capacity | Failure::Internal => {
            "InternalServerError: We encountered an internal error. Please try again."
        }
    };
    Timeline {
        phases: drawing.phases,
        end_status: "Failed",
        end_secondary: "Failed",
        failure_reason: Some(reason),
    }
}

/// Trains, with interruptions on spot, until the work is done or a limit is reached.
fn train(life: &Life, drawing: &mut Drawing) -> (&'static str, &'static str) {
    let mut done = 0.0;
    let mut trained = 0.0;
    loop {
        let needed = life.curve.wall_for(life.work_seconds - done);
        let allowed = life.max_runtime_seconds - trained;
        let interruption = life.spot.as_ref().map_or(f64::INFINITY, |spot| {
            let draw: f64 = drawing.rng.random_range(f64::EPSILON..1.0);
            -draw.ln() * spot.mean_hours_between_interruptions * 3600.0
        });
        let wait_left = life.spot.as_ref().map_or(f64::INFINITY, |spot| {
            spot.max_wait_seconds - (drawing.at - life.created_at).as_seconds_f64()
        });
        let run = needed
            .min(allowed)
            .min(interruption)
            .min(wait_left)
            .max(1.0);
        drawing.phase(
            "Training",
            "Training image download completed. Training in progress.",
            run,
            done,
        );
        trained += run;
        if run >= needed {
            return ("Completed", "Completed");
        }
        if run >= allowed || run >= wait_left {
            drawing.phase(
                "Stopping",
                "Stopping the training job",
                STOP_GRACE_SECONDS,
                done + life.curve.work_in(run),
            );
            let why = if run >= allowed {
                "MaxRuntimeExceeded"
            } else {
                "MaxWaitTimeExceeded"
            };
            return ("Stopped", why);
        }
        let reached = done + life.curve.work_in(run);
        done = life
            .spot
            .as_ref()
            .map_or(0.0, |spot| spot.saves.kept(reached));
        interrupted(drawing, done);
    }
}

/// Capacity is reclaimed, and comes back after a while.
fn interrupted(drawing: &mut Drawing, done: f64) {
    let wait = drawing.between(300.0, 2400.0);
    drawing.phase(
        "Interrupted",
        "Interrupted by spot capacity; waiting for capacity",
        wait,
        done,
    );
    let launch = drawing.between(120.0, 300.0);
    drawing.phase("Starting", "Launching requested ML instances", launch, done);
    let download = drawing.between(60.0, 200.0);
    drawing.phase(
        "Downloading",
        "Downloading input data and training image",
        download,
        done,
    );
}

impl Timeline {
    pub(crate) fn end(&self) -> Option<DateTime<Utc>> {
        self.phases.last().map(|phase| phase.end)
    }

    pub(crate) fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.end().is_some_and(|end| end <= now)
    }

    /// The phase at a moment; `None` after the end.
    pub(crate) fn phase_at(&self, now: DateTime<Utc>) -> Option<&Phase> {
        self.phases.iter().find(|phase| now < phase.end)
    }

    /// Stops the job: the current phase ends now, followed by the grace period, the upload of what
    /// exists, and Stopped.
    pub(crate) fn stop(&mut self, now: DateTime<Utc>) {
        // Judge by the current phase, not by how the job would have ended: a job that was going to
        // hit its limit can still be stopped before.
        let is_stopping = self
            .phases
            .iter()
            .any(|phase| phase.status == "Stopping" && phase.start <= now);
        if self.is_over(now) || is_stopping {
            return;
        }
        let was_launched = self
            .phases
            .iter()
            .any(|phase| phase.status == "Downloading" && phase.start <= now);
        self.phases.retain(|phase| phase.start <= now);
        if let Some(last) = self.phases.last_mut() {
            last.end = now.max(last.start);
        }
        let mut push = |status, message, start, duration| {
            let end = start + whole_seconds(duration);
            self.phases.push(Phase {
                status,
                message,
                start,
                end,
                work_before: 0.0,
            });
            end
        };
        let grace = if was_launched {
            STOP_GRACE_SECONDS
        } else {
            UNLAUNCHED_STOP_SECONDS
        };
        let stopped = push("Stopping", "Stopping the training job", now, grace);
        if was_launched {
            push(
                "Uploading",
                "Uploading generated training model",
                stopped,
                45.0,
            );
        }
        (self.end_status, self.end_secondary, self.failure_reason) = ("Stopped", "Stopped", None);
    }

    /// TrainingStartTime: when the instances are up.
    pub(crate) fn billing_start(&self) -> Option<DateTime<Utc>> {
        self.phases
            .iter()
            .find(|phase| phase.status == "Downloading")
            .map(|phase| phase.start)
    }

    /// The spans in which instances were up, until `now`: downloading, training, stopping and
    /// uploading, but not waiting.
    pub(crate) fn billed_spans(&self, now: DateTime<Utc>) -> Vec<Span> {
        let Some(begin) = self.billing_start() else {
            return Vec::new();
        };
        let is_billed = |phase: &&Phase| {
            matches!(
                phase.status,
                "Downloading" | "Training" | "Stopping" | "Uploading"
            ) && phase.start >= begin
        };
        let span = |phase: &Phase| Span {
            from: phase.start,
            until: phase.end.min(now),
        };
        self.phases
            .iter()
            .filter(is_billed)
            .map(span)
            .filter(|span| span.from < span.until)
            .collect()
    }

    /// The billed spans in seconds.
    pub(crate) fn training_seconds(&self, now: DateTime<Utc>) -> i64 {
        self.billed_spans(now)
            .iter()
            .map(|span| span.seconds())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::curve::Habits;

    fn life(spot: Option<Spot>) -> Life {
        Life {
            created_at: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            work_seconds: 40_000.0,
            curve: Curve::of(&Habits::default(), 90_000.0),
            max_runtime_seconds: 90_000.0,
            spot,
            failure: None,
            is_warm: false,
            is_queued: false,
            launch_seconds: None,
            seed: 7,
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_life() {
        let spot = Spot {
            max_wait_seconds: 180_000.0,
            mean_hours_between_interruptions: 3.0,
            saves: Saves::EachCheckpoint,
            never_launches: false,
        };
        assert_eq!(draw(&life(Some(spot.clone()))), draw(&life(Some(spot))));
    }

    #[test]
    fn interrupted_work_resumes_from_the_checkpoint_and_costs_more_training() {
        let spot = Spot {
            max_wait_seconds: 500_000.0,
            mean_hours_between_interruptions: 2.0,
            saves: Saves::EachCheckpoint,
            never_launches: false,
        };
        let timeline = draw(&Life {
            max_runtime_seconds: 400_000.0,
            ..life(Some(spot))
        });
        assert_eq!(timeline.end_secondary, "Completed");
        assert!(
            timeline
                .phases
                .iter()
                .any(|phase| phase.status == "Interrupted")
        );
        let end = timeline.end().unwrap();
        assert!(timeline.training_seconds(end) > draw(&life(None)).training_seconds(end));
    }

    /// Without checkpoints each interruption costs all the work before it, and more of it is billed.
    #[test]
    fn work_that_never_reached_s3_is_done_again() {
        let trained = |saves| {
            let timeline = draw(&Life {
                max_runtime_seconds: 4_000_000.0,
                ..life(Some(Spot {
                    max_wait_seconds: 5_000_000.0,
                    mean_hours_between_interruptions: 5.0,
                    saves,
                    never_launches: false,
                }))
            });
            assert_eq!(timeline.end_secondary, "Completed");
            timeline.training_seconds(timeline.end().unwrap())
        };
        let each = trained(Saves::EachCheckpoint);
        let (first, nothing) = (trained(Saves::FirstOnly), trained(Saves::Nothing));
        assert!(each < first && first <= nothing, "{each} {first} {nothing}");
    }

    #[test]
    fn limits_stop_a_job_with_their_own_status() {
        let capped = draw(&Life {
            max_runtime_seconds: 600.0,
            ..life(None)
        });
        assert_eq!(
            (capped.end_status, capped.end_secondary),
            ("Stopped", "MaxRuntimeExceeded")
        );
        let spot = Spot {
            max_wait_seconds: 2000.0,
            mean_hours_between_interruptions: 1000.0,
            saves: Saves::EachCheckpoint,
            never_launches: false,
        };
        assert_eq!(draw(&life(Some(spot))).end_secondary, "MaxWaitTimeExceeded");
    }

    #[test]
    fn spot_that_is_never_launched_waits_as_long_as_it_may_and_bills_nothing() {
        let spot = Spot {
            max_wait_seconds: 7200.0,
            mean_hours_between_interruptions: 3.0,
            saves: Saves::EachCheckpoint,
            never_launches: true,
        };
        let timeline = draw(&life(Some(spot)));
        let end = timeline.end().unwrap();
        assert_eq!(
            (timeline.end_status, timeline.end_secondary),
            ("Stopped", "MaxWaitTimeExceeded")
        );
        assert_eq!(
            (timeline.billing_start(), timeline.training_seconds(end)),
            (None, 0)
        );
        assert_eq!(end, life(None).created_at + TimeDelta::seconds(7205));
    }

    #[test]
    fn what_waits_in_a_queue_is_not_billed_for_it() {
        let timeline = draw(&Life {
            is_queued: true,
            ..life(None)
        });
        assert_eq!(timeline.phases.first().unwrap().status, "Pending");
        assert!(timeline.billing_start().unwrap() > timeline.phases.first().unwrap().end);
    }

    #[test]
    fn a_job_that_would_end_at_its_limit_obeys_a_stop_before_it() {
        let mut timeline = draw(&Life {
            max_runtime_seconds: 30_000.0,
            ..life(None)
        });
        assert_eq!(timeline.end_secondary, "MaxRuntimeExceeded");
        let now = timeline.billing_start().unwrap() + TimeDelta::hours(1);
        timeline.stop(now);
        assert_eq!(timeline.end_secondary, "Stopped");
        // The full grace period, plus the upload.
        assert_eq!(timeline.end().unwrap(), now + TimeDelta::seconds(120 + 45));
    }

    #[test]
    fn a_stop_before_launch_is_never_billed() {
        let mut timeline = draw(&life(None));
        let now = life(None).created_at + TimeDelta::seconds(30);
        timeline.stop(now);
        assert_eq!(
            (timeline.end_status, timeline.billing_start()),
            ("Stopped", None)
        );
        assert!(timeline.end().unwrap() < now + TimeDelta::seconds(10));
    }
}
