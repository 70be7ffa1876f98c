//! Submissions, rubrics, prompts, verdicts and reports: a client of the OpenAI API.
