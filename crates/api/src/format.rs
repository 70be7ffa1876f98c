//! The shape of an answer, in the words of OpenAI and of other servers that mean the same.

use serde_json::Value;
use tandem_proto::{Format, NamedSchema};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::limits;
use crate::refused;
use crate::unknown::Unknown;

/// Name of a schema that came without one.
const UNNAMED: &str = "schema";

/// True if both bind an answer to the same.
fn is_same(one: &Format, other: &Format) -> bool {
    match (one, other) {
        (Format::JsonSchema { json_schema: a }, Format::JsonSchema { json_schema: b }) => {
            a.schema == b.schema
        }
        _ => one == other,
    }
}

/// Takes the shape of the answer out of a request. Beside `response_format`: `json_schema` (llama-server),
/// `structured_outputs` and `guided_json` (vLLM), and `format` (Ollama).
pub(crate) fn response_format(
    fields: &mut Fields,
    unknown: &mut Unknown,
) -> Result<Format, ApiError> {
    let mut found: Option<(&str, Format)> = None;
    for (name, read) in DIALECTS {
        let Some(value) = fields.take(name) else {
            continue;
        };
        let format = read(value, name, unknown)?;
        if format.is_text()
            || found
                .as_ref()
                .is_some_and(|(_, other)| is_same(other, &format))
        {
            continue;
        }
        if let Some((other, _)) = found {
            return Err(ApiError::invalid(
                name,
                format!(
                    "'{other}' and '{name}' both give the shape of the answer; give one of them"
                ),
            ));
        }
        found = Some((name, format));
    }
    Ok(found.map(|(_, format)| format).unwrap_or_default())
}

/// Reads the value of a field with this name.
type Read = fn(Value, &str, &mut Unknown) -> Result<Format, ApiError>;

const DIALECTS: [(&str, Read); 5] = [
    ("response_format", openai),
    ("json_schema", bare_schema),
    ("structured_outputs", structured_outputs),
    ("guided_json", written_schema),
    ("format", ollama),
];

fn openai(value: Value, path: &str, unknown: &mut Unknown) -> Result<Format, ApiError> {
    let mut outer = Fields::of(value, path)?;
    let kind = outer.string("type")?.ok_or_else(|| outer.missing("type"))?;
    let format = match kind.as_str() {
        "text" => Format::Text,
        "json_object" => match outer.take("schema") {
            None => Format::JsonObject,
            Some(schema) => bare_schema(schema, &outer.path_of("schema"), unknown)?,
        },
        "json_schema" => match outer.take("json_schema") {
            Some(inner) => {
                let inner = Fields::of(inner, &outer.path_of("json_schema"))?;
                json_schema(inner, true, unknown)?
            }
            None if outer.get("schema").is_some() => return json_schema(outer, false, unknown),
            None => return Err(outer.missing("json_schema")),
        },
        _ => {
            let path = outer.path_of("type");
            return Err(ApiError::invalid(
                &path,
                format!("'{path}' must be \"text\", \"json_object\" or \"json_schema\""),
            ));
        }
    };
    outer.finish(&["type", "json_schema", "schema"], &[], unknown)?;
    Ok(format)
}

/// A schema with its name around it.
fn json_schema(
    mut fields: Fields,
    is_named: bool,
    unknown: &mut Unknown,
) -> Result<Format, ApiError> {
    let name = match fields.string("name")? {
        None if is_named => return Err(fields.missing("name")),
        None => UNNAMED.to_owned(),
        Some(name) => name,
    };
    if name.is_empty() || name.len() > limits::MAX_SCHEMA_NAME_BYTES {
        let (path, limit) = (fields.path_of("name"), limits::MAX_SCHEMA_NAME_BYTES);
        return Err(ApiError::invalid(
            &path,
            format!("'{path}' must have 1 to {limit} bytes"),
        ));
    }
    let strict = fields.boolean("strict")?.unwrap_or(false);
    let path = fields.path_of("schema");
    let schema = fields
        .take("schema")
        .ok_or_else(|| fields.missing("schema"))?;
    fields.finish(&["name", "schema", "strict"], &["description"], unknown)?;
    let schema = checked(schema, &path)?;
    Ok(Format::JsonSchema {
        json_schema: NamedSchema {
            name,
            schema,
            strict,
        },
    })
}

fn checked(schema: Value, path: &str) -> Result<Value, ApiError> {
    if !schema.is_object() {
        return Err(wrong_type(path, "an object", &schema));
    }
    if schema.to_string().len() > limits::MAX_SCHEMA_BYTES {
        let limit = limits::MAX_SCHEMA_BYTES;
        return Err(ApiError::invalid(
            path,
            format!("'{path}' is longer than {limit} bytes"),
        ));
    }
    if depth(&schema) > limits::MAX_SCHEMA_DEPTH {
        let limit = limits::MAX_SCHEMA_DEPTH;
        return Err(ApiError::invalid(
            path,
            format!("'{path}' has more than {limit} levels"),
        ));
    }
    Ok(schema)
}

/// Levels of arrays and objects in each other. The parser bounds them.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A schema by itself.
fn bare_schema(schema: Value, path: &str, _: &mut Unknown) -> Result<Format, ApiError> {
    Ok(Format::schema(UNNAMED, checked(schema, path)?))
}

/// A schema by itself, perhaps as text.
fn written_schema(value: Value, path: &str, unknown: &mut Unknown) -> Result<Format, ApiError> {
    let schema = match &value {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|e| ApiError::invalid(path, format!("'{path}' is not a JSON schema: {e}")))?,
        _ => value,
    };
    bare_schema(schema, path, unknown)
}

fn structured_outputs(value: Value, path: &str, unknown: &mut Unknown) -> Result<Format, ApiError> {
    let mut fields = Fields::of(value, path)?;
    let schema = fields.take("json");
    let is_object = fields.boolean("json_object")?.unwrap_or(false);
    let format = match (schema, is_object) {
        (Some(_), true) => {
            let path = fields.path_of("json_object");
            let message = format!("'{path}' and a schema both give the shape of the answer");
            return Err(ApiError::invalid(&path, message));
        }
        (Some(schema), false) => written_schema(schema, &fields.path_of("json"), unknown)?,
        (None, true) => Format::JsonObject,
        (None, false) => Format::Text,
    };
    refused::check_structured_outputs(&mut fields, unknown)?;
    fields.finish(&["json", "json_object"], &["disable_fallback"], unknown)?;
    Ok(format)
}

fn ollama(value: Value, path: &str, unknown: &mut Unknown) -> Result<Format, ApiError> {
    match value.as_str() {
        Some("json") => Ok(Format::JsonObject),
        Some("") => Ok(Format::Text),
        Some(_) => Err(ApiError::invalid(
            path,
            format!("'{path}' must be \"json\" or a JSON schema"),
        )),
        None => bare_schema(value, path, unknown),
    }
}
