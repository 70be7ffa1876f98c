//! A coordinator inside this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use tandem_cluster::{Ending, Public, Security};
use tandem_coordinator::{Config, CoordinatorError, HealthReport, NodeList, run_with_pages};
use tandem_gradebook::{Gradebook, ModelServer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Grading;

/// Longest wait for a coordinator on this machine to answer. It first asks every node once.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest wait for a coordinator to end after it was told to.
const END: Duration = Duration::from_secs(10);

/// A running coordinator. Dropping it tells it to stop.
pub struct Coordinator {
    address: SocketAddr,
    /// Where this process asks it.
    own: SocketAddr,
    public: Public,
    tls: bool,
    http: reqwest::Client,
    stop: CancellationToken,
    drain: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), CoordinatorError>>,
}

impl Coordinator {
    /// Starts a coordinator on `address`, where clients come as `public` says; port 0 takes any free one. It speaks
    /// to the nodes with `security`.
    ///
    /// # Errors
    /// If the address cannot be used, or it or a node's address needs TLS and there is none.
    pub async fn start(
        address: SocketAddr,
        public: Public,
        config: Config,
        security: Security,
    ) -> anyhow::Result<Self> {
        Self::start_with_pages(address, public, config, security, None).await
    }

    /// The same, with the pages of a gradebook.
    ///
    /// # Errors
    /// The same.
    pub async fn start_with_pages(
        address: SocketAddr,
        public: Public,
        config: Config,
        security: Security,
        gradebook: Option<&Gradebook>,
    ) -> anyhow::Result<Self> {
        config.check_security(&security)?;
        public.check_listen(address).context("`listen`")?;
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("`listen`: cannot listen on {address}; choose an address of this machine and a free port")
        })?;
        let address = listener.local_addr()?;
        let mut listeners = vec![(listener, public.clone())];
        let mut own = address;
        if public.is_tls() {
            // Its certificate is for the names that clients use.
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            own = listener.local_addr()?;
            listeners.push((listener, Public::plaintext()));
        }
        let pages = gradebook.map(|g| g.router(public.is_tls()));
        let pages = pages.unwrap_or_default();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let (drain, drained) = oneshot::channel::<()>();
        let ending = async move {
            tokio::select! {
                () = stopped => Ending::Now,
                Ok(()) = drained => Ending::Drain,
            }
        };
        Ok(Self {
            address,
            own,
            public,
            tls: security.is_tls(),
            // Prompts stay on the way that the configuration names: no proxy.
            http: reqwest::Client::builder().no_proxy().build()?,
            task: tokio::spawn(run_with_pages(listeners, config, security, pages, ending)),
            stop,
            drain: Some(drain),
        })
    }

    /// `http://…/v1`, where this process asks it.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.own)
    }

    /// Where clients go.
    pub fn url(&self) -> String {
        let scheme = if self.public.is_tls() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// True if it speaks to the nodes with TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Tells a gradebook where to ask for models, and how long they are waited for.
    pub fn connect(&self, gradebook: &Gradebook, jobs: &Grading, wait: Duration) {
        gradebook.connect(ModelServer {
            base_url: self.base_url(),
            code_analysis: jobs.code_analysis.clone(),
            feedback: jobs.feedback.clone(),
            parallel: jobs.parallel,
            reproducible: jobs.reproducible,
            wait,
        });
    }

    /// A client without proxies.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// What is known of the nodes; waits for the first account of each.
    ///
    /// # Errors
    /// If the coordinator does not answer, or has ended.
    pub async fn nodes(&mut self) -> anyhow::Result<NodeList> {
        let request = self.http.get(format!("{}/nodes", self.base_url()));
        tokio::select! {
            ended = &mut self.task => {
                ended.context("the coordinator failed")??;
                bail!("the coordinator ended before it was told to");
            }
            answer = answer(request) => Ok(answer?.1),
        }
    }

    /// Why some models cannot be served now; empty if all can.
    ///
    /// # Errors
    /// If the coordinator does not answer.
    pub async fn unavailable(&self) -> anyhow::Result<Vec<String>> {
        let request = self.http.get(format!("http://{}/health", self.own));
        let report: HealthReport = answer(request).await?.1;
        Ok(report.reasons)
    }

    /// Waits for the coordinator to end by itself, which it does only when it fails.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn failed(&mut self) -> anyhow::Result<()> {
        (&mut self.task).await.context("the coordinator failed")??;
        Ok(())
    }

    /// Lets open answers go on for as long as the configuration says, and refuses new requests.
    ///
    /// # Errors
    /// If it failed.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        if let Some(drain) = self.drain.take() {
            let _ = drain.send(());
        }
        Ok((&mut self.task).await.context("the coordinator failed")??)
    }

    /// Stops and waits for the end, within a limit.
    ///
    /// # Errors
    /// If it failed before.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        match tokio::time::timeout(END, &mut self.task).await {
            Ok(ended) => Ok(ended.context("the coordinator failed")??),
            Err(_) => {
                self.task.abort();
                Ok(())
            }
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn answer<T: serde::de::DeserializeOwned>(
    request: reqwest::RequestBuilder,
) -> anyhow::Result<(u16, T)> {
    let response = request
        .timeout(ANSWER)
        .send()
        .await
        .context("the coordinator does not answer")?;
    let status = response.status().as_u16();
    let body = response.json().await;
    Ok((
        status,
        body.context("the coordinator's answer cannot be read")?,
    ))
}
