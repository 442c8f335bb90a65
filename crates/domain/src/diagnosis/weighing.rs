//! Which of the things that a log and a reason say is the cause: what nothing survived, the specific before the
//! general, and what a launcher or a waiting rank cries last behind what it cries about.

use std::collections::BTreeMap;

use super::hits::{Hit, first_and_last, hits};
use super::launcher::{Launcher, TableRow};
use super::line::{Level, Line};
use super::raised::{Kind, Raised, goes_on, is_noise, step_of, structure};
use super::signatures::{self, Class, Role, Signature};
use super::{Clue, Evidence, SeenIn, Standing};
use crate::sagemaker::log::one_line;

/// Steps after an error that prove that it was survived. One is not enough: other ranks, and a buffer that is emptied
/// at the end, print one or two.
const SURVIVED_STEPS: usize = 3;
/// Lines and minutes of a log that went on without saying its steps.
const SURVIVED_LINES: usize = 20;
const SURVIVED_MINUTES: usize = 10;
/// Of one signature, as many different causes are kept.
const SAME_MAX: usize = 3;
/// The exception that ended the process stands at this place at the latest, counted from 0.
const FINAL_PLACE: usize = 2;

/// Signatures of exceptions whatever they are, and of those without a text.
const RAISED: &str = "exception-raised";
const BARE: &str = "exception-bare";
const NATIVE: &str = "native-exception";
const ABORTED: &str = "aborted";
/// Ends of processes that a launcher may have caused itself.
const ENDS: [&str; 5] = [
    "rank-killed",
    ABORTED,
    "segmentation-fault",
    "bus-error",
    "stopped-from-outside",
];

/// Groups of causes, the likeliest first, in hundredths.
mod band {
    pub(super) const REASON: u32 = 0;
    pub(super) const CAUSE: u32 = 100;
    pub(super) const NEAR_SYMPTOM: u32 = 150;
    pub(super) const FINAL: u32 = 200;
    pub(super) const SYMPTOM: u32 = 300;
    pub(super) const ABORTED: u32 = 320;
    pub(super) const EXCEPTION: u32 = 400;
    pub(super) const LAUNCHERS: u32 = 500;
    pub(super) const GENERAL: u32 = 600;
    pub(super) const HANDLED: u32 = 800;
    pub(super) const CLEANED_UP: u32 = 900;
    pub(super) const SURVIVED: u32 = 1_000;
}

/// A match, and what it counts for.
#[derive(Debug, Clone)]
pub(super) struct WeighedMatch {
    pub(super) signature: &'static Signature,
    /// Its line; `None` in SageMaker's reason.
    line: Option<usize>,
    pub(super) cause: String,
    pub(super) clue: Clue,
    raised: Option<usize>,
    pub(super) standing: Standing,
    band: u32,
    /// It stands behind a more specific one, with which it says the same.
    is_behind: bool,
    /// The line that decides the order within its band.
    place: usize,
}

impl WeighedMatch {
    fn is(&self, id: &str) -> bool {
        self.signature.id == id
    }

    /// Whether it is more than that something failed, and nothing came after it.
    pub(super) fn says_something(&self) -> bool {
        self.signature.role != Role::General && self.is_live()
    }

    fn is_exception(&self) -> bool {
        self.is(RAISED) || self.is(BARE)
    }

    fn is_live(&self) -> bool {
        self.standing == Standing::Live
    }
}

/// All findings, the likeliest first, and the log's last line in case none of them explains the failure.
pub(super) struct Weighed {
    pub(super) found: Vec<WeighedMatch>,
    /// The log's last line that says something; `None` where a cause is known.
    pub(super) last_line: Option<(String, Clue)>,
}

/// A job's log with what is known of each line.
struct Log<'a> {
    lines: Vec<Line<'a>>,
    kinds: Vec<Kind>,
    raised: Vec<Raised>,
    launcher: Launcher,
    /// Classes of what is found on each line; a line without a match has no entry.
    classes: BTreeMap<usize, Vec<Class>>,
}

/// What waits, or is stopped, is never the reason.
fn is_of_waiting(class: Class) -> bool {
    matches!(class, Class::Network | Class::Rendezvous | Class::Stopped)
}

