//! The server that answers for the models.

use std::time::Duration;

use tandem_grading::{GradingConfig, JobConfig};

use crate::machines::Told;

/// Where models are asked, and which ones unless somebody chooses others.
#[derive(Debug, Clone)]
pub struct ModelServer {
    /// Where the API is, with its version: `http://127.0.0.1:8080/v1`.
    pub base_url: String,
    /// The job that assesses each criterion.
    pub code_analysis: JobConfig,
    /// The job that writes to the student.
    pub feedback: JobConfig,
    /// Requests of each job at once.
    pub parallel: usize,
    /// Each answer gets the same bits whenever it is asked for, which takes longer; unless somebody chooses otherwise.
    pub reproducible: bool,
    /// How long a request waits for a model that is away; the run ends then, and can be continued.
    pub wait: Duration,
}

impl ModelServer {
    /// The configuration of a run.
    pub(crate) fn config(&self) -> GradingConfig {
        let mut config = GradingConfig::new(
            &self.base_url,
            self.code_analysis.clone(),
            self.feedback.clone(),
        );
        config.parallel = self.parallel;
        config.reproducible = self.reproducible;
        config.keep = false;
        config.node_wait = self.wait;
        config
    }

    /// What the server tells of its models; nothing if it is none of tandem's.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) async fn told(&self) -> Result<Option<Told>, reqwest::Error> {
        // Student work and grades stay on the way that was configured: no proxy.
        let http = reqwest::Client::builder().no_proxy().build()?;
        Told::ask(&http, &self.base_url).await
    }

    /// The models that can be chosen, and which machines do not answer.
    pub(crate) async fn models(&self) -> (Vec<String>, Vec<String>) {
        let told = self.told().await.ok().flatten();
        let down = told.as_ref().map(Told::down).unwrap_or_default();
        let mut models = told.map(|told| told.models()).unwrap_or_default();
        for model in [&self.code_analysis.model, &self.feedback.model] {
            if !model.is_empty() && !models.contains(model) {
                models.push(model.clone());
            }
        }
        (models, down)
    }
}
