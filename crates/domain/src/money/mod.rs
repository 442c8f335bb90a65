//! US dollars: a decimal internally, a JSON number with at most six decimal places externally
//! (exact up to 2^53 micro-dollars).

pub mod bill;
pub mod budget;
pub mod cost;
pub mod ledger;
pub mod price;
pub mod price_list;
pub mod worst_case;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Decimal places kept: a millionth of a dollar, as in the database.
pub const PLACES: u32 = 6;

/// An amount in US dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd(pub Decimal);

impl Usd {
    pub const ZERO: Self = Self(Decimal::ZERO);

    /// Rounded half to even to a millionth of a dollar.
    #[must_use]
    pub fn rounded(self) -> Self {
        Self(self.0.round_dp(PLACES))
    }

    /// For statistics and plots only; money is never added up in floating point.
    pub fn as_f64(self) -> f64 {
        self.0.to_f64().unwrap_or(f64::NAN)
    }

    /// Converts a figure computed in floating point (a projection); `None` when it is not finite.
    pub fn from_f64(value: f64) -> Option<Self> {
        Decimal::try_from(value)
            .ok()
            .map(|decimal| Self(decimal).rounded())
    }
}

impl fmt::Display for Usd {
    /// Rounded to cents: `$12.34`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${:.2}", self.0.round_dp(2))
    }
}

impl Add for Usd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Usd {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Usd {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<Decimal> for Usd {
    type Output = Self;
    fn mul(self, factor: Decimal) -> Self {
        Self(self.0 * factor)
    }
}

impl Sum for Usd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.rounded().as_f64())
    }
}

impl<'de> Deserialize<'de> for Usd {
    /// Parses the number's own digits, so that 0.1 is a tenth and not the nearest double.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = serde_json::Number::deserialize(deserializer)?.to_string();
        let parsed = text.parse().or_else(|_| Decimal::from_scientific(&text));
        parsed
            .map(Self)
            .map_err(|_| de::Error::custom(format!("`{text}` is not an amount in US dollars")))
    }
}

impl utoipa::PartialSchema for Usd {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::Number)
            .description(Some("US dollars, at most six decimal places"))
            .into()
    }
}

impl utoipa::ToSchema for Usd {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_digits_that_were_written() {
        let amount: Usd = serde_json::from_str("0.1").unwrap();
        assert_eq!(amount.0, Decimal::new(1, 1));
        let tiny: Usd = serde_json::from_str("1e-5").unwrap();
        assert_eq!(tiny.0, Decimal::new(1, 5));
        assert_eq!(
            serde_json::to_string(&Usd(Decimal::new(252_512_883, 7))).unwrap(),
            "25.251288"
        );
    }

    #[test]
    fn cents_are_shown_rounded() {
        assert_eq!(Usd(Decimal::new(12_345, 3)).to_string(), "$12.34");
        assert_eq!(Usd(Decimal::new(12_346, 3)).to_string(), "$12.35");
    }
}
