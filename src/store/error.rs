//! What can go wrong in the store, by what the caller can do about it.

use sqlx::postgres::PgQueryResult;
use thiserror::Error;

/// An error of the store.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the database did not answer: {0}")]
    Database(#[source] sqlx::Error),
    /// A unique constraint, by its name.
    #[error("a row breaks {constraint}")]
    Conflict { constraint: String },
    /// A value that the schema refuses: bad input that nobody caught before.
    #[error("the schema refuses a value: {what}")]
    Refused { what: String },
    /// A row that this program cannot read: a fault of ours or of somebody's hand.
    #[error("a row cannot be read: {table} {id}, column {column}")]
    Corrupt {
        table: &'static str,
        id: String,
        column: &'static str,
    },
    /// A row that has to be there is not. The transaction is undone: without its row, a change of
    /// money or state would be lost.
    #[error("a row is missing: {table} {id}")]
    Missing { table: &'static str, id: String },
    /// A row that is written once is there already: done again, money would be counted twice.
    #[error("a row is there already: {table} of {id}")]
    Twice { table: &'static str, id: String },
    #[error("a migration failed: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
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
    /// Whether the database undid a transaction because of another: done again, it goes through.
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

/// That a statement found its one row.
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

/// How often a transaction is done again that the database undid because of another.
const RETRIES: u32 = 3;

/// Does a transaction, and again when the database undid it because of another (a deadlock, a
/// serialization failure).
pub(crate) async fn retried<T, F>(mut transaction: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 0..RETRIES {
        match transaction().await {
            Err(error) if error.is_undone() => {
                metrics::counter!("bakeoff_transactions_retried_total").increment(1);
                tracing::info!(%error, "a transaction was undone because of another; doing it again");
            }
            done => return done,
        }
    }
    transaction().await
}

/// A count as a column has it. One that is no count is not taken for nothing.
pub(crate) fn count<T: TryFrom<i64>>(
    value: impl Into<i64>,
    table: &'static str,
    id: impl ToString,
    column: &'static str,
) -> Result<T, StoreError> {
    T::try_from(value.into()).map_err(|_| StoreError::corrupt(table, id, column))
}

/// Writes a value of ours as JSON.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<serde_json::Value, StoreError> {
    serde_json::to_value(value).map_err(|error| StoreError::Refused {
        what: format!("it is no JSON: {error}"),
    })
}
