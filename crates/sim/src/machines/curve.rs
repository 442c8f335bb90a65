//! How a script gets through its work: its speed at each moment of a stretch of training, as a share
//! of full speed. A slow start, evaluations, checkpoints, stalls and drift are pieces of one curve.

/// How long the plain script takes to reach full speed, and its share of full speed until then.
pub(crate) const WARM_UP: WarmUp = WarmUp {
    seconds: 180.0,
    share: 0.6,
};
/// How often the drift is looked at.
const DRIFT_STEP_SECONDS: f64 = 1800.0;
const DAY_SECONDS: f64 = 86_400.0;
/// Moments this close are the same.
const ROUNDING: f64 = 1e-6;

/// A slow start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WarmUp {
    pub(crate) seconds: f64,
    pub(crate) share: f64,
}

/// Time without a step, again and again: the first begins one interval after the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pause {
    pub(crate) every_seconds: f64,
    pub(crate) seconds: f64,
}

/// A moment at which everything is slower, as when data is late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stall {
    pub(crate) at: f64,
    pub(crate) seconds: f64,
    pub(crate) share: f64,
}

/// What slows a script down.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Habits {
    pub(crate) warm_up: WarmUp,
    pub(crate) pauses: Vec<Pause>,
    /// By start.
    pub(crate) stalls: Vec<Stall>,
    /// Share of its speed that it loses gradually within a day, and does not get back.
    pub(crate) lost_in_a_day: f64,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            warm_up: WARM_UP,
            pauses: Vec::new(),
            stalls: Vec::new(),
            lost_in_a_day: 0.0,
        }
    }
}

/// From one moment on, until the next piece.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    at: f64,
    /// Seconds at full speed done before it.
    work: f64,
    share: f64,
}

/// Speed over the seconds of a stretch of training. Work is counted in seconds at full speed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve(Vec<Piece>);

impl Curve {
    /// The curve of these habits over `horizon` seconds; after it, the speed stays as it is.
    pub(crate) fn of(habits: &Habits, horizon: f64) -> Self {
        let mut work = 0.0;
        let mut pieces: Vec<Piece> = Vec::new();
        for at in habits.changes(horizon) {
            if let Some(last) = pieces.last() {
                work += (at - last.at) * last.share;
            }
            let share = habits.share(at);
            pieces.push(Piece { at, work, share });
        }
        Self(pieces)
    }

    /// Work done within the first `elapsed` seconds.
    pub(crate) fn work_in(&self, elapsed: f64) -> f64 {
        let piece = self.piece(|piece| piece.at <= elapsed);
        piece.work + (elapsed - piece.at) * piece.share
    }

    /// Seconds that some work takes.
    pub(crate) fn wall_for(&self, work: f64) -> f64 {
        let piece = self.piece(|piece| piece.work < work);
        piece.at + ((work - piece.work) / piece.share.max(f64::EPSILON)).max(0.0)
    }

    /// The share of full speed while the script was doing steps between two moments; `None` if it
    /// did none.
    pub(crate) fn share_between(&self, from: f64, until: f64) -> Option<f64> {
        let begin = self.0.partition_point(|piece| piece.at <= from);
        let pieces = self.0.get(begin.saturating_sub(1)..)?;
        let ends = pieces.iter().skip(1).map(|piece| piece.at);
        let stepping: f64 = pieces
            .iter()
            .zip(ends.chain([f64::INFINITY]))
            .take_while(|(piece, _)| piece.at < until)
            .filter(|(piece, _)| piece.share > 0.0)
            .map(|(piece, end)| end.min(until) - piece.at.max(from))
            .sum();
        (stepping > 0.0).then(|| (self.work_in(until) - self.work_in(from)) / stepping)
    }

    /// The last piece for which something holds that holds for the first ones only.
    fn piece(&self, holds: impl Fn(&Piece) -> bool) -> Piece {
        let place = self.0.partition_point(holds).saturating_sub(1);
        self.0.get(place).copied().unwrap_or(Piece {
            at: 0.0,
            work: 0.0,
            share: 1.0,
        })
    }
}

