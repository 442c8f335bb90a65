//! The id of anything that a command looks at or changes: its prefix says what it is of.

use std::fmt;
use std::str::FromStr;

use bakeoff_domain::ids::{
    CiRunId, EndpointId, ExperimentId, ModelPackageId, PipelineId, RunId, TrialId,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnyId {
    Experiment(ExperimentId),
    Trial(TrialId),
    Run(RunId),
    Pipeline(PipelineId),
    Endpoint(EndpointId),
    Model(ModelPackageId),
    CiRun(CiRunId),
}

impl FromStr for AnyId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn of<T>(text: &str, any: fn(T) -> AnyId) -> Result<AnyId, String>
        where
            T: FromStr<Err: fmt::Display>,
        {
            text.parse()
                .map(any)
                .map_err(|error: T::Err| error.to_string())
        }
        match text.split_once('_').map_or("", |(kind, _)| kind) {
            "exp" => of(text, Self::Experiment),
            "trl" => of(text, Self::Trial),
            "run" => of(text, Self::Run),
            "pip" => of(text, Self::Pipeline),
            "end" => of(text, Self::Endpoint),
            "mpk" => of(text, Self::Model),
            "cir" => of(text, Self::CiRun),
            _ => Err(
                "an id begins with exp_, trl_, run_, pip_, end_, mpk_ or cir_; bakeoff ls lists them"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for AnyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment(id) => id.fmt(f),
            Self::Trial(id) => id.fmt(f),
            Self::Run(id) => id.fmt(f),
            Self::Pipeline(id) => id.fmt(f),
            Self::Endpoint(id) => id.fmt(f),
            Self::Model(id) => id.fmt(f),
            Self::CiRun(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_whole() {
        let text = format!("trl_{}", "0".repeat(32));
        let id: AnyId = text.parse().unwrap();
        assert_eq!(
            (id.to_string(), matches!(id, AnyId::Trial(_))),
            (text, true)
        );
        // In a path, this would be another request.
        assert!("exp_a/../../trials/x".parse::<AnyId>().is_err());
        assert!("nothing".parse::<AnyId>().is_err());
    }
}
