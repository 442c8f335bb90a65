//! Errors of the store, grouped by what the caller can do about them.

use sqlx::postgres::PgQueryResult;
use thiserror::Error;

/// An error of the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Its text says the cause: it names no source, which would say it again.
    #[error("database error: {0}")]
    Database(sqlx::Error),
    /// The database cannot be connected to: why, in one sentence.
    #[error("{0}")]
    Unreachable(String),
    /// A unique constraint was violated; its name.
    #[error("unique constraint {constraint} violated")]
    Conflict { constraint: String },
    /// The schema refused a value: bad input that earlier checks did not catch.
    #[error("the schema refused a value: {what}")]
    Refused { what: String },
    /// A row that this program cannot read: our bug, or a manual change.
    #[error("unreadable row: {table} {id}, column {column}")]
    Corrupt {
        table: &'static str,
        id: String,
        column: &'static str,
    },
    /// A required row is missing. The transaction is rolled back: without the row, a change of
    /// money or state would be lost.
    #[error("missing row: {table} {id}")]
    Missing { table: &'static str, id: String },
    /// A row that must be written only once already exists: writing it again would count money
    /// twice.
    #[error("row already exists: {table} of {id}")]
    Twice { table: &'static str, id: String },
    #[error("migration failed: {0}")]
    Migration(sqlx::migrate::MigrateError),
}

impl From<sqlx::migrate::MigrateError> for StoreError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self::Migration(error)
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if let Some(refused) = error.as_database_error()
            && refused
                .code()
                .is_some_and(|code| code == "23514" || code.starts_with("22"))
        {
            return Self::Refused {
                what: refused.message().to_owned(),
            };
        }
        let unique = error
            .as_database_error()
            .filter(|error| error.is_unique_violation());
        match unique.and_then(|error| error.constraint()) {
            Some(constraint) => Self::Conflict {
                constraint: constraint.to_owned(),
            },
            None => Self::Database(error),
        }
    }
}

impl StoreError {
    /// Whether it was refused because another full run of the same comparison is under way.
    pub fn is_full_run_alive(&self) -> bool {
        matches!(self, Self::Conflict { constraint } if constraint == "experiments_full_run_alive")
    }

    /// Whether the database rolled the transaction back because of another one, so that a retry can
    /// succeed.
    pub fn is_undone(&self) -> bool {
        let Self::Database(error) = self else {
            return false;
        };
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        matches!(code.as_deref(), Some("40P01" | "40001"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "ids are copied")]
    pub fn corrupt(table: &'static str, id: impl ToString, column: &'static str) -> Self {
        Self::Corrupt {
            table,
            id: id.to_string(),
            column,
        }
    }
}

/// Checks that a statement affected exactly one row.
pub(crate) fn found_one(
    done: &PgQueryResult,
    table: &'static str,
    id: impl std::fmt::Display,
) -> Result<(), StoreError> {
    if done.rows_affected() == 1 {
        Ok(())
    } else {
        Err(StoreError::Missing {
            table,
            id: id.to_string(),
        })
    }
}

/// Retries of a transaction that the database rolled back because of another one.
const RETRIES: u32 = 3;

/// Runs a transaction, and retries it when the database rolls it back because of another one (a
/// deadlock or a serialization failure).
pub(crate) async fn retried<T, F>(mut transaction: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 0..RETRIES {
        match transaction().await {
            Err(error) if error.is_undone() => {
                metrics::counter!("bakeoff_transactions_retried_total").increment(1);
                tracing::info!(%error, "transaction rolled back because of another one; retrying");
            }
            done => return done,
        }
    }
    transaction().await
}

/// Converts a count from a column. An invalid count is an error, not zero.
pub(crate) fn count<T: TryFrom<i64>>(
    value: impl Into<i64>,
    table: &'static str,
    id: impl ToString,
    column: &'static str,
) -> Result<T, StoreError> {
    T::try_from(value.into()).map_err(|_| StoreError::corrupt(table, id, column))
}

/// Serialises one of our values as JSON.
pub fn to_json<T: serde::Serialize>(value: &T) -> Result<serde_json::Value, StoreError> {
    serde_json::to_value(value).map_err(|error| StoreError::Refused {
        what: format!("not representable as JSON: {error}"),
    })
}
