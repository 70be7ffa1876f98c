//! Text that looks as if it were addressed to the grader. A finding is shown to the teacher and
//! changes no score; the defence itself is the fence, the constrained answer and the approval.

/// Phrases, lower case with single spaces.
const PHRASES: &[&str] = &[
    "ignore previous",
    "ignore all previous",
    "ignore the rubric",
    "ignore all instructions",
    "disregard",
    "full points",
    "full marks",
    "full score",
    "maximum points",
    "maximum score",
    "perfect score",
    "note to the grader",
    "note to grader",
    "grader note",
    "dear grader",
    "attention grader",
    "instruction to the grader",
    "as a grader",
    "system prompt",
    "you are an ai",
    "language model",
    "award all",
    "give this submission",
    "grade this submission",
    "end of submission",
    "volle punktzahl",
    "ignoriere die",
    "ignoriere alle",
    "hinweis an die lehr",
    "hinweis an den",
    "toute la note",
    "ignore les instructions",
    "nota máxima",
    "ignora las instrucciones",
    "punteggio massimo",
];

/// Keys of an answer in the form that the grader gives.
const ANSWER: &[&str] = &["\"criteria\"", "\"rationale\"", "\"evidence\""];

/// Markers of chat templates. The engine tokenises them as plain text; their presence is telling.
const CONTROL_MARKERS: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|start|>",
    "<|end|>",
    "<|channel|>",
    "<|message|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|endoftext|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[inst]",
    "[/inst]",
    "<<sys>>",
];

/// What in one line looks addressed to the grader, if anything.
pub(crate) fn suspicious(line: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    if CONTROL_MARKERS.iter().any(|m| lower.contains(m)) {
        return Some("a chat control marker");
    }
    if lower.contains("\"points\"") && ANSWER.iter().any(|key| lower.contains(key)) {
        return Some("an assessment that is ready made");
    }
    let words: Vec<&str> = lower.split_whitespace().collect();
    let joined = words.join(" ");
    PHRASES
        .iter()
        .any(|p| joined.contains(p))
        .then_some("text that looks like an instruction to the grader")
}
