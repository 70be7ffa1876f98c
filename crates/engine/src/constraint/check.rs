//! What a schema may have, before a library sees it.
//!
//! A schema is compiled by recursion, and schemas that must hold at once are multiplied out. So a small
//! one can take a whole stack, or all memory. Each limit is far above what a person writes, or a
//! program that describes its types.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::ConstraintError;
use crate::limits::{
    MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_ENTRIES, MAX_SCHEMA_NODES, MAX_SCHEMA_PATTERNS,
    MAX_SCHEMA_PRODUCT,
};

/// Bytes of text that count as one part.
const PART_BYTES: usize = 64;

/// Keywords whose value is an object of schemas.
const NAMED: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords whose value is a schema or an array of schemas, of another value than the schema's own.
const NESTED: [&str; 6] = [
    "items",
    "prefixItems",
    "additionalProperties",
    "contains",
    "not",
    "additionalItems",
];

/// Checks a schema. The error names the path of what is too much.
pub(super) fn check(schema: &Value) -> Result<(), ConstraintError> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return refused(
            "#",
            format!("it has {bytes} bytes, more than {MAX_SCHEMA_BYTES}"),
        );
    }
    let mut weights = Weights {
        root: schema,
        known: HashMap::new(),
    };
    let mut nodes = 0;
    // A list, not recursion: depth is among what is checked.
    let mut left = vec![(schema, String::from("#"), 0)];
    while let Some((value, path, depth)) = left.pop() {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(key, v)| (pointer(key), v)).collect(),
            Value::Array(items) => (0_usize..).map(|i| i.to_string()).zip(items).collect(),
            _ => continue,
        };
        nodes += 1;
        if nodes > MAX_SCHEMA_NODES {
            return refused(
                "#",
                format!("it has more than {MAX_SCHEMA_NODES} objects and arrays"),
            );
        }
        if depth > MAX_SCHEMA_DEPTH {
            return deep(&path);
        }
        if let Value::Object(fields) = value {
            check_entries(fields, &path)?;
            weights.weigh(value, &path, 0)?;
        }
        let child = |(key, value)| (value, format!("{path}/{key}"), depth + 1);
        left.extend(children.into_iter().map(child));
    }
    Ok(())
}

fn check_entries(fields: &Map<String, Value>, path: &str) -> Result<(), ConstraintError> {
    let schemas = |key: &str| {
        NAMED.contains(&key)
            || NESTED.contains(&key)
            || ["allOf", "anyOf", "oneOf", "required"].contains(&key)
    };
    for (key, value) in fields.iter().filter(|(key, _)| schemas(key)) {
        let count = match value {
            Value::Object(fields) if NAMED.contains(&key.as_str()) => fields.len(),
            Value::Array(items) => items.len(),
            _ => continue,
        };
        if count > MAX_SCHEMA_ENTRIES {
            let problem = format!("it has {count} entries, more than {MAX_SCHEMA_ENTRIES}");
            return refused(&format!("{path}/{key}"), problem);
        }
    }
    Ok(())
}

/// What a place of a schema becomes where it has to hold together with others.
#[derive(Clone, Copy)]
struct Weight {
    /// Parts, with those that `$ref` brings.
    parts: usize,
    /// Ways in which it can hold.
    ways: usize,
    /// Most patterns and formats at one value.
    patterns: usize,
    /// Deepest nesting below it.
    depth: usize,
}

/// Of what has no parts. A place counts for this within itself, too: recursion is not multiplied out.
const ONE: Weight = Weight {
    parts: 1,
    ways: 1,
    patterns: 0,
    depth: 0,
};

/// Weighs each place of a schema once.
struct Weights<'a> {
    root: &'a Value,
    /// By address; nothing while a place is being weighed.
    known: HashMap<*const Value, Option<Weight>>,
}

impl<'a> Weights<'a> {
    /// The weight of a place that is `depth` below where the weighing began.
    fn weigh(
        &mut self,
        value: &'a Value,
        path: &str,
        depth: usize,
    ) -> Result<Weight, ConstraintError> {
        let Value::Object(fields) = value else {
            return Ok(ONE);
        };
        let weight = match self.known.get(&std::ptr::from_ref(value)) {
            Some(known) => known.unwrap_or(ONE),
            None if depth > MAX_SCHEMA_DEPTH => return deep(path).map(|()| ONE),
            None => {
                self.known.insert(value, None);
                let weight = self.product(fields, path, depth)?;
                self.known.insert(value, Some(weight));
                weight
            }
        };
        if depth + weight.depth > MAX_SCHEMA_DEPTH {
            return deep(path).map(|()| ONE);
        }
        Ok(weight)
    }

