//! Numbers of a schema that the library cannot hold to exactly.
//!
//! It takes bounds as f64 and compares integers as i64, and other numbers by the shortest digits of their f64. So a bound
//! beyond 2^53 may be off, one beyond 2^63 is another one, and -2^63 makes it fail. Such a bound moves inwards to the next
//! one that it can hold to: what it then accepts is accepted by the client's schema, too. Where nothing is left, or a
//! single number is asked for, the schema is refused.

#![expect(
    clippy::cast_possible_truncation,
    reason = "from f64 to i128 it is cut where nothing is left anyway"
)]

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

/// Before this each integer is an f64.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// The lowest f64 above -2^63.
const LOWEST: i128 = -9_223_372_036_854_774_784;
/// As f64 it is 2^63, which the library makes this again for integers.
const HIGHEST: i128 = i64::MAX as i128;
/// Beyond all that can be held to, and far from where sums overflow.
const FAR: i128 = 1 << 100;
/// From here on the library needs a bound on the other side, too: it cannot count the digits otherwise.
const LONG: i64 = 1_000_000_000_000_000_000;

/// Keywords whose value has a schema for each name.
const NAMED: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords whose value is a schema or an array of schemas.
const NESTED: [&str; 14] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedProperties",
];

/// A number that cannot be held to: the way to it, from the inside, and what is wrong.
pub(super) struct Inexact {
    pub(super) path: Vec<String>,
    pub(super) problem: String,
}

/// Moves the bounds of a schema, of known depth, to such as can be held to: in all places that are schemas, which are
/// those that keywords or references lead to.
pub(super) fn narrow(schema: &mut Value) -> Result<(), Inexact> {
    let mut targets = Vec::new();
    place(schema, &mut targets)?;
    let mut seen = HashSet::new();
    while let Some(target) = targets.pop() {
        let path = target.strip_prefix('#').unwrap_or(&target);
        if let Some(value) = schema
            .pointer_mut(path)
            .filter(|_| seen.insert(target.clone()))
        {
            place(value, &mut targets).map_err(|mut inexact| {
                let steps = path.split('/').skip(1);
                let steps = steps.map(|step| step.replace("~1", "/").replace("~0", "~"));
                inexact
                    .path
                    .extend(steps.collect::<Vec<_>>().into_iter().rev());
                inexact
            })?;
        }
    }
    Ok(())
}

