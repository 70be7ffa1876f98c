//! The JSON schema that an answer of the code analysis is constrained to.
//!
//! Key order in the schema is the order of generation: evidence, then rationale, then points.

use crate::limits;
use crate::rubric::{Criterion, Rubric};
use crate::source::SourceFile;
use crate::submission::Submission;
use serde_json::{Map, Value, json};

/// The schema for one submission: one required object per criterion, in the rubric's order.
pub fn verdict_schema(rubric: &Rubric, submission: &Submission, rationale_chars: u32) -> Value {
    let mut properties = Map::new();
    for criterion in &rubric.criteria {
        properties.insert(
            criterion.id.clone(),
            criterion_schema(criterion, submission, rationale_chars),
        );
    }
    let ids: Vec<&str> = rubric.criteria.iter().map(|c| c.id.as_str()).collect();
    let criteria = json!({
        "type": "object",
        "properties": properties,
        "required": ids,
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": { "criteria": criteria },
        "required": ["criteria"],
        "additionalProperties": false,
    })
}

fn criterion_schema(criterion: &Criterion, submission: &Submission, rationale_chars: u32) -> Value {
    let allowed: Vec<Value> = criterion
        .allowed()
        .into_iter()
        .map(|p| p.to_json())
        .collect();
    json!({
        "type": "object",
        "properties": {
            "evidence": {
                "type": "array",
                "items": evidence_schema(submission),
                "maxItems": limits::MAX_EVIDENCE,
            },
            "rationale": { "type": "string", "maxLength": rationale_chars },
            "points": { "enum": allowed },
        },
        "required": ["evidence", "rationale", "points"],
        "additionalProperties": false,
    })
}

fn evidence_schema(submission: &Submission) -> Value {
    let line = json!({ "type": "integer", "minimum": 1, "maximum": submission.max_lines().max(1) });
    let mut properties = Map::new();
    if submission.files.len() > 1 {
        let names: Vec<&str> = submission.files.iter().map(|f| f.prompt_name()).collect();
        properties.insert("file".to_owned(), json!({ "enum": names }));
    }
    properties.insert("line_start".to_owned(), line.clone());
    properties.insert("line_end".to_owned(), line);
    let required: Vec<&String> = properties.keys().collect();
    json!({
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": false,
    })
}

/// Bytes of the longest answer that satisfies the schema, without white space. A model whose tokens
/// are bytes needs as many tokens; others need fewer.
///
/// A character takes at most 6 bytes in a JSON string (`\u0001`; unescaped UTF-8 takes at most 4).
pub fn worst_case_bytes(rubric: &Rubric, submission: &Submission, rationale_chars: u32) -> usize {
    let longest_file = submission
        .files
        .iter()
        .max_by_key(|f| json!(f.prompt_name()).to_string().len());
    let mut evidence = Map::new();
    if submission.files.len() > 1 {
        evidence.insert(
            "file".to_owned(),
            json!(longest_file.map(SourceFile::prompt_name)),
        );
    }
    evidence.insert(
        "line_start".to_owned(),
        json!(submission.max_lines().max(1)),
    );
    evidence.insert("line_end".to_owned(), json!(submission.max_lines().max(1)));
    let rationale = "\u{1}".repeat(usize::try_from(rationale_chars).unwrap_or(usize::MAX));
    let mut criteria = Map::new();
    for criterion in &rubric.criteria {
        let points = criterion
            .allowed()
            .into_iter()
            .map(|p| p.to_json())
            .max_by_key(|v| v.to_string().len());
        let worst = json!({
            "evidence": vec![evidence.clone(); limits::MAX_EVIDENCE],
            "rationale": rationale,
            "points": points,
        });
        criteria.insert(criterion.id.clone(), worst);
    }
    json!({ "criteria": criteria }).to_string().len()
}