    /// All that must hold at once: the schema's own keywords, each of `allOf`, and one of each other choice.
    fn product(
        &mut self,
        fields: &'a Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<Weight, ConstraintError> {
        let mut all = vec![self.own(fields, path, depth)?];
        for (i, value) in list(fields, "allOf") {
            all.push(self.weigh(value, &format!("{path}/allOf/{i}"), depth + 2)?);
        }
        for key in ["anyOf", "oneOf"] {
            let mut any = Weight { ways: 0, ..ONE };
            for (i, value) in list(fields, key) {
                let one = self.weigh(value, &format!("{path}/{key}/{i}"), depth + 2)?;
                any.parts = any.parts.saturating_add(one.parts);
                any.ways = any.ways.saturating_add(one.ways);
                any.patterns = any.patterns.max(one.patterns);
                any.depth = any.depth.max(one.depth + 2);
            }
            all.extend((any.ways > 0).then_some(any));
        }
        if let Some(values) = fields.get("enum").and_then(Value::as_array) {
            let parts = values.iter().map(text_parts).fold(1, usize::saturating_add);
            all.push(Weight {
                parts,
                ways: values.len().max(1),
                ..ONE
            });
        }
        if let Some((target, path)) = self.target(fields) {
            let mut target = self.weigh(target, path, depth + 1)?;
            target.depth += 1;
            all.push(target);
        }
        multiplied(&all, path)
    }

    /// The keywords that are no choice and no reference.
    fn own(
        &mut self,
        fields: &'a Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<Weight, ConstraintError> {
        let types = fields
            .get("type")
            .and_then(Value::as_array)
            .map_or(1, Vec::len);
        let mut own = Weight {
            ways: types.max(1),
            ..ONE
        };
        let mut most = 0;
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("pattern" | "format", Value::String(text)) => {
                    own.patterns += 1;
                    own.parts += text.len() / PART_BYTES;
                }
                ("const" | "required", _) => own.parts += text_parts(value),
                _ => {}
            }
            for (path, value) in inner(key, value, path) {
                let one = self.weigh(value, &path, depth + 2)?;
                own.parts = own.parts.saturating_add(one.parts);
                own.depth = own.depth.max(one.depth + 2);
                most = most.max(one.patterns);
            }
        }
        own.patterns += most;
        Ok(own)
    }

    /// Where a reference leads, if it does within the schema; others are the library's to refuse.
    fn target(&self, fields: &'a Map<String, Value>) -> Option<(&'a Value, &'a str)> {
        let path = fields.get("$ref")?.as_str()?;
        let target = self.root.pointer(path.strip_prefix('#')?)?;
        Some((target, path))
    }
}

fn list<'a>(fields: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let values = fields.get(key).and_then(Value::as_array);
    values.into_iter().flatten().enumerate()
}

/// What these become that must all hold. One alone is not multiplied out, nor is what says nothing but a type.
fn multiplied(all: &[Weight], path: &str) -> Result<Weight, ConstraintError> {
    let sum = |of: fn(&Weight) -> usize| all.iter().map(of).fold(0, usize::saturating_add);
    let patterns = sum(|one| one.patterns);
    let significant = |one: &&Weight| one.parts > 1 || one.ways > 1 || one.patterns > 0;
    let several = all.iter().filter(significant).count() > 1;
    let ways = all.iter().map(|one| one.ways);
    let ways = ways.fold(1, usize::saturating_mul);
    let part = |one: &Weight| (ways / one.ways).saturating_mul(one.parts);
    let parts = match several {
        true => all.iter().map(part).fold(0, usize::saturating_add),
        false => sum(|one| one.parts),
    };
    let problem = if several && parts > MAX_SCHEMA_PRODUCT {
        format!(
            "what must hold at once has {parts} parts when multiplied out, more than {MAX_SCHEMA_PRODUCT}"
        )
    } else if patterns > MAX_SCHEMA_PATTERNS {
        format!(
            "one value must satisfy {patterns} patterns and formats at once, more than {MAX_SCHEMA_PATTERNS}"
        )
    } else {
        let depth = all.iter().map(|one| one.depth).max().unwrap_or(0) + 1;
        return Ok(Weight {
            parts,
            ways,
            patterns,
            depth,
        });
    };
    refused(path, problem).map(|()| ONE)
}

/// The schemas of a keyword for other values than the schema's own, with their paths.
fn inner<'a>(key: &str, value: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let path = format!("{path}/{}", pointer(key));
    match value {
        Value::Object(named) if NAMED.contains(&key) => named
            .iter()
            .map(|(name, value)| (format!("{path}/{}", pointer(name)), value))
            .collect(),
        Value::Array(items) if NESTED.contains(&key) => (0_usize..)
            .zip(items)
            .map(|(i, value)| (format!("{path}/{i}"), value))
            .collect(),
        Value::Object(_) if NESTED.contains(&key) => vec![(path, value)],
        _ => Vec::new(),
    }
}

/// Parts of data. Its depth is known to be within the limit.
fn text_parts(value: &Value) -> usize {
    1 + value.to_string().len() / PART_BYTES
}

/// A key as part of a JSON pointer, shortened: it is for a person.
fn pointer(key: &str) -> String {
    let short: String = key.chars().filter(|c| !c.is_control()).take(40).collect();
    short.replace('~', "~0").replace('/', "~1")
}

fn deep(path: &str) -> Result<(), ConstraintError> {
    let problem =
        format!("it is nested more than {MAX_SCHEMA_DEPTH} deep, with what `$ref` leads to");
    refused(path, problem)
}

fn refused(path: &str, problem: String) -> Result<(), ConstraintError> {
    Err(ConstraintError::Schema(format!("{path}: {problem}")))
}
