//! Criteria that a model proposes for a task. A person has to go over them; points and sums are made in code.

use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use tandem_api::{FinishReason, Format, Message, Role};

use crate::attempt::Material;
use crate::client::Client;
use crate::config::{GradingConfig, JobConfig};
use crate::draft::{CriterionDraft, Draft, LevelDraft};
use crate::error::GradingError;
use crate::limits::MAX_PROPOSAL_TOKENS;
use crate::prompt;
use crate::request::chat;

const SYSTEM: &str = "You write a rubric with which a teacher grades the code of students. Each criterion is something \
else, and can be seen in the code. Its levels go from the best to the worst; each says what can be seen, in a short \
sentence without vague words such as good, clean or some. Write in the language of the task. Answer in JSON.";

/// What a model answers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Proposal {
    criteria: Vec<ProposedCriterion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProposedCriterion {
    title: String,
    description: String,
    /// How much it counts beside the others.
    weight: u32,
    levels: Vec<ProposedLevel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProposedLevel {
    label: String,
    when: String,
}

fn schema() -> Value {
    let text = |most: u32| json!({ "type": "string", "minLength": 1, "maxLength": most });
    let object = |properties: Value| {
        let required: Vec<String> = properties
            .as_object()
            .map(|all| all.keys().cloned().collect())
            .unwrap_or_default();
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    };
    let list = |of: Value, least: u32, most: u32| json!({ "type": "array", "items": of, "minItems": least, "maxItems": most });
    let level = object(json!({ "label": text(20), "when": text(120) }));
    let criterion = object(json!({
        "title": text(40),
        "description": text(160),
        "weight": { "type": "integer", "enum": [1, 2, 3, 4] },
        "levels": list(level, 3, 3),
    }));
    object(json!({ "criteria": list(criterion, 3, 5) }))
}

/// Has the model that gives points propose criteria for the task of a draft, with so many points in all.
///
/// # Errors
/// A draft without a task, a configuration that cannot be used, a server that is away, or an answer that is no rubric.
pub async fn propose(
    config: &GradingConfig,
    draft: &Draft,
    solution: &[Material],
    points: u32,
) -> Result<Vec<CriterionDraft>, GradingError> {
    config.check()?;
    let mut user = format!("# Task: {}\n{}\n", draft.title, draft.task);
    if !draft.guidelines.trim().is_empty() {
        // Writing into a `String` cannot fail.
        let _ = writeln!(user, "\n# How to judge\n{}", draft.guidelines);
    }
    prompt::solutions(&mut user, solution);
    user.push_str("\nWrite the criteria for this task.");
    let messages = vec![
        Message::new(Role::System, SYSTEM.to_owned()),
        Message::new(Role::User, user),
    ];
    let job = JobConfig {
        max_tokens: config.code_analysis.max_tokens.max(MAX_PROPOSAL_TOKENS),
        ..config.code_analysis.clone()
    };
    let request = chat(config, &job, messages, Format::schema("rubric", schema()));
    let answer = Client::new(config)?.ask(&request, &|_| {}).await;
    let answer = answer.map_err(|error| GradingError::Server(error.reason()))?;
    let unusable =
        |why: &str| GradingError::Server(format!("the model's answer is no rubric: {why}"));
    if answer.finish == Some(FinishReason::Length) {
        return Err(unusable("it was cut at its limit"));
    }
    let proposal: Proposal =
        serde_json::from_str(answer.text.trim()).map_err(|error| unusable(&error.to_string()))?;
    let mut criteria = proposal.criteria;
    criteria.iter_mut().for_each(ProposedCriterion::tidy);
    criteria.retain(|one| !one.title.is_empty() && one.levels.len() > 1);
    match criteria.is_empty() {
        true => Err(unusable("it has no criterion with levels")),
        false => Ok(with_points(criteria, points)),
    }
}

impl ProposedCriterion {
    /// Each text in one line, as a form takes it.
    fn tidy(&mut self) {
        let levels = self
            .levels
            .iter_mut()
            .flat_map(|one| [&mut one.label, &mut one.when]);
        for text in [&mut self.title, &mut self.description]
            .into_iter()
            .chain(levels)
        {
            *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        }
    }

    /// Half points that keep its levels apart.
    fn least(&self) -> u64 {
        u64::try_from(self.levels.len()).unwrap_or(1) - 1
    }
}

/// The points of criteria in halves, which add up: what keeps their levels apart, and the rest by their weights. Levels go in
/// equal steps down to 0. Where there are too few points, the last criteria are left out.
fn with_points(mut criteria: Vec<ProposedCriterion>, points: u32) -> Vec<CriterionDraft> {
    let halves = u64::from(points) * 2;
    while criteria.len() > 1 && criteria.iter().map(ProposedCriterion::least).sum::<u64>() > halves
    {
        criteria.pop();
    }
    let least: u64 = criteria.iter().map(ProposedCriterion::least).sum();
    let rest = halves.saturating_sub(least);
    let all: u64 = criteria
        .iter()
        .map(|one| u64::from(one.weight.max(1)))
        .sum();
    let (mut weight, mut given) = (0, 0);
    let mut drafts = Vec::new();
    for one in criteria {
        weight += u64::from(one.weight.max(1));
        // Whole shares of what comes before: so the last one ends at the sum.
        let until = rest * weight / all.max(1);
        let (own, last) = (one.least() + until - given, one.least().max(1));
        given = until;
        let level = |(i, level): (u64, ProposedLevel)| LevelDraft {
            label: level.label,
            points: half(own * (last - i) / last),
            description: level.when,
        };
        drafts.push(CriterionDraft {
            title: one.title,
            description: one.description,
            max_points: half(own),
            levels: Some((0..).zip(one.levels).map(level).collect()),
            ..CriterionDraft::default()
        });
    }
    drafts
}

fn half(halves: u64) -> f64 {
    f64::from(u32::try_from(halves).unwrap_or(u32::MAX)) / 2.0
}