/// Finds and weighs all that the reason and the log say.
pub(super) fn weigh(evidence: &Evidence<'_>) -> Weighed {
    let reason = evidence.failure_reason.unwrap_or_default();
    let mut found = in_reason(reason);
    let lines: Vec<Line<'_>> = evidence
        .lines
        .unwrap_or_default()
        .iter()
        .map(Line::of)
        .collect();
    let hits: Vec<Vec<Hit>> = lines.iter().map(hits).collect();
    let on = |at: usize| {
        hits.get(at)
            .into_iter()
            .flatten()
            .map(|(signature, _)| *signature)
    };
    let is_exception = |at| on(at).any(|one| one.id == RAISED || one.id == BARE);
    let is_cause = |at| on(at).any(|one| one.role == Role::Cause);
    let (kinds, raised) = structure(&lines, is_exception, is_cause);
    let launcher = Launcher::of(&lines);
    let mut log = Log {
        lines,
        kinds,
        raised,
        launcher,
        classes: BTreeMap::new(),
    };
    found.extend(log.found(&hits));
    for one in &found {
        if let Some(line) = one.line {
            let classes = log.classes.entry(line).or_default();
            classes.extend(one.signature.class);
        }
    }
    let uncaught = log.uncaught();
    log.judge(&mut found, &uncaught);
    let last = log.last_of_the_first(&uncaught);
    log.rank(&mut found, last);
    put_behind(&mut found);
    found.sort_by_key(|one| (one.band, one.place, one.is_behind));
    let found = log.chosen(found, last);
    let is_unknown = !found.first().is_some_and(WeighedMatch::says_something);
    Weighed {
        last_line: is_unknown.then(|| log.last_line()).flatten(),
        found,
    }
}

fn in_reason(reason: &str) -> Vec<WeighedMatch> {
    let of = |hit: signatures::Match<'_>| WeighedMatch {
        signature: hit.signature,
        line: None,
        cause: hit.cause(),
        clue: Clue::bare(SeenIn::FailureReason, hit.line()),
        raised: None,
        standing: Standing::Live,
        band: match hit.signature.role {
            Role::Cause => band::REASON,
            Role::Symptom => band::FINAL,
            Role::General => band::GENERAL,
        },
        is_behind: false,
        place: 0,
    };
    signatures::in_reason(reason).map(of).collect()
}

