//! Typed reading of a JSON object, with errors that name the field and both types.

use crate::error::ApiError;
use crate::limits;
use crate::unknown::Unknown;
use serde_json::{Map, Value};

/// The fields of one JSON object, taken out one by one.
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

/// Parses a request body into its top-level fields.
pub(crate) fn parse_body(body: &[u8]) -> Result<Fields, ApiError> {
    if body.len() > limits::MAX_BODY_BYTES {
        return Err(ApiError::too_large(limits::MAX_BODY_BYTES));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(Fields {
            map,
            path: String::new(),
        }),
        Ok(other) => Err(ApiError::malformed(format!(
            "the request body must be a JSON object, not {}",
            kind_of(&other)
        ))),
        // serde_json reports a position and a reason, never the text itself.
        Err(e) => Err(ApiError::malformed(format!(
            "the request body is not valid JSON: {e}"
        ))),
    }
}

/// The type of a JSON value, with its article, for messages.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The error for a value of a wrong type.
pub(crate) fn wrong_type(path: &str, expected: &str, got: &Value) -> ApiError {
    ApiError::invalid(
        path,
        format!("'{path}' must be {expected}, not {}", kind_of(got)),
    )
}

/// A number that was written with a point, such as `100.0`, and is whole.
#[expect(clippy::cast_possible_truncation, reason = "it is whole and in range")]
pub(crate) fn whole(number: f64) -> Option<i64> {
    let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    exact.then_some(number as i64)
}

impl Fields {
    /// The fields of `value`, which stands at `path`.
    pub(crate) fn of(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self {
                map,
                path: path.to_owned(),
            }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// What has not been taken.
    pub(crate) const fn rest(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The full path of a field of this object.
    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Takes a value out; null counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|v| !v.is_null())
    }

    /// Looks at a value without taking it; null counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// The error for a required field that is absent.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let path = self.path_of(name);
        ApiError::invalid(&path, format!("'{path}' is required"))
    }

    /// A string.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a string", &other)),
        }
    }

    /// A boolean.
    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a boolean", &other)),
        }
    }

    /// A number within `low..=high`.
    pub(crate) fn number(
        &mut self,
        name: &str,
        low: f64,
        high: f64,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let path = self.path_of(name);
        match value.as_f64() {
            None => Err(wrong_type(&path, "a number", &value)),
            Some(x) if x >= low && x <= high => Ok(Some(x)),
            Some(x) => Err(ApiError::invalid(
                &path,
                format!("'{path}' is {x}, but must lie within {low} to {high}"),
            )),
        }
    }

    /// A whole number within `low..=high`.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        low: i64,
        high: u32,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let path = self.path_of(name);
        let range =
            || ApiError::invalid(&path, format!("'{path}' must lie within {low} to {high}"));
        let whole = || value.as_f64().and_then(whole);
        match (value.as_i64().or_else(whole), &value) {
            (Some(n), _) if n >= low && n <= i64::from(high) => Ok(Some(n)),
            (Some(_), _) => Err(range()),
            (None, Value::Number(n)) if n.is_u64() => Err(range()),
            (None, _) => Err(wrong_type(&path, "an integer", &value)),
        }
    }

    /// Looks at whatever has not been taken: null and `inert` names change nothing, others are not known here.
    pub(crate) fn finish(
        self,
        known: &[&str],
        inert: &[&str],
        unknown: &mut Unknown,
    ) -> Result<(), ApiError> {
        let rest = self.map.iter().filter(|(_, value)| !value.is_null());
        for (name, _) in rest.filter(|(name, _)| !inert.contains(&name.as_str())) {
            unknown.meets(&self.path_of(name), name, known)?;
        }
        Ok(())
    }
}
