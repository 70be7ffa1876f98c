//! Named limits of what a request may ask of an engine.

use std::time::Duration;

/// Largest schema, in bytes of JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// Most objects and arrays of a schema.
pub const MAX_SCHEMA_NODES: usize = 20_000;
/// Deepest nesting, in objects and arrays, with what `$ref` leads to.
pub const MAX_SCHEMA_DEPTH: usize = 200;
/// Most entries of one object or array that holds schemas, or of `required`.
pub const MAX_SCHEMA_ENTRIES: usize = 500;
/// Most patterns and formats that one value must satisfy at once.
pub const MAX_SCHEMA_PATTERNS: usize = 6;
/// Most parts that schemas which must hold at once have when they are multiplied out.
pub const MAX_SCHEMA_PRODUCT: usize = 20_000;
/// Longest that a schema may take to compile.
pub const COMPILE_LIMIT: Duration = Duration::from_secs(3);
/// Most schemas of one model that are compiled at once; those that went over the limit count until they end.
pub const MAX_COMPILING: usize = 4;
