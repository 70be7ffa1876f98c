//! Numbers of one kind as those of another, where rounding does no harm.

/// A count, which is exact below 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "shown or compared, never an index"
)]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// The nearest whole number; 0 for what is below it or no number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` keeps to the range of the type"
)]
pub fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// The same of a type for tokens and sequences, at most its largest number.
pub fn small(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX)
}