impl Log<'_> {
    fn text(&self, at: usize) -> &str {
        self.lines.get(at).map_or("", |line| line.text.as_str())
    }

    fn clue(&self, at: usize) -> Clue {
        let Some(line) = self.lines.get(at) else {
            return Clue::bare(SeenIn::Log, "");
        };
        Clue {
            seen_in: SeenIn::Log,
            stream: Some(line.log.stream.clone()),
            at: Some(line.log.at),
            text: one_line(&line.log.message),
        }
    }

    fn one(&self, signature: &'static Signature, at: usize, cause: String) -> WeighedMatch {
        WeighedMatch {
            signature,
            line: Some(at),
            cause,
            clue: self.clue(at),
            raised: self.raised.iter().position(|one| one.line == at),
            standing: Standing::Live,
            band: band::GENERAL,
            is_behind: false,
            place: at + 1,
        }
    }

    /// Matches of all lines. An exception whose name no pattern knows is named by its traceback, and one without a text
    /// by the line of code that raised it.
    fn found(&self, hits: &[Vec<Hit>]) -> Vec<WeighedMatch> {
        let mut found: Vec<WeighedMatch> = first_and_last(hits)
            .into_iter()
            .map(|(at, (signature, cause))| self.one(signature, at, cause.clone()))
            .collect();
        for raised in self.raised.iter().filter(|raised| raised.has_traceback) {
            let mut own = found.iter_mut().filter(|one| one.line == Some(raised.line));
            let mut is_named = false;
            for one in &mut own {
                is_named = true;
                if let Some(code) = raised.code.as_ref().filter(|_| one.is(BARE)) {
                    let name = one.cause.split(", without").next().unwrap_or_default();
                    one.cause = format!("{name} at: {}", one_line(code));
                }
            }
            if let Some(signature) = signatures::by_id(RAISED).filter(|_| !is_named) {
                let cause = format!("The script raised {}", one_line(self.text(raised.line)));
                found.push(self.one(signature, raised.line, cause));
            }
        }
        found
    }

    fn is_waiting(&self, line: usize) -> bool {
        let classes = self.classes.get(&line).into_iter().flatten();
        classes.into_iter().any(|class| is_of_waiting(*class))
    }

    /// Whether its process went on after a line: it did steps, or wrote for many minutes.
    fn is_survived(&self, at: usize, is_of_numbers: bool) -> bool {
        let Some(own) = self.lines.get(at) else {
            return false;
        };
        let (mut steps, mut minutes, mut rest) = (Vec::new(), Vec::new(), 0);
        let after = self.lines.iter().zip(&self.kinds).skip(at + 1);
        for (line, kind) in after.filter(|(line, _)| line.log.stream == own.log.stream) {
            if is_of_numbers && line.text.to_ascii_lowercase().contains("nan") {
                continue;
            }
            rest += 1;
            let minute = line.log.at.timestamp().div_euclid(60);
            if minutes.len() < SURVIVED_MINUTES && !minutes.contains(&minute) {
                minutes.push(minute);
            }
            // Another rank's steps prove nothing.
            let is_other = line.rank.is_some() && own.rank.is_some() && line.lane() != own.lane();
            let is_step = *kind == Kind::Progress && !is_other;
            if let Some(step) = is_step.then(|| step_of(&line.text)).flatten()
                && !steps.contains(&step)
            {
                steps.push(step);
            }
            let is_long = rest >= SURVIVED_LINES && minutes.len() >= SURVIVED_MINUTES;
            if steps.len() >= SURVIVED_STEPS || is_long {
                return true;
            }
        }
        false
    }

    /// Exceptions of the script that nothing survived.
    fn uncaught(&self) -> Vec<usize> {
        let all = self.raised.iter().enumerate();
        let of_script = all.filter(|(_, one)| !one.is_launchers);
        let uncaught = of_script.filter(|(_, one)| !self.is_survived(one.line, false));
        let (aside, own): (Vec<_>, Vec<_>) = uncaught.partition(|(_, one)| one.is_aside);
        let uncaught = if own.is_empty() { aside } else { own };
        uncaught.into_iter().map(|(at, _)| at).collect()
    }

    /// The last uncaught exception of the process of a line, those of waiting left out.
    fn last_in_lane(&self, at: usize, uncaught: &[usize]) -> Option<&Raised> {
        let process = self.lines.get(at)?.lane();
        let is_own = |one: &&Raised| {
            let own = self.lines.get(one.line);
            own.is_some_and(|line| line.lane() == process) && !self.is_waiting(one.line)
        };
        let mut of_lane = uncaught
            .iter()
            .filter_map(|one| self.raised.get(*one))
            .filter(is_own);
        of_lane.next_back()
    }

    /// Says of each match whether anything survived it, handled it or caused it in cleaning up.
    fn judge(&self, found: &mut [WeighedMatch], uncaught: &[usize]) {
        for at in 0..found.len() {
            let Some(one) = found.get(at) else { continue };
            let Some(line) = one.line else { continue };
            let is_of_numbers = one.signature.class == Some(Class::Numerics);
            let standing = if self.is_survived(line, is_of_numbers) {
                Standing::Survived
            } else if self.is_cleaned_up(one, line, uncaught, found) {
                Standing::CleanedUp
            } else if self.is_handled(one, line, uncaught) {
                Standing::Handled
            } else {
                continue;
            };
            if let Some(one) = found.get_mut(at) {
                one.standing = standing;
            }
        }
    }

    /// Whether a launcher ended this process because of another.
    fn is_cleaned_up(
        &self,
        one: &WeighedMatch,
        line: usize,
        uncaught: &[usize],
        found: &[WeighedMatch],
    ) -> bool {
        let is_raised_before = |end: usize| {
            let mut before = uncaught.iter().filter_map(|at| self.raised.get(*at));
            before.any(|raised| raised.line < end)
        };
        if one.signature.class == Some(Class::Stopped) {
            let is_outcry = |raised: &Raised| raised.line < line && !self.is_waiting(raised.line);
            let mut raised = uncaught.iter().filter_map(|at| self.raised.get(*at));
            let is_earlier_cause = |other: &WeighedMatch| {
                other.line.is_some_and(|own| own < line)
                    && other.is_live()
                    && other.signature.role == Role::Cause
            };
            if raised.any(is_outcry) || found.iter().any(is_earlier_cause) {
                return true;
            }
        }
        if !ENDS.contains(&one.signature.id.as_str()) {
            return false;
        }
        let row = self.launcher.row(line);
        if row == Some(TableRow::Other) {
            return true;
        }
        if self.launcher.root_code.is_some_and(|code| code > 0) && row != Some(TableRow::Root) {
            return true;
        }
        let from = self.launcher.cleans_up_from.filter(|from| *from < line);
        from.is_some_and(|from| !Launcher::is_exit(self.text(line)) && is_raised_before(from))
    }

    /// Whether the script went on from it: it raised another exception later, with lines of its own in between.
    fn is_handled(&self, one: &WeighedMatch, line: usize, uncaught: &[usize]) -> bool {
        let raised = one.raised.and_then(|at| self.raised.get(at));
        // What ran out is the cause of whatever was raised while that was handled.
        let ran_out = matches!(
            one.signature.class,
            Some(
                Class::AcceleratorMemory
                    | Class::HostMemory
                    | Class::SharedMemory
                    | Class::Disk
                    | Class::Hardware
            )
        );
        if !ran_out && raised.is_some_and(|raised| raised.was_handled) {
            return true;
        }
        let Some(last) = self.last_in_lane(line, uncaught) else {
            return false;
        };
        if line >= last.from || !last.has_traceback {
            return false;
        }
        let is_alone = |raised: &Raised| raised.followed_by.is_none();
        if raised.is_some_and(|raised| is_alone(raised) && self.goes_on(raised, last)) {
            return true;
        }
        let level = self.lines.get(line).and_then(|own| own.level);
        let is_warning =
            level.is_some_and(|level| level <= Level::Warning) || goes_on(self.text(line));
        let classes = self.classes.get(&last.line);
        let is_same = |class: Class| classes.is_some_and(|known| known.contains(&class));
        is_warning && !one.signature.class.is_some_and(is_same)
    }

    /// The exception that ended the process that failed first.
    fn last_of_the_first(&self, uncaught: &[usize]) -> Option<usize> {
        let line = |at: &usize| self.raised.get(*at).map_or(0, |one| one.line);
        let is_script = |at: &&usize| !self.is_waiting(line(at));
        let process = |at: &usize| self.lines.get(line(at)).map(Line::lane);
        let root = self.launcher.root_rank.as_deref();
        let of_root = uncaught.iter().find(|at| {
            let own = self.lines.get(line(at));
            root.is_some() && own.is_some_and(|own| own.rank.as_deref() == root)
        });
        let first = of_root
            .or_else(|| uncaught.iter().find(is_script))
            .or_else(|| uncaught.first())?;
        let own: Vec<&usize> = uncaught
            .iter()
            .filter(|at| process(at) == process(first))
            .collect();
        let of_script: Vec<&usize> = own.iter().copied().filter(is_script).collect();
        let outcry = if of_script.is_empty() { own } else { of_script };
        // Several processes may share a stream: the first that was not handled, and what followed from it.
        let last_of_lane = outcry
            .iter()
            .filter_map(|at| self.raised.get(**at))
            .next_back();
        let is_handled = |at: &&&usize| {
            let Some((one, last)) = self.raised.get(***at).zip(last_of_lane) else {
                return false;
            };
            one.was_handled || (one.followed_by.is_none() && self.goes_on(one, last))
        };
        let mut at = **outcry
            .iter()
            .find(|at| !is_handled(at))
            .or(outcry.first())?;
        while let Some(next) = self.raised.get(at).and_then(|one| one.followed_by) {
            at = next;
        }
        Some(at)
    }

    /// Whether ordinary lines stand between an exception and the last one of its process.
    fn goes_on(&self, one: &Raised, last: &Raised) -> bool {
        let process = self.lines.get(one.line).map(Line::lane);
        last.has_traceback
            && (one.line + 1..last.from).any(|at| {
                let own = self.lines.get(at);
                own.is_some_and(|own| {
                    Some(own.lane()) == process && own.level != Some(Level::Error)
                }) && self.kinds.get(at) == Some(&Kind::Plain)
                    && !self.classes.contains_key(&at)
            })
    }

    fn rank(&self, found: &mut [WeighedMatch], last: Option<usize>) {
        let last = last.and_then(|at| self.raised.get(at));
        for one in found.iter_mut() {
            if let Some(line) = one.line {
                one.band = self.band(one, line, last);
            }
        }
        let is_waiting = |one: &WeighedMatch| {
            one.signature.role == Role::Symptom
                && one.line.is_some_and(|line| self.is_waiting(line))
        };
        let is_launchers = |one: &WeighedMatch| {
            let raised = one.raised.and_then(|at| self.raised.get(at));
            raised.is_some_and(|raised| raised.is_launchers)
        };
        let says_more = |one: &WeighedMatch| {
            one.is_live()
                && one.signature.role != Role::General
                && !one.is("no-kernel-image-warned")
                && !one.is(ABORTED)
                && !is_waiting(one)
                && !is_launchers(one)
        };
        if !found.iter().any(says_more) {
            return;
        }
        for one in found.iter_mut() {
            if is_waiting(one) && one.band < band::SYMPTOM {
                one.band = band::SYMPTOM;
            }
        }
    }

    fn band(&self, one: &WeighedMatch, line: usize, last: Option<&Raised>) -> u32 {
        match one.standing {
            Standing::Handled => return band::HANDLED,
            Standing::CleanedUp => return band::CLEANED_UP,
            Standing::Survived => return band::SURVIVED,
            Standing::Live => {}
        }
        if one.is(ABORTED) {
            return band::ABORTED;
        }
        if one.is_exception() || one.is(NATIVE) {
            let raised = one.raised.and_then(|at| self.raised.get(at));
            return if last.is_some_and(|last| last.line == line) {
                band::FINAL
            } else if raised.is_some_and(|raised| raised.is_launchers) {
                band::LAUNCHERS
            } else {
                band::EXCEPTION
            };
        }
        match one.signature.role {
            Role::Cause => band::CAUSE,
            Role::General => band::GENERAL,
            Role::Symptom => {
                let is_near = last.is_none_or(|last| {
                    let classes = self.classes.get(&last.line);
                    let is_class = |class| classes.is_some_and(|known| known.contains(&class));
                    let process = |at: usize| self.lines.get(at).map(Line::lane);
                    line == last.line
                        || one.signature.class.is_some_and(is_class)
                        || (process(line) == process(last.line)
                            && (last.from..=last.line).contains(&line))
                });
                if is_near {
                    band::NEAR_SYMPTOM
                } else {
                    band::SYMPTOM
                }
            }
        }
    }

    /// Each cause once, of one signature a few at most, and the exception that ended it among the first.
    fn chosen(&self, found: Vec<WeighedMatch>, last: Option<usize>) -> Vec<WeighedMatch> {
        let mut chosen: Vec<WeighedMatch> = Vec::new();
        for one in found {
            let same = chosen
                .iter()
                .filter(|other| std::ptr::eq(other.signature, one.signature));
            let is_known = same
                .clone()
                .any(|other| other.cause == one.cause && other.standing == one.standing);
            if !is_known && same.count() < SAME_MAX {
                chosen.push(one);
            }
        }
        let Some(last) = last.and_then(|at| self.raised.get(at)) else {
            return chosen;
        };
        let is_last = |one: &WeighedMatch| one.line == Some(last.line);
        match chosen
            .iter()
            .position(|one| is_last(one) && one.is_exception())
        {
            Some(at) if at > FINAL_PLACE => {
                let own = chosen.remove(at);
                chosen.insert(FINAL_PLACE, own);
            }
            None if !chosen.iter().any(is_last) => {
                if let Some(signature) = signatures::by_id(RAISED) {
                    let cause = format!("The script raised {}", one_line(self.text(last.line)));
                    let own = self.one(signature, last.line, cause);
                    chosen.insert(FINAL_PLACE.min(chosen.len()), own);
                }
            }
            _ => {}
        }
        chosen
    }

    /// The last line that is neither a frame nor a library's outcry.
    fn last_line(&self) -> Option<(String, Clue)> {
        let says_something = |at: &usize| {
            let is_said = matches!(self.kinds.get(*at), Some(Kind::Plain | Kind::Exception));
            let text = self.text(*at);
            is_said && !text.trim().is_empty() && !is_noise(text)
        };
        let last = (0..self.lines.len()).rev().find(says_something);
        let at = last.or_else(|| self.lines.len().checked_sub(1))?;
        Some((one_line(self.text(at)), self.clue(at)))
    }
}

/// Puts what says no more than a more specific match right behind it.
fn put_behind(found: &mut [WeighedMatch]) {
    for at in 0..found.len() {
        let Some(one) = found.get(at).filter(|one| one.is_live()) else {
            continue;
        };
        let is_over = |other: &&WeighedMatch| {
            other.is_live()
                && other.signature.over.contains(&one.signature.id)
                && (!one.is_exception() || other.line == one.line)
        };
        let Some(better) = found.iter().find(is_over) else {
            continue;
        };
        let (band, place) = (one.band.max(better.band) + 1, one.place.max(better.place));
        if let Some(one) = found.get_mut(at) {
            (one.band, one.place, one.is_behind) = (band, place, true);
        }
    }
}
