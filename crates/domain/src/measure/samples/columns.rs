//! What a column is, by its name: a clock, a step, a device, or a metric. Names are compared in lower case, without
//! the unit in brackets that nvidia-smi adds.

/// Where a step counter comes from; the best that a file has is believed, and the others are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// Says that it counts steps of the optimiser.
    Optimizer,
    /// A framework's step.
    Step,
    /// May count micro-batches.
    Iteration,
    /// Counts calls of `log`, which W&B does where no step is given.
    LogCalls,
}

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A point in time; the lower, the better.
    Clock(usize),
    /// Seconds since the start; the lower, the better.
    Elapsed(usize),
    /// A count of steps; of equal counters, the lower number is believed.
    Step(Counter, usize),
    /// Which of several devices or ranks the record is of.
    Device,
    /// In a table with one value a row: the metric's name.
    MetricName,
    /// In such a table: the value.
    Value,
    /// Whether the record is of the training or of an evaluation.
    Split,
    /// Which of several runs the record is of.
    Run,
    /// Nothing that is measured.
    Skipped(&'static str),
    Metric,
}

const CLOCKS: [&str; 11] = [
    "timestamp",
    "_timestamp",
    "wall_time",
    "wall time",
    "walltime",
    "at",
    "time",
    "datetime",
    "created_at",
    "asctime",
    "ts",
];
const ELAPSED: [&str; 9] = [
    "relative time (process)",
    "relative time (wall)",
    "relative time",
    "elapsed_time",
    "elapsed_seconds",
    "elapsed",
    "_runtime",
    "time_since_start",
    "time_total_s",
];
const OPTIMIZER_STEPS: [&str; 8] = [
    "optimizer_step",
    "optimizer_steps",
    "optimiser_step",
    "optim_step",
    "opt_step",
    "num_updates",
    "num_update",
    "update_step",
];
const STEPS: [&str; 11] = [
    "global_step",
    "step",
    "steps",
    "current_step",
    "current_steps",
    "completed_steps",
    "train_step",
    "train_steps",
    "training_step",
    "num_steps",
    "batch",
];
const ITERATIONS: [&str; 5] = ["iteration", "iterations", "iter", "it", "iter_num"];
const DEVICES: [&str; 18] = [
    "gpu_id",
    "gpu_index",
    "gpu_uuid",
    "uuid",
    "device",
    "device_id",
    "device_index",
    "rank",
    "local_rank",
    "global_rank",
    "world_rank",
    "node_rank",
    "process_index",
    "worker",
    "host",
    "hostname",
    "node",
    "node_id",
];
/// Folders in which a framework's own steps stand: `trainer/global_step`, `time/batch`.
const STEP_FOLDERS: [&str; 4] = ["train", "trainer", "time", "training"];

/// In a table with one value a row: the column of the metric's name, and that of the value. Comet's are one word.
const METRIC_NAMES: [&str; 5] = ["metric", "key", "tag", "metric_name", "metricname"];
const VALUES: [&str; 2] = ["value", "metricvalue"];

/// Marks of nvidia-smi's query: every line is of one GPU, and `index` is which.
const NVIDIA_SMI: [&str; 4] = [
    "utilization.gpu",
    "memory.used",
    "power.draw",
    "temperature.gpu",
];

/// A name without case, quotes and the unit in brackets: `utilization.gpu [%]` is `utilization.gpu`.
pub(super) fn normalised(name: &str) -> String {
    let name = name.trim().trim_matches('"');
    let bare = match name.rsplit_once(" [") {
        Some((bare, unit)) if unit.ends_with(']') => bare,
        _ => name,
    };
    bare.to_ascii_lowercase()
}

/// A W&B panel's name without the run before it: `brisk-fox-12 - train/loss` is of run `brisk-fox-12`.
pub(super) fn of_panel(name: &str) -> Option<(&str, &str)> {
    name.trim().trim_matches('"').rsplit_once(" - ")
}

/// What kind of table it is, as far as it changes what a name means.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kind {
    /// nvidia-smi's.
    pub(super) is_of_gpus: bool,
    /// W&B's panel: its columns are of runs.
    pub(super) is_panel: bool,
    /// One value a row.
    pub(super) is_long: bool,
    /// MMEngine's or Detectron2's: `time` is that of a step, of which `data_time` is a part.
    pub(super) is_timed_by_step: bool,
}

/// Whether all columns but the clock and the step are of a run: `brisk-fox-12 - train/loss`.
fn is_panel<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let is_of_run = |name: &&str| of_panel(name).is_some_and(|(_, metric)| !metric.is_empty());
    let (of_runs, others): (Vec<&str>, Vec<&str>) = names.partition(is_of_run);
    let is_axis = |name: &&str| {
        let normal = normalised(name);
        CLOCKS.contains(&normal.as_str())
            || ELAPSED.contains(&normal.as_str())
            || counter(&normal).is_some()
    };
    !of_runs.is_empty() && others.iter().all(is_axis)
}

