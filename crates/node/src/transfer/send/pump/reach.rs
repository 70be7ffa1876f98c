//! Opens the connection of a handoff, and opens it again after a break.

use std::sync::Arc;
use std::time::Instant;

use tandem_cluster::Link;
use tandem_handoff::sender::SenderState;
use tandem_proto::{ErrorCode, NodeError};
use tokio::time::{sleep, timeout, timeout_at};

use super::Pump;
use crate::limits::{GOODBYE, MAX_RECONNECTS, RECONNECT_GROWTH, RECONNECT_PAUSE};
use crate::transfer::send::connection::Connection;
use crate::transfer::send::{Fault, broken};
use crate::transfer::wire::{read_answer, write_frame};

impl Pump {
    /// Opens a connection until `give_up`, and hears the receiver's answer. No KV moves before it.
    pub(super) async fn connect(
        &mut self,
        hello: &[u8],
        give_up: Option<Instant>,
    ) -> Result<(), Fault> {
        self.connection = None;
        let limits = self.route.limits;
        let linking = self.link();
        let link = match give_up {
            None => linking.await?,
            Some(give_up) => timeout_at(give_up.into(), linking)
                .await
                .map_err(|_| Fault::Broken("no new connection in time".into()))??,
        };
        let (mut read, mut write) = link.into_split();
        write_frame(&mut write, hello, limits.handoff_silence).await?;
        while self.sender.state() == SenderState::AwaitAccept {
            // It beats while it puts pages into place, or applies what has come before.
            let silence = limits.handoff_silence;
            let (header, payload) = read_answer(&mut read, Some(silence), silence).await?;
            self.sender.receive(&header, &payload)?;
        }
        let (outbound, links) = (self.sender.outbound(), Arc::clone(&self.route.links));
        self.connection = Some(Connection::start((read, write), outbound, limits, links));
        self.requeue();
        Ok(())
    }

    async fn link(&self) -> Result<Link, Fault> {
        let (target, limit) = (&self.route.target, self.route.limits.connect);
        let link = match &self.route.peer {
            Some(peer) => self.route.security.connect_to(target, peer, limit).await,
            None => self.route.security.connect(target, limit).await,
        };
        link.map_err(|e| Fault::Broken(e.to_string()))
    }

    /// Reads what the receiver said before the connection broke: a writer may fail before it is read
    /// why the handoff ended.
    pub(super) async fn hear_out(&mut self) -> Result<(), NodeError> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        let hearing = async {
            while self.sender.state() != SenderState::Committed
                && let Some(Ok((header, payload))) = connection.incoming.recv().await
            {
                match self.received(&header, &payload) {
                    Ok(()) => {}
                    Err(Fault::Over(e)) => return Err(e),
                    Err(Fault::Broken(_)) => break,
                }
            }
            Ok(())
        };
        timeout(GOODBYE, hearing).await.unwrap_or(Ok(()))
    }

    /// Goes on over a new connection, which has to be there within [`Limits::resume`].
    pub(super) async fn reconnect(&mut self, reason: &str) -> Result<(), NodeError> {
        let give_up = Instant::now() + self.route.limits.resume;
        let mut reason = reason.to_owned();
        loop {
            self.connection = None;
            let breaks = self.account.reconnects();
            tracing::warn!(%reason, "the connection of a handoff broke");
            if breaks > MAX_RECONNECTS || Instant::now() + self.way.pause > give_up {
                return Err(self.lost(&reason));
            }
            sleep(self.way.pause).await;
            self.way.pause = (self.way.pause * 2).min(RECONNECT_PAUSE * RECONNECT_GROWTH);
            let hello = match self.sender.reconnect() {
                Ok(hello) => hello,
                Err(_) => return Err(self.lost(&reason)),
            };
            match self.connect(&hello, Some(give_up)).await {
                Ok(()) => return Ok(()),
                // The receiver has forgotten the handoff, perhaps because it is complete.
                Err(Fault::Over(e)) if self.way.in_doubt && e.code == ErrorCode::Refused => {
                    return Err(self.lost(&e.message));
                }
                Err(Fault::Over(e)) => return Err(e),
                Err(Fault::Broken(next)) => reason = next,
            }
        }
    }

    /// The end of a handoff that cannot go on. Only the decode node knows whether it lacks anything
    /// if it may have confirmed.
    fn lost(&self, reason: &str) -> NodeError {
        let doubt = if self.way.in_doubt {
            "everything was sent, and whether the decode node has it is not known: "
        } else {
            ""
        };
        broken(format!("connection to the decode node: {doubt}{reason}"))
    }
}
