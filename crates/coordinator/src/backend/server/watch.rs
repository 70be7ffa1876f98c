//! Asks a server what it has, again and again.

use std::sync::Arc;
use std::time::Instant;

use tandem_sched::{Event, Serves};
use tokio::sync::oneshot;

use super::probe::{Found, in_words, probe};
use super::{Server, locked};
use crate::cluster::Cluster;
use crate::error::CallError;
use crate::limits::Limits;

/// Watches one server for ever, for these models; `first` is sent when the scheduler knows the first result.
pub(crate) async fn watch(
    server: Arc<Server>,
    cluster: Cluster,
    wanted: Vec<String>,
    limits: Limits,
    first: oneshot::Sender<()>,
) {
    let mut first = Some(first);
    let mut last: Option<Result<Found, String>> = None;
    let mut last_up: Option<Instant> = None;
    let mut missed = 0;
    loop {
        let found = probe(&server.http, &server.config, &wanted, limits.connect).await;
        let found = found.map(|found| server.unchanged(found));
        missed = match &found {
            Ok(_) => 0,
            // One that does one thing at a time tells nothing while it answers.
            Err(CallError::Silent(_)) if server.is_busy() && last_up.is_some() => 0,
            Err(_) => missed + 1,
        };
        if found.is_ok() {
            last_up = Some(Instant::now());
        }
        let waits = found.is_err() && last_up.is_some() && missed < limits.missed_polls;
        if !waits {
            let told = found
                .as_ref()
                .map(Clone::clone)
                .map_err(CallError::to_string);
            if last.as_ref() != Some(&told) {
                announce(&server, &told);
                last = Some(told);
            }
            *locked(&server.found) = found.as_ref().ok().map(|found| Arc::new(found.clone()));
            let may_return = last_up.is_some_and(|last| last.elapsed() < limits.may_return);
            cluster.tell(event(&server, found, may_return)).await;
        }
        if let Some(first) = first.take() {
            // Nobody waits if the coordinator is stopping.
            let _ = first.send(());
        }
        tokio::time::sleep(limits.server_poll).await;
    }
}

fn event(server: &Server, found: Result<Found, CallError>, may_return: bool) -> Event {
    let name = server.config.name.clone();
    let down = |reason: String, may_return| Event::NodeDown {
        node: name.clone(),
        reason,
        may_return,
    };
    match found {
        Ok(found) if found.models.is_empty() => down(found.missing.join("; "), false),
        Ok(found) => Event::ServerUp {
            serves: Serves {
                parallel: server.parallel(&found),
                models: found.models.into_iter().map(|model| model.ours).collect(),
            },
            server: name,
        },
        Err(error) => down(error.to_string(), may_return),
    }
}

fn announce(server: &Server, told: &Result<Found, String>) {
    let name = &server.config.name;
    match told {
        Ok(found) => {
            let dialect = found.dialect.as_str();
            let models: Vec<&str> = found.models.iter().map(|m| m.theirs.as_str()).collect();
            tracing::info!(server = name, dialect, ?models, "server is up");
            for reason in &found.missing {
                tracing::warn!(server = name, reason, "a model is not served");
            }
        }
        Err(reason) => tracing::warn!(server = name, reason, "server is down"),
    }
}

impl Server {
    /// Requests that it is given at once.
    pub(crate) fn parallel(&self, found: &Found) -> u32 {
        self.config
            .parallel
            .unwrap_or(found.dialect.traits().parallel)
    }

    /// Leaves out models that are others than when they were first seen: nobody would know from which one an answer is.
    fn unchanged(&self, mut found: Found) -> Found {
        let mut first = locked(&self.first);
        let (name, changed) = (&self.config.name, &mut found.changed);
        found.models.retain(|model| {
            let known = first.entry(model.ours.clone()).or_insert_with(|| model.clone());
            let (now, then) = (&model.reported, &known.reported);
            // While it loads, a server tells less; what it tells later counts from then on.
            let mut told = now.iter();
            let is_as_told = told.all(|(key, value)| then.get(key).is_none_or(|v| v == value));
            let is_same = known.theirs == model.theirs && is_as_told;
            if is_same {
                known.reported.extend(model.reported.clone());
            } else {
                changed.push(format!(
                    "`{}` is another model than before: `{}` ({}), and was `{}` ({}); start tandem again to take it, or give \
                     server `{name}` the other one back",
                    model.ours,
                    model.theirs,
                    in_words(now),
                    known.theirs,
                    in_words(then)
                ));
            }
            is_same
        });
        found.missing.extend(found.changed.iter().cloned());
        found
    }
}
