//! Which instance types run processing jobs: their own list, without most types that train large models.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::embedded;

#[derive(Deserialize)]
struct List {
    types: BTreeSet<String>,
}

/// All types that SageMaker offers for processing jobs (ProcessingInstanceType).
pub fn types() -> &'static BTreeSet<String> {
    static LIST: LazyLock<List> = LazyLock::new(|| {
        let text = include_str!("../../data/processing_types.json");
        embedded::json("processing_types.json", text)
    });
    &LIST.types
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn processing_has_cpus_and_g6e_and_no_p5_and_the_catalog_knows_each() {
        assert_eq!(types().len(), 207);
        for kind in ["ml.m5.xlarge", "ml.t3.medium", "ml.g6e.xlarge"] {
            assert!(types().contains(kind), "{kind}");
        }
        assert!(!types().contains("ml.p5.48xlarge"));
        assert!(types().iter().all(|kind| catalog::find(kind).is_some()));
    }
}
