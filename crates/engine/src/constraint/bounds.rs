//! Numbers of a schema that the library cannot hold to exactly.
//!
//! It takes bounds as f64 and compares integers as i64. So a bound beyond 2^53 may be off, one beyond 2^63 is another
//! one, and -2^63 makes it fail. Such a bound moves inwards to the next one that it can hold to: what it then accepts is
//! accepted by the client's schema, too. Where nothing is left, or a single number is asked for, the schema is refused.

#![expect(
    clippy::cast_possible_truncation,
    reason = "from f64 to i128 it is cut where nothing is left anyway"
)]

use serde_json::{Map, Number, Value};

/// Before this each integer is an f64.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// The lowest f64 above -2^63.
const LOWEST: i128 = -9_223_372_036_854_774_784;
/// As f64 it is 2^63, which the library makes this again.
const HIGHEST: i128 = i64::MAX as i128;
/// Beyond all that can be held to, and far from where sums overflow.
const FAR: i128 = 1 << 100;

/// Keywords whose value is data.
const DATA: [&str; 5] = ["default", "examples", "required", "type", "description"];
/// Keywords whose value has names of the client's own as keys.
const NAMED: [&str; 5] = [
    "properties",
    "patternProperties",
    "dependentSchemas",
    "$defs",
    "definitions",
];

/// A number that cannot be held to: the way to it, from the inside, and what is wrong.
pub(super) struct Inexact {
    pub(super) path: Vec<String>,
    pub(super) problem: String,
}

/// Moves the bounds of a schema, of known depth, to such as can be held to.
pub(super) fn narrow(schema: &mut Value) -> Result<(), Inexact> {
    match schema {
        Value::Object(fields) => {
            for side in [LOWER, UPPER] {
                side.narrow(fields)?;
            }
            for (key, value) in fields {
                let within = match key.as_str() {
                    data if DATA.contains(&data) => Ok(()),
                    "const" | "enum" => check_data(value),
                    named if NAMED.contains(&named) => each(value),
                    _ => narrow(value),
                };
                within.map_err(|inexact| inexact.below(key))?;
            }
            Ok(())
        }
        Value::Array(_) => each(schema),
        _ => Ok(()),
    }
}

/// The same for each entry.
fn each(value: &mut Value) -> Result<(), Inexact> {
    match value {
        Value::Object(named) => named
            .iter_mut()
            .try_for_each(|(key, value)| narrow(value).map_err(|inexact| inexact.below(key))),
        Value::Array(items) => items.iter_mut().enumerate().try_for_each(|(i, value)| {
            narrow(value).map_err(|inexact| inexact.below(&i.to_string()))
        }),
        _ => Ok(()),
    }
}

/// What must be answered as it stands.
fn check_data(value: &Value) -> Result<(), Inexact> {
    match value {
        Value::Number(number) if !is_exact(number) => Err(Inexact {
            path: Vec::new(),
            problem: format!("{number} is no number that can be held to exactly; make it a string"),
        }),
        Value::Array(items) => items.iter().try_for_each(check_data),
        Value::Object(fields) => fields.values().try_for_each(check_data),
        _ => Ok(()),
    }
}

/// True for what is the same as f64, and within the library's range.
fn is_exact(number: &Number) -> bool {
    let value = number.as_f64().unwrap_or(f64::INFINITY);
    let is_same = value as i128 == integer(number);
    value.abs() < EXACT || (is_same && (LOWEST..HIGHEST).contains(&integer(number)))
}

/// A number from [`EXACT`] on, where f64 has no fractions.
fn integer(number: &Number) -> i128 {
    let whole = number.as_i64().map(i128::from);
    let whole = whole.or(number.as_u64().map(i128::from));
    let whole = whole.unwrap_or(number.as_f64().unwrap_or(f64::INFINITY) as i128);
    whole.clamp(-FAR, FAR)
}

/// One side of a range.
struct Side {
    bound: &'static str,
    exclusive: &'static str,
    /// From the bound into the range.
    inwards: i128,
}

const LOWER: Side = Side {
    bound: "minimum",
    exclusive: "exclusiveMinimum",
    inwards: 1,
};
const UPPER: Side = Side {
    bound: "maximum",
    exclusive: "exclusiveMaximum",
    inwards: -1,
};

impl Side {
    fn narrow(&self, fields: &mut Map<String, Value>) -> Result<(), Inexact> {
        let large = |value: &Number| value.as_f64().is_none_or(|v| v.abs() >= EXACT);
        let bound = fields.get(self.bound).and_then(Value::as_number);
        // The fourth draft had a word here.
        let exclusive = match fields.get(self.exclusive) {
            Some(Value::Bool(true)) => bound,
            other => other.and_then(Value::as_number),
        };
        let shut = exclusive.filter(|number| large(number));
        let shut = shut.map(|number| integer(number) + self.inwards);
        let open = bound.filter(|number| large(number)).map(integer);
        let Some(moved) = [shut, open]
            .into_iter()
            .flatten()
            .max_by_key(|v| v * self.inwards)
        else {
            return Ok(());
        };
        let Some(moved) = self.held(moved) else {
            return Err(Inexact {
                path: vec![
                    if shut.is_some() {
                        self.exclusive
                    } else {
                        self.bound
                    }
                    .to_owned(),
                ],
                problem: "integers beyond 64 bits cannot be held to; leave the bound out"
                    .to_owned(),
            });
        };
        // Of two bounds that are left the library takes the narrower one.
        if shut.is_some() {
            fields.remove(self.exclusive);
        }
        let further = fields
            .get(self.bound)
            .and_then(Value::as_number)
            .filter(|number| !large(number));
        let is_further = |n: &Number| {
            n.as_f64()
                .is_some_and(|v| (v - moved as f64) * self.inwards as f64 > 0.0)
        };
        if !further.is_some_and(is_further) {
            fields.insert(self.bound.to_owned(), Value::from(moved));
        }
        Ok(())
    }

    /// The next bound inwards that can be held to.
    fn held(&self, value: i128) -> Option<i64> {
        let value = match self.inwards > 0 {
            true => value.max(LOWEST),
            false => value.min(HIGHEST),
        };
        if value == HIGHEST {
            return i64::try_from(value).ok();
        }
        if !(LOWEST..HIGHEST).contains(&value) {
            return None;
        }
        // Rounding goes outwards in half of the cases.
        let near = value as f64;
        let is_outside = (near as i128 - value) * self.inwards < 0;
        let near = match (is_outside, self.inwards > 0) {
            (false, _) => near,
            (true, true) => near.next_up(),
            (true, false) => near.next_down(),
        };
        i64::try_from(near as i128)
            .ok()
            .filter(|v| i128::from(*v) < HIGHEST)
    }
}

impl Inexact {
    fn below(mut self, key: &str) -> Self {
        self.path.push(key.to_owned());
        self
    }
}
