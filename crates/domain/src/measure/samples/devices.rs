//! Records of several devices or ranks: rates and counts add up to the job's, everything else is averaged.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};

use super::report::{Report, is_same};
use super::values::adds_up;
use super::{Batch, Point};

/// Records that belong together: of one step, or of one time where there are no steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// A step, and the how many-th time that it is done: after a resume, steps come again.
    Step(i32, u32),
    Time(i64),
}

#[derive(Debug)]
struct Sum {
    at: DateTime<Utc>,
    step: Option<i32>,
    total: f64,
    count: f64,
}

/// Values of several devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    sums: BTreeMap<(usize, Moment), Sum>,
    /// Devices of each metric.
    seen: BTreeMap<usize, BTreeSet<String>>,
    /// The last value of each device at each step.
    last: HashMap<(usize, String, Option<i32>), Last>,
    /// Values that a device reported again for one moment, with the first.
    conflicts: Vec<(Point, f64)>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    /// How often the step was done.
    times: u32,
    at: DateTime<Utc>,
    value: f64,
}

impl Devices {
    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }

    pub(super) fn put(&mut self, point: Point, device: String) {
        let key = (point.name, device.clone(), point.step);
        let before = self.last.get(&key).copied();
        if let Some(before) = before.filter(|before| before.at == point.at) {
            if !is_same(before.value, point.value) {
                self.conflicts.push((point, before.value));
            }
            return;
        }
        let times = before.map_or(1, |before| before.times + 1);
        let last = Last {
            times,
            at: point.at,
            value: point.value,
        };
        self.last.insert(key, last);
        let moment = match point.step {
            Some(step) => Moment::Step(step, times),
            None => Moment::Time(point.at.timestamp_micros()),
        };
        self.seen.entry(point.name).or_default().insert(device);
        let sum = self.sums.entry((point.name, moment)).or_insert(Sum {
            at: point.at,
            step: point.step,
            total: 0.0,
            count: 0.0,
        });
        sum.at = sum.at.max(point.at);
        sum.total += point.value;
        sum.count += 1.0;
    }

    /// Adds a point for each moment.
    pub(super) fn finish(self, batch: &mut Batch, report: &mut Report) {
        for (point, kept) in &self.conflicts {
            report.conflict(batch.names.get(point.name), point, *kept);
        }
        for (name, devices) in &self.seen {
            let Some(name) = batch.names.get(*name).filter(|name| adds_up(name)) else {
                continue;
            };
            let detail = match devices.len() {
                1 => format!("only one rank reports {name}: it was taken as that of the whole job"),
                count => format!("{name} is the sum over {count} ranks; losses are averaged"),
            };
            report.note("ranks", detail);
        }
        for ((name, _), sum) in self.sums {
            let devices = self.seen.get(&name).map_or(1, BTreeSet::len);
            let is_sum = batch.names.get(name).is_some_and(|name| adds_up(name));
            let mean = sum.total / sum.count;
            batch.points.push(Point {
                name,
                step: sum.step,
                at: sum.at,
                // A rank that is missing at some moment is as fast as the others.
                value: if is_sum { mean * real(devices) } else { mean },
            });
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of devices is small")]
fn real(devices: usize) -> f64 {
    devices as f64
}
