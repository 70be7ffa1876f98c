//! What a schema may have, before a library sees it.
//!
//! A schema is compiled by recursion, and schemas that must hold at once are multiplied out. So a small
//! one can take a whole stack, or all memory. Each limit is far above what a person writes, or a
//! program that describes its types.

use std::collections::HashMap;
use std::io;

use serde_json::{Map, Value};

use super::ConstraintError;
use super::bounds::narrow;
use crate::limits::{
    MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_ENTRIES, MAX_SCHEMA_NODES, MAX_SCHEMA_PATTERNS,
    MAX_SCHEMA_PRODUCT,
};

/// Characters of a path that are shown.
const MAX_SHOWN: usize = 300;

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

/// Keywords by which a schema gets another name, or another place from which references are read.
const NAMES: [&str; 4] = ["$id", "$anchor", "$dynamicAnchor", "$schema"];

/// One step of a path.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// Where a node of the schema is.
    Node(usize),
    /// Where a reference leads.
    Target(&'a str),
    Key(&'a str),
    Index(usize),
}

/// Where something is: the steps to it, the last one first. Made into text only for an error.
#[derive(Clone, Copy)]
struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: Step<'p>,
}

impl<'p> At<'p> {
    fn then(&'p self, step: Step<'p>) -> Self {
        Self {
            parent: Some(self),
            step,
        }
    }
}

/// An object or array of a schema, and the step that leads to it from another one.
struct Node<'a> {
    value: &'a Value,
    parent: usize,
    step: Step<'a>,
    depth: usize,
}

/// The objects and arrays of a schema, the outer ones first.
struct Nodes<'a>(Vec<Node<'a>>);

/// Counts bytes, and keeps none of them.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        match self.0 > MAX_SCHEMA_BYTES {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks the size of a schema, before anything is made of it.
pub(super) fn check_size(schema: &Value) -> Result<(), ConstraintError> {
    serde_json::to_writer(Count(0), schema).map_err(|_| {
        let problem = format!("it has more than {MAX_SCHEMA_BYTES} bytes");
        refused("#".to_owned(), &problem)
    })
}

/// Checks a schema of allowed size, and moves bounds to where they can be held to. The error names the path of what is
/// too much.
pub(super) fn check(schema: &mut Value) -> Result<(), ConstraintError> {
    // Its depth is within the limit from here on.
    Nodes::of(schema)?;
    narrow(schema).map_err(|inexact| {
        let steps = inexact.path.iter().rev().map(|step| pointer(step));
        let path = std::iter::once("#".to_owned()).chain(steps);
        refused(path.collect::<Vec<_>>().join("/"), &inexact.problem)
    })?;
    let schema = &*schema;
    let nodes = Nodes::of(schema)?;
    for (index, node) in nodes.0.iter().enumerate() {
        if let Value::Object(fields) = node.value {
            nodes.check_fields(index, fields, schema)?;
        }
    }
    let mut weights = Weights {
        root: schema,
        nodes: &nodes,
        known: HashMap::new(),
    };
    for (index, node) in nodes.0.iter().enumerate() {
        let at = At {
            parent: None,
            step: Step::Node(index),
        };
        weights.weigh(node.value, &at, 0)?;
    }
    Ok(())
}

impl<'a> Nodes<'a> {
    /// A list, not recursion: depth is among what is checked.
    fn of(schema: &'a Value) -> Result<Self, ConstraintError> {
        let mut nodes = Self(vec![Node {
            value: schema,
            parent: 0,
            step: Step::Node(0),
            depth: 0,
        }]);
        let mut next = 0;
        while let Some(Node { value, depth, .. }) = nodes.0.get(next) {
            let depth = depth + 1;
            let children: Box<dyn Iterator<Item = (Step<'a>, &'a Value)>> = match value {
                Value::Object(fields) => Box::new(fields.iter().map(|(k, v)| (Step::Key(k), v))),
                Value::Array(items) => Box::new((0..).map(Step::Index).zip(items)),
                _ => Box::new(std::iter::empty()),
            };
            for (step, value) in children {
                if !(value.is_object() || value.is_array()) {
                    continue;
                }
                nodes.0.push(Node {
                    value,
                    parent: next,
                    step,
                    depth,
                });
                let last = nodes.0.len() - 1;
                if last >= MAX_SCHEMA_NODES {
                    let problem = format!("it has more than {MAX_SCHEMA_NODES} objects and arrays");
                    return Err(refused("#".to_owned(), &problem));
                }
                if depth > MAX_SCHEMA_DEPTH {
                    return Err(refused(nodes.path(last), &deep()));
                }
            }
            next += 1;
        }
        Ok(nodes)
    }

    /// The fields that bring many schemas, and those that could lead elsewhere.
    fn check_fields(
        &self,
        index: usize,
        fields: &Map<String, Value>,
        root: &Value,
    ) -> Result<(), ConstraintError> {
        for (key, value) in fields {
            let fail = |problem: &str| {
                let path = format!("{}/{}", self.path(index), pointer(key));
                Err(refused(path, problem))
            };
            let key = key.as_str();
            let several = ["allOf", "anyOf", "oneOf", "required"].contains(&key);
            let count = match value {
                Value::Object(named) if NAMED.contains(&key) => named.len(),
                Value::Array(items) if several || NESTED.contains(&key) => items.len(),
                _ => 0,
            };
            if count > MAX_SCHEMA_ENTRIES {
                return fail(&format!(
                    "it has {count} entries, more than {MAX_SCHEMA_ENTRIES}"
                ));
            }
            let Value::String(text) = value else {
                continue;
            };
            let here = text.strip_prefix('#').filter(|path| !path.contains('%'));
            if key == "$ref" && here.and_then(|path| root.pointer(path)).is_none() {
                let shown: String = text.chars().take(MAX_SHOWN).collect();
                return fail(&format!(
                    "{shown} is no path in this schema; write one such as #/$defs/name"
                ));
            }
            if NAMES.contains(&key) && index > 0 {
                return fail("only the outermost schema may have it");
            }
            if key == "$schema" && (text.contains("draft-04") || text.contains("draft-03")) {
                return fail("this version is not supported; use draft-06 or a later one");
            }
        }
        Ok(())
    }

