//! The regions in which a type is offered, as far as it is known: `data/type_regions.csv`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::embedded;

/// The day up to which most of the regions are known, for what is said of them.
pub const AS_OF: &str = "2025-06-28";

#[derive(Debug, Deserialize)]
struct Row {
    instance_type: String,
    regions: String,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    embedded::csv(
        "type_regions.csv",
        include_str!("../../data/type_regions.csv"),
    )
});

/// The regions where EC2 lists a type; `None` if nothing is known of it.
pub fn of(instance_type: &str) -> Option<Vec<&'static str>> {
    let row = ROWS.iter().find(|row| row.instance_type == instance_type)?;
    Some(row.regions.split(' ').collect())
}

/// Reads the table.
pub(crate) fn read_embedded() {
    LazyLock::force(&ROWS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn every_type_is_one_of_the_catalog_and_has_regions() {
        for row in ROWS.iter() {
            assert!(
                catalog::find(&row.instance_type).is_some(),
                "{}",
                row.instance_type
            );
            assert!(
                row.regions
                    .split(' ')
                    .all(|region| region.split('-').count() >= 3),
                "{}",
                row.regions
            );
        }
        assert!(of("ml.p3dn.24xlarge").is_some_and(|regions| !regions.contains(&"eu-central-1")));
    }
}
