//! Why a step of a pipeline does not begin.

use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::decide::PipelineFunds;
use bakeoff_domain::pipeline::reference::Unresolved;
use bakeoff_store::StoreError;

use crate::use_cases::endpoints::NotServable;
use crate::use_cases::full_run::NoFullRun;
use crate::use_cases::model_packages::NotRegistrable;

/// Why nothing begins.
#[derive(Debug)]
pub enum NotReady {
    /// It cannot: the step has failed.
    Never(String),
    /// It may later.
    Later(String),
    Store(StoreError),
}

impl From<StoreError> for NotReady {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Unresolved> for NotReady {
    fn from(unresolved: Unresolved) -> Self {
        let Unresolved { reference, why } = unresolved;
        Self::Never(format!("{} stands for nothing: {why}", reference.text()))
    }
}

impl From<NoFullRun> for NotReady {
    fn from(none: NoFullRun) -> Self {
        match none {
            NoFullRun::NotNow(why) => Self::Never(why),
            NoFullRun::Unknown { detail, fix, .. } => Self::Never(format!("{detail}: {fix}")),
            NoFullRun::Aws(error) => Self::Later(error.to_string()),
            NoFullRun::Store(error) => Self::Store(error),
        }
    }
}

impl From<NotServable> for NotReady {
    fn from(none: NotServable) -> Self {
        match none {
            NotServable::Wrong(flaws) => {
                let told = flaws
                    .iter()
                    .map(|flaw| format!("{} {}", flaw.pointer, flaw.detail));
                Self::Never(told.collect::<Vec<_>>().join("; "))
            }
            NotServable::NotYet(why) => Self::Later(why),
            NotServable::Never(why) | NotServable::NoScheduledEnd(why) => Self::Never(why),
            NotServable::Store(error) => Self::Store(error),
        }
    }
}

impl From<NotRegistrable> for NotReady {
    fn from(none: NotRegistrable) -> Self {
        match none {
            NotRegistrable::NoModel(why) => Self::Never(why),
            NotRegistrable::Wrong(flaws) => {
                let told = flaws
                    .iter()
                    .map(|flaw| format!("{} {}", flaw.pointer, flaw.detail));
                Self::Never(told.collect::<Vec<_>>().join("; "))
            }
            NotRegistrable::Store(error) => Self::Store(error),
        }
    }
}

/// There is too little money for a step: for now, or for good.
pub(super) fn short(needed: Usd, means: PipelineFunds) -> NotReady {
    let (left, budget) = (means.left(), means.budget_usd);
    let why = format!("it may cost {needed}, and {left} of the pipeline's {budget} is left");
    if means.held_usd > Usd::ZERO {
        NotReady::Later(format!(
            "{why}: it waits for steps that may not need all of theirs"
        ))
    } else {
        NotReady::Never(why)
    }
}