    /// A JSON pointer, shortened: it is for a person.
    fn path(&self, index: usize) -> String {
        let mut steps = Vec::new();
        let mut at = index;
        while at > 0 {
            steps.push(shown(self.0[at].step));
            at = self.0[at].parent;
        }
        steps.push("#".to_owned());
        steps.reverse();
        steps.join("/")
    }

    fn path_of(&self, at: &At<'_>) -> String {
        let mut steps = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next {
            steps.push(match at.step {
                Step::Node(index) => self.path(index),
                step => shown(step),
            });
            next = at.parent;
        }
        steps.reverse();
        steps.join("/")
    }
}

fn shown(step: Step<'_>) -> String {
    match step {
        Step::Node(_) => "#".to_owned(),
        Step::Target(path) => path.chars().take(MAX_SHOWN).collect(),
        Step::Key(key) => pointer(key),
        Step::Index(index) => index.to_string(),
    }
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
    nodes: &'a Nodes<'a>,
    /// By address; nothing while a place is being weighed.
    known: HashMap<*const Value, Option<Weight>>,
}

impl<'a> Weights<'a> {
    /// The weight of a place that is `depth` below where the weighing began. The recursion ends at the greatest depth.
    fn weigh(
        &mut self,
        value: &'a Value,
        at: &At<'_>,
        depth: usize,
    ) -> Result<Weight, ConstraintError> {
        let Value::Object(fields) = value else {
            return Ok(ONE);
        };
        let weight = match self.known.get(&std::ptr::from_ref(value)) {
            Some(known) => known.unwrap_or(ONE),
            None if depth > MAX_SCHEMA_DEPTH => return Err(self.refused(at, &deep())),
            None => {
                self.known.insert(value, None);
                let weight = self.product(fields, at, depth)?;
                self.known.insert(value, Some(weight));
                weight
            }
        };
        if depth + weight.depth > MAX_SCHEMA_DEPTH {
            return Err(self.refused(at, &deep()));
        }
        Ok(weight)
    }

    fn refused(&self, at: &At<'_>, problem: &str) -> ConstraintError {
        refused(self.nodes.path_of(at), problem)
    }

    /// All that must hold at once: the schema's own keywords, each of `allOf`, and one of each other choice.
    fn product(
        &mut self,
        fields: &'a Map<String, Value>,
        at: &At<'_>,
        depth: usize,
    ) -> Result<Weight, ConstraintError> {
        let mut all = vec![self.own(fields, at, depth)?];
        let each = at.then(Step::Key("allOf"));
        for (i, value) in list(fields, "allOf") {
            all.push(self.weigh(value, &each.then(Step::Index(i)), depth + 2)?);
        }
        for key in ["anyOf", "oneOf"] {
            let each = at.then(Step::Key(key));
            let mut any = Weight { ways: 0, ..ONE };
            for (i, value) in list(fields, key) {
                let one = self.weigh(value, &each.then(Step::Index(i)), depth + 2)?;
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
            let to = At {
                parent: None,
                step: Step::Target(path),
            };
            let mut target = self.weigh(target, &to, depth + 1)?;
            target.depth += 1;
            all.push(target);
        }
        multiplied(&all).map_err(|problem| self.refused(at, &problem))
    }

    /// The keywords that are no choice and no reference.
    fn own(
        &mut self,
        fields: &'a Map<String, Value>,
        at: &At<'_>,
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
                    own.parts = own.parts.saturating_add(text.len() / PART_BYTES);
                }
                ("const" | "required", _) => {
                    own.parts = own.parts.saturating_add(text_parts(value));
                }
                _ => {}
            }
            let each = at.then(Step::Key(key));
            for (step, value) in inner(key, value) {
                let one =
                    self.weigh(value, &step.map_or(each, |step| each.then(step)), depth + 2)?;
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
fn multiplied(all: &[Weight]) -> Result<Weight, String> {
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
    Err(problem)
}

/// The schemas of a keyword for other values than the schema's own, with the step to each.
fn inner<'a>(key: &str, value: &'a Value) -> Vec<(Option<Step<'a>>, &'a Value)> {
    match value {
        Value::Object(named) if NAMED.contains(&key) => named
            .iter()
            .map(|(name, value)| (Some(Step::Key(name)), value))
            .collect(),
        Value::Array(items) if NESTED.contains(&key) => {
            (0..).map(|i| Some(Step::Index(i))).zip(items).collect()
        }
        Value::Object(_) if NESTED.contains(&key) => vec![(None, value)],
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

fn deep() -> String {
    format!("it is nested more than {MAX_SCHEMA_DEPTH} deep, with what `$ref` leads to")
}

fn refused(path: String, problem: &str) -> ConstraintError {
    let mut path = path;
    if path.chars().count() > MAX_SHOWN {
        path = path.chars().take(MAX_SHOWN).chain(['…']).collect();
    }
    ConstraintError::Schema(format!("{path}: {problem}"))
}
