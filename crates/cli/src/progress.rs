//! Progress of a grading run on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tandem_grading::{JobRecord, Progress};

use crate::tables;

/// Between two redraws of the elapsed time.
const TICK: Duration = Duration::from_millis(200);

/// A bar on a terminal, and one line per job everywhere.
pub struct Reporter {
    bar: ProgressBar,
}

impl Reporter {
    /// A bar for so many submissions; `label` says what is going on.
    pub fn new(label: &'static str, submissions: usize) -> Self {
        let bar = ProgressBar::with_draw_target(
            u64::try_from(submissions).ok(),
            ProgressDrawTarget::stderr(),
        );
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}");
        // The template is a constant and valid; a plain bar would do too.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(label);
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Shows one step.
    pub fn report(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Warning(warning) => self.line(&format!("warning: {warning}")),
            Progress::Asked { .. } | Progress::Text { .. } => {}
            Progress::JobFinished { name, record, .. } => self.line(&job_line(name, record)),
            Progress::Finished {
                graded,
                done,
                total,
                ..
            } => {
                let score = match graded.score {
                    Some(score) => format!(" {score}/{}", graded.max_score),
                    None => format!(", {}", tables::short_reason(graded)),
                };
                let status = graded.status.as_str();
                self.line(&format!("{done}/{total} {}: {status}{score}", graded.name));
                self.bar
                    .set_length(u64::try_from(*total).unwrap_or(u64::MAX));
                self.bar.inc(1);
            }
        }
    }

    /// One is done, of which there is nothing to say.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }
}

fn job_line(name: &str, record: &JobRecord) -> String {
    let how = match (&record.tandem, &record.error) {
        // Why is told with the submission, and once for all that share the cause.
        (_, Some(_)) => "no answer".to_owned(),
        (Some(t), None) if t.server.is_some() => format!(
            "{} tokens, by server {}, {} tokens",
            t.prompt_tokens, t.decode_node, t.generated_tokens
        ),
        (Some(t), None) => format!(
            "{} tokens, {} {} → {}, {} tokens",
            t.prompt_tokens, t.mode, t.prefill_node, t.decode_node, t.generated_tokens
        ),
        (None, None) => "done".to_owned(),
    };
    format!(
        "  {name} {}: {how} in {:.0} ms",
        record.job.as_str(),
        record.wall_ms
    )
}