impl Kind {
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let normal: Vec<String> = names.clone().map(normalised).collect();
        let has = |name: &str| normal.iter().any(|known| known == name);
        let is_named = METRIC_NAMES.into_iter().any(has);
        Self {
            is_of_gpus: NVIDIA_SMI.into_iter().any(has),
            is_panel: is_panel(names),
            is_long: VALUES.into_iter().any(has) && (is_named || has("name")),
            is_timed_by_step: has("time") && has("data_time"),
        }
    }

    /// The usual name of a column that this kind of table calls something else.
    pub(super) fn meant(self, name: &str) -> &str {
        if self.is_panel {
            return of_panel(name).map_or(name, |(_, metric)| metric);
        }
        match name {
            "time" if self.is_timed_by_step => "step_time",
            "total_loss" if self.is_timed_by_step => "loss",
            name => name,
        }
    }

    /// The role of a column.
    pub(super) fn role(self, name: &str) -> Role {
        let normal = normalised(self.meant(name));
        let normal = normal.as_str();
        if normal.is_empty() || normal.starts_with("unnamed: ") || normal == "level_0" {
            return Role::Skipped("the number of the row, which pandas adds");
        }
        if self.is_panel && (normal.ends_with("__min") || normal.ends_with("__max")) {
            return Role::Skipped("the band that the panel drew around its line");
        }
        if self.is_of_gpus && matches!(normal, "index" | "name" | "pci.bus_id" | "serial") {
            return Role::Device;
        }
        if normal == "index" {
            return Role::Skipped("the number of the row, which pandas adds");
        }
        if self.is_long && (METRIC_NAMES.contains(&normal) || normal == "name") {
            return Role::MetricName;
        }
        if VALUES.contains(&normal) {
            return Role::Value;
        }
        if self.is_panel && normal == "step" {
            return Role::Step(Counter::LogCalls, 0);
        }
        usual(normal)
    }
}

/// What a name is in any table.
fn usual(normal: &str) -> Role {
    let at = |list: &[&str]| list.iter().position(|known| *known == normal);
    if let Some(order) = at(&CLOCKS) {
        return Role::Clock(order);
    }
    if let Some(order) = at(&ELAPSED) {
        return Role::Elapsed(order);
    }
    if matches!(
        normal,
        "split" | "phase" | "mode" | "stage" | "subset" | "variant"
    ) {
        return Role::Split;
    }
    if at(&DEVICES).is_some() {
        return Role::Device;
    }
    if matches!(
        normal,
        "run_id" | "run" | "run id" | "run_name" | "run_uuid" | "dir_name"
    ) {
        return Role::Run;
    }
    counter(normal).unwrap_or(Role::Metric)
}

/// Which counter of steps a name is, if any.
fn counter(normal: &str) -> Option<Role> {
    if normal == "_step" {
        return Some(Role::Step(Counter::LogCalls, 0));
    }
    let bare = match normal.rsplit_once(['/', '.']) {
        Some((folder, bare)) if STEP_FOLDERS.contains(&folder) => bare,
        Some(_) => return None,
        None => normal,
    };
    let at = |list: &[&str]| list.iter().position(|known| *known == bare);
    if let Some(order) = at(&OPTIMIZER_STEPS) {
        return Some(Role::Step(Counter::Optimizer, order));
    }
    // `batch` alone is an index within an epoch, or a size; Composer's `time/batch` counts steps.
    if bare == "batch" && normal != "time/batch" {
        return None;
    }
    if let Some(order) = at(&STEPS) {
        return Some(Role::Step(Counter::Step, order));
    }
    at(&ITERATIONS).map(|order| Role::Step(Counter::Iteration, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str) -> Role {
        Kind::default().role(name)
    }

    #[test]
    fn steps_of_the_optimiser_come_before_all_others() {
        let named = |name: &str| match role(name) {
            Role::Step(counter, _) => counter,
            other => panic!("{name} is {other:?}"),
        };
        assert!(named("optimizer_step") < named("train/global_step"));
        assert!(named("trainer/global_step") < named("iteration"));
        assert!(named("iter") < named("_step"));
        assert_eq!(named("time/batch"), Counter::Step);
        assert_eq!(role("batch"), Role::Metric, "an index within an epoch");
        assert_eq!(role("eval/step"), Role::Metric, "counts evaluations");
    }

    #[test]
    fn a_panels_step_counts_calls_of_log() {
        let panel = Kind::of(["Step", "brisk-fox-12 - train/loss"].into_iter());
        assert_eq!(panel.role("Step"), Role::Step(Counter::LogCalls, 0));
        assert!(matches!(role("Step"), Role::Step(Counter::Step, _)));
        assert!(matches!(
            panel.role("brisk-fox-12 - train/loss__MIN"),
            Role::Skipped(_)
        ));
    }

    #[test]
    fn an_index_is_a_gpu_only_where_nvidia_smi_wrote_it() {
        let smi = Kind::of(["timestamp", "index", "utilization.gpu [%]"].into_iter());
        assert_eq!(smi.role("index"), Role::Device);
        assert!(matches!(role("index"), Role::Skipped(_)));
    }
}
