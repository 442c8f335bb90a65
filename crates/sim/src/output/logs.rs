//! What jobs write to CloudWatch Logs. Pure: a line is made when it is asked for, from the job and its
//! place in the stream, so that a log of a gigabyte costs nothing.

use chrono::{DateTime, TimeDelta, Utc};

use crate::jobs::job::Job;
use crate::jobs::processing::ProcessingJob;
use crate::jobs::tuning::{Trial, TuningJob};
use crate::machines::timeline::{Failure, Phase};
use crate::output::metrics;

/// What the toolkit prints before the script runs.
const OPENING: [&str; 3] = [
    "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
    "sagemaker-training-toolkit INFO     Imported framework sagemaker_pytorch_container.training",
    "sagemaker-training-toolkit INFO     Invoking user script",
];

/// A stream of a job of any kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream<'a> {
    Training(Run<'a>),
    /// One host of a processing job.
    Processing {
        job: &'a ProcessingJob,
        host: u32,
    },
    /// The first host of a trial of a tuning job.
    Tuned(&'a Trial),
}

/// A stream of a training job: one host, from one start of its container to the end of that run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    job: &'a Job,
    phase: &'a Phase,
    /// From 1.
    host: u32,
    is_last: bool,
}

/// The streams that exist by now, by name. A restart begins new ones.
pub(crate) fn streams(job: &Job, now: DateTime<Utc>) -> Vec<Stream<'_>> {
    let runs: Vec<&Phase> = job
        .timeline
        .phases
        .iter()
        .filter(|phase| phase.status == "Training" && phase.start <= now)
        .collect();
    // Of the whole job: an interrupted run ends without a word.
    let training = |phase: &&Phase| phase.status == "Training";
    let last = job.timeline.phases.iter().rfind(training);
    let last = last.map(|phase| phase.start);
    let mut streams: Vec<Stream<'_>> = Vec::new();
    for phase in &runs {
        streams.extend((1..=job.count).map(|host| {
            Stream::Training(Run {
                job,
                phase,
                host,
                is_last: Some(phase.start) == last,
            })
        }));
    }
    streams.sort_by_key(Stream::name);
    streams
}

/// The streams of a processing job, which appear with its instances.
pub(crate) fn of_processing(job: &ProcessingJob, now: DateTime<Utc>) -> Vec<Stream<'_>> {
    let has_begun = job.lines(now).is_some();
    let hosts = (1..=job.count).filter(|_| has_begun);
    hosts.map(|host| Stream::Processing { job, host }).collect()
}

/// The streams of a tuning job's trials.
pub(crate) fn of_tuning(job: &TuningJob, now: DateTime<Utc>) -> Vec<Stream<'_>> {
    job.begun(now).map(Stream::Tuned).collect()
}

impl Stream<'_> {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Training(run) => run.name(),
            Self::Processing { job, host } => {
                let begun = job.created_at.timestamp();
                format!("{}/algo-{host}-{begun}", job.name)
            }
            Self::Tuned(trial) => {
                let begun = trial.started_at.timestamp();
                format!("{}/algo-1-{begun}", trial.name)
            }
        }
    }

    /// Places in the stream by now; some hold no line.
    pub(crate) fn places(&self, now: DateTime<Utc>) -> usize {
        match self {
            Self::Training(run) => run.places(now),
            Self::Processing { job, .. } => job.lines(now).map_or(0, |lines| lines.len()),
            Self::Tuned(trial) => trial.lines(now).len(),
        }
    }

    /// The line at a place. A minute without steps has none.
    pub(crate) fn line(&self, place: usize, now: DateTime<Utc>) -> Option<(DateTime<Utc>, String)> {
        match self {
            Self::Training(run) => run.line(place, now),
            Self::Processing { job, .. } => job.lines(now)?.into_iter().nth(place),
            Self::Tuned(trial) => trial.lines(now).into_iter().nth(place),
        }
    }

    /// The first place whose line is not before a moment.
    pub(crate) fn place_at(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> usize {
        match self {
            Self::Training(run) => run.place_at(since, now),
            Self::Processing { job, .. } => {
                let lines = job.lines(now).unwrap_or_default();
                lines.iter().filter(|(at, _)| *at < since).count()
            }
            Self::Tuned(trial) => {
                let lines = trial.lines(now);
                lines.iter().filter(|(at, _)| *at < since).count()
            }
        }
    }
}

