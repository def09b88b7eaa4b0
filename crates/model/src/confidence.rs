use std::fmt;

use serde::{Deserialize, Serialize};

/// The confidence in a verdict: a probability between 0 and 1, in steps of one hundredth.
///
/// Calibration on a few hundred cases cannot support more precision. Steps also make equal inputs print equal reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "f64"))]
pub struct Confidence {
    hundredths: u8,
}

// === impl Confidence ===

impl Confidence {
    pub const NONE: Self = Self { hundredths: 0 };
    pub const CERTAIN: Self = Self { hundredths: 100 };

    /// Rounds to hundredths; values outside 0..=1 (and NaN) become the nearest bound.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=100 before the cast"
    )]
    pub fn new(probability: f64) -> Self {
        Self { hundredths: (probability.clamp(0.0, 1.0) * 100.0).round() as u8 }
    }

    pub fn value(self) -> f64 {
        f64::from(self.hundredths) / 100.0
    }
}

impl From<f64> for Confidence {
    fn from(probability: f64) -> Self {
        Self::new(probability)
    }
}

impl From<Confidence> for f64 {
    fn from(confidence: Confidence) -> Self {
        confidence.value()
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.hundredths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_the_range_are_bounded() {
        assert_eq!(Confidence::new(-1.0), Confidence::NONE);
        assert_eq!(Confidence::new(7.0), Confidence::CERTAIN);
        assert_eq!(Confidence::new(f64::NAN), Confidence::NONE);
        assert_eq!(serde_json::to_string(&Confidence::new(0.974)).unwrap(), "0.97");
    }
}
