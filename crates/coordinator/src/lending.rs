//! One node lends another one what it has of a prompt.

use std::time::Instant;

use tandem_proto::{PrefillRequest, Ticket};

use crate::backend::pair::handoff_target;
use crate::calls::{Awaited, Calls};

/// What it takes to have a node lend what it has of a prompt to the one that prefills it.
pub(crate) struct Lending {
    pub(crate) calls: Calls,
    /// Name of the node.
    pub(crate) lender: String,
    /// Where it is asked.
    pub(crate) address: String,
    /// Name of the one that prefills.
    pub(crate) to: String,
    /// Where that one is asked.
    pub(crate) borrower: String,
    /// What the lender is asked for, without the ticket.
    pub(crate) request: PrefillRequest,
}

/// What is to be told of a loan.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// For a person.
    pub(crate) note: Option<String>,
    /// How long it took.
    pub(crate) ms: f64,
}

impl Lending {
    /// Has it lent.
    pub(crate) async fn run(self, ticket: Ticket) -> Lent {
        let start = Instant::now();
        let note = self.lend(ticket).await;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        Lent { note, ms }
    }

    async fn lend(self, ticket: Ticket) -> Option<String> {
        let Self {
            calls,
            lender,
            address,
            to,
            borrower,
            mut request,
        } = self;
        request.target = handoff_target(&borrower, &ticket);
        request.handoff = ticket.handoff;
        request.ticket = ticket.secret;
        let reason = match calls.lend(&address, &request).await {
            Ok(0) => return None,
            Ok(bytes) => {
                return Some(format!(
                    "node `{lender}` lent `{to}` what it had of the prompt: {bytes} bytes of KV"
                ));
            }
            Err(error) => format!("node `{lender}` {error}"),
        };
        let id = &request.request;
        tracing::warn!(request = id, reason, "nothing lent");
        let told = calls.failed(&borrower, id, Awaited::Loan, &reason).await;
        if let Err(error) = told {
            // It does not wait for ever.
            tracing::debug!(request = id, %error, "the node that prefills was not told");
        }
        Some(format!(
            "`{to}` was not lent all that `{lender}` had of the prompt: {reason}"
        ))
    }
}