impl Run<'_> {
    fn name(&self) -> String {
        let Self {
            job, phase, host, ..
        } = self;
        format!("{}/algo-{host}-{}", job.name, phase.start.timestamp())
    }

    /// Lines of a minute: more than one where the hyperparameter `log_lines_per_minute` says so.
    fn per_minute(&self) -> usize {
        self.asked("log_lines_per_minute").unwrap_or(1).max(1)
    }

    /// Lines that other ranks write after the one that failed: the hyperparameter `log_lines_after_failure`.
    fn afterwards(&self, now: DateTime<Utc>) -> usize {
        let asked = self.asked("log_lines_after_failure").unwrap_or(0);
        let has_failed = self.job.failure.and_then(Failure::of_script).is_some();
        if has_failed && !self.closing(now).is_empty() {
            asked
        } else {
            0
        }
    }

    fn asked(&self, hyperparameter: &str) -> Option<usize> {
        let asked = self.job.request["HyperParameters"][hyperparameter].as_str()?;
        asked.trim_matches('"').parse().ok()
    }

    /// Whole minutes that it has trained.
    fn minutes(&self, now: DateTime<Utc>) -> usize {
        let until = self.phase.end.min(now);
        usize::try_from((until - self.phase.start).num_minutes()).unwrap_or(0)
    }

    fn closing(&self, now: DateTime<Utc>) -> Vec<&str> {
        let is_over = self.is_last && self.phase.end <= now;
        let failure = self.job.failure.and_then(Failure::of_script);
        let failed = failure.filter(|_| is_over);
        match failed {
            // The last host fails, the others hear of it.
            Some(failure) if self.host == self.job.count => {
                failure.lines.iter().map(String::as_str).collect()
            }
            Some(_) => vec!["another process ended: stopping"],
            None if is_over && self.job.timeline.end_status == "Completed" => {
                vec!["sagemaker-training-toolkit INFO     Reporting training SUCCESS"]
            }
            None => Vec::new(),
        }
    }

    fn places(&self, now: DateTime<Utc>) -> usize {
        let trained = OPENING.len() + self.minutes(now) * self.per_minute();
        trained + self.closing(now).len() + self.afterwards(now)
    }

    fn line(&self, place: usize, now: DateTime<Utc>) -> Option<(DateTime<Utc>, String)> {
        if let Some(line) = OPENING.get(place) {
            return Some((self.phase.start, (*line).to_owned()));
        }
        let place = place - OPENING.len();
        let per_minute = self.per_minute();
        let (minute, nth) = (place / per_minute, place % per_minute);
        if minute >= self.minutes(now) {
            let last = place - self.minutes(now) * per_minute;
            let closing = self.closing(now);
            let afterwards = || format!("another rank is still waiting part={last}");
            let line = closing.get(last).map(|line| (*line).to_owned());
            return Some((self.phase.end, line.unwrap_or_else(afterwards)));
        }
        let begun = self.phase.start + TimeDelta::minutes(i64::try_from(minute).ok()?);
        let line = metrics::log_line(self.job, begun)?;
        let line = if per_minute > 1 {
            format!("{line} part={nth}")
        } else {
            line
        };
        // Several lines of a minute are spread over it.
        let within = i64::try_from(nth * 60_000 / per_minute).ok()?;
        Some((begun + TimeDelta::milliseconds(within), line))
    }

    fn place_at(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> usize {
        if since <= self.phase.start {
            return 0;
        }
        let minutes = usize::try_from((since - self.phase.start).num_minutes()).unwrap_or(0);
        let mut place = OPENING.len() + minutes.min(self.minutes(now)) * self.per_minute();
        let places = self.places(now);
        while place < places && self.line(place, now).is_none_or(|(at, _)| at < since) {
            place += 1;
        }
        place
    }
}