/// The same for one place, what is below it, and where it refers to.
fn place(schema: &mut Value, targets: &mut Vec<String>) -> Result<(), Inexact> {
    match schema {
        Value::Object(fields) => {
            range(fields)?;
            for (key, value) in fields {
                let within = match (key.as_str(), &mut *value) {
                    ("const" | "enum", data) => check_data(data),
                    ("$ref", Value::String(target)) => {
                        targets.push(target.clone());
                        Ok(())
                    }
                    (named, Value::Object(entries)) if NAMED.contains(&named) => {
                        entries.iter_mut().try_for_each(|(name, value)| {
                            place(value, targets).map_err(|inexact| inexact.below(name))
                        })
                    }
                    (nested, value) if NESTED.contains(&nested) => place(value, targets),
                    _ => Ok(()),
                };
                within.map_err(|inexact| inexact.below(key))?;
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().enumerate().try_for_each(|(i, value)| {
            place(value, targets).map_err(|inexact| inexact.below(&i.to_string()))
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
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, value)| {
            check_data(value).map_err(|inexact| inexact.below(&i.to_string()))
        }),
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(key, value)| check_data(value).map_err(|inexact| inexact.below(key))),
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

/// Moves both sides of a range.
fn range(fields: &mut Map<String, Value>) -> Result<(), Inexact> {
    let is = |word: &str| match fields.get("type") {
        Some(Value::Array(types)) => types.iter().any(|one| one == word),
        Some(one) => one == word,
        None => false,
    };
    let is_integer = is("integer") && !is("number");
    let lower = LOWER.narrow(fields, is_integer)?;
    let upper = UPPER.narrow(fields, is_integer)?;
    // A long number needs a bound on both sides.
    if lower.is_some_and(|lower| lower >= LONG) && !UPPER.is_in(fields) {
        fields.insert(UPPER.bound.to_owned(), Value::from(UPPER.last(is_integer)));
    }
    if upper.is_some_and(|upper| upper <= -LONG) && !LOWER.is_in(fields) {
        fields.insert(LOWER.bound.to_owned(), Value::from(LOWER.last(is_integer)));
    }
    let bound = |side: &Side| fields.get(side.bound).and_then(Value::as_f64);
    let is_empty = bound(&LOWER)
        .zip(bound(&UPPER))
        .is_some_and(|(least, most)| least > most);
    match is_empty && (lower.is_some() || upper.is_some()) {
        true => Err(Inexact {
            path: vec![LOWER.bound.to_owned()],
            problem:
                "between this bound and the other one lies no number that can be held to exactly"
                    .to_owned(),
        }),
        false => Ok(()),
    }
}

impl Side {
    /// Moves the bound of this side if it has to; where it is then.
    fn narrow(
        &self,
        fields: &mut Map<String, Value>,
        is_integer: bool,
    ) -> Result<Option<i64>, Inexact> {
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
        let sides = [shut, open].into_iter().flatten();
        let Some(moved) = sides.max_by_key(|value| value * self.inwards) else {
            return Ok(None);
        };
        let Some(moved) = self.reach(moved, is_integer) else {
            let key = if shut.is_some() {
                self.exclusive
            } else {
                self.bound
            };
            return Err(Inexact {
                path: vec![key.to_owned()],
                problem:
                    "beyond this bound lies no number of 64 bits that can be held to; leave it out"
                        .to_owned(),
            });
        };
        // Of two bounds that are left the library takes the narrower one.
        if shut.is_some() {
            fields.remove(self.exclusive);
        }
        let further = fields.get(self.bound).and_then(Value::as_number);
        let is_further = |n: &Number| {
            let beyond = |v: f64| (v - moved as f64) * self.inwards as f64 > 0.0;
            n.as_f64().is_some_and(beyond)
        };
        if !further.is_some_and(|number| !large(number) && is_further(number)) {
            fields.insert(self.bound.to_owned(), Value::from(moved));
        }
        Ok(Some(moved))
    }

    /// The furthest bound of this side.
    fn last(&self, is_integer: bool) -> i64 {
        let furthest = -self.inwards * FAR;
        self.reach(furthest, is_integer).unwrap_or_default()
    }

    /// The next bound inwards that can be held to.
    fn reach(&self, value: i128, is_integer: bool) -> Option<i64> {
        let value = match self.inwards > 0 {
            true => value.max(LOWEST),
            false if is_integer => value.min(HIGHEST),
            false => value.min(-LOWEST),
        };
        if value == HIGHEST && is_integer {
            return i64::try_from(value).ok();
        }
        let is_outside = |found: i128| (found - value) * self.inwards < 0;
        let mut near = value.clamp(LOWEST, -LOWEST) as f64;
        // Rounding goes outwards in half of the cases, that of the digits in others.
        loop {
            let exact = near as i128;
            let digits = match is_integer {
                true => exact,
                false => format!("{near}").parse().ok()?,
            };
            let within = |number: i128| (LOWEST..HIGHEST).contains(&number);
            if !is_outside(exact) && !is_outside(digits) && within(digits) {
                return i64::try_from(exact).ok().filter(|_| within(exact));
            }
            if exact * self.inwards > -LOWEST {
                return None;
            }
            near = match self.inwards > 0 {
                true => near.next_up(),
                false => near.next_down(),
            };
        }
    }

    fn is_in(&self, fields: &Map<String, Value>) -> bool {
        fields.contains_key(self.bound) || fields.contains_key(self.exclusive)
    }
}

impl Inexact {
    fn below(mut self, key: &str) -> Self {
        self.path.push(key.to_owned());
        self
    }
}
