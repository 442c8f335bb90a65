//! Which instance types serve models: their own lists, much longer than that of training for endpoints, and
//! without p4 and p5 for batch transform.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::embedded;

#[derive(Deserialize)]
struct Lists {
    realtime: BTreeSet<String>,
    transform: BTreeSet<String>,
}

fn lists() -> &'static Lists {
    static LISTS: LazyLock<Lists> = LazyLock::new(|| {
        let text = include_str!("../../data/serving_types.json");
        embedded::json("serving_types.json", text)
    });
    &LISTS
}

/// What a model is served by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// An endpoint (ProductionVariantInstanceType).
    Endpoint,
    /// A batch transform (TransformInstanceType).
    Transform,
}

impl Serving {
    /// Whether SageMaker offers a type for it.
    pub fn offers(self, instance_type: &str) -> bool {
        self.types().contains(instance_type)
    }

    /// All types that SageMaker offers for it.
    pub fn types(self) -> &'static BTreeSet<String> {
        match self {
            Self::Endpoint => &lists().realtime,
            Self::Transform => &lists().transform,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transform_has_fewer_types_than_endpoints_and_no_p5() {
        let counts = [Serving::Endpoint, Serving::Transform].map(|one| one.types().len());
        assert_eq!(counts, [277, 116]);
        assert!(Serving::Endpoint.offers("ml.p5.48xlarge"));
        assert!(!Serving::Transform.offers("ml.p5.48xlarge"));
        assert!(Serving::Transform.offers("ml.g5.xlarge"));
        assert!(!Serving::Endpoint.offers("ml.p9.huge"));
    }
}