impl Habits {
    /// The moments at which the speed may change, in order.
    fn changes(&self, horizon: f64) -> Vec<f64> {
        let every = |interval: f64| {
            (1_u32..)
                .map(move |nth| f64::from(nth) * interval)
                .take_while(move |at| interval > 0.0 && *at < horizon)
        };
        let mut all = vec![0.0, self.warm_up.seconds];
        for pause in &self.pauses {
            all.extend(every(pause.every_seconds).flat_map(|at| [at, at + pause.seconds]));
        }
        for stall in &self.stalls {
            all.extend([stall.at, stall.at + stall.seconds]);
        }
        if self.lost_in_a_day > 0.0 {
            all.extend(every(DRIFT_STEP_SECONDS));
        }
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    fn share(&self, at: f64) -> f64 {
        let pauses = self.pauses.iter().any(|pause| {
            let begun = ((at + ROUNDING) / pause.every_seconds).floor();
            begun >= 1.0 && at - begun * pause.every_seconds < pause.seconds - ROUNDING
        });
        if pauses {
            return 0.0;
        }
        let begun = self.stalls.partition_point(|stall| stall.at <= at);
        let stall = self.stalls.get(begun.saturating_sub(1));
        let stalled = stall
            .filter(|stall| (stall.at..stall.at + stall.seconds).contains(&at))
            .map_or(1.0, |stall| stall.share);
        let warm = if at < self.warm_up.seconds {
            self.warm_up.share
        } else {
            1.0
        };
        warm * stalled * (1.0 - self.lost_in_a_day * (at / DAY_SECONDS).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn a_slow_start_costs_its_share_once() {
        let curve = Curve::of(&Habits::default(), 86_400.0);
        assert!(near(curve.work_in(90.0), 54.0));
        assert!(near(curve.work_in(1000.0), 1000.0 - 0.4 * 180.0));
        assert!(near(curve.wall_for(curve.work_in(1000.0)), 1000.0));
        assert!(near(curve.wall_for(54.0), 90.0));
    }

    #[test]
    fn time_without_steps_does_no_work_and_has_no_speed() {
        let habits = Habits {
            pauses: vec![
                Pause {
                    every_seconds: 600.0,
                    seconds: 60.0,
                },
                Pause {
                    every_seconds: 900.0,
                    seconds: 30.0,
                },
            ],
            ..Habits::default()
        };
        let curve = Curve::of(&habits, 7200.0);
        // Until 1,850 s: warm-up, evaluations at 600, 1,200 and 1,800 s, and a checkpoint at 900 s;
        // the one at 1,800 s is within an evaluation.
        assert!(near(
            curve.work_in(1850.0),
            1850.0 - 72.0 - 120.0 - 50.0 - 30.0
        ));
        assert_eq!(curve.share_between(600.0, 660.0), None);
        assert!(near(curve.share_between(540.0, 630.0).unwrap(), 1.0));
        let work = curve.work_in(4000.0);
        assert!(near(curve.work_in(curve.wall_for(work)), work));
        assert!(curve.wall_for(work) <= 4000.0 + 1e-6);
    }

    #[test]
    fn stalls_slow_it_down_and_drift_stays() {
        let habits = Habits {
            stalls: vec![Stall {
                at: 1000.0,
                seconds: 100.0,
                share: 0.25,
            }],
            lost_in_a_day: 0.10,
            ..Habits::default()
        };
        let curve = Curve::of(&habits, 3.0 * DAY_SECONDS);
        let stalled = curve.share_between(1000.0, 1100.0).unwrap();
        assert!((0.249..0.25).contains(&stalled), "{stalled}");
        let late = curve.share_between(100_000.0, 101_000.0).unwrap();
        assert!(near(late, 0.9), "{late}");
        assert!(near(curve.wall_for(curve.work_in(200_000.0)), 200_000.0));
    }
}
