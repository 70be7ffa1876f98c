//! What the scheduler is told and what it answers.

use tandem_proto::NodeStatus;

use crate::pin::Pin;

/// Where the prefill of a request may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Route {
    /// On another node if one can, otherwise on the decode node.
    #[default]
    Auto,
    /// On a prefill node, for which a decode node is chosen that has one; the decode node itself
    /// prefills only if no prefill node can.
    Remote,
    /// On the decode node.
    Local,
}

/// Why a decode node did not finish a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The connection failed: nothing is started there until the node's next status.
    Lost,
    /// There was no connection, so the request has not been there: it may be, after the node's next status.
    Unreachable,
    /// The node is about to end: nothing is started there until its next status.
    Stopping,
    /// The node has no free sequence: nothing of this model is started there until a sequence
    /// ends or the node's next status.
    Busy,
    /// The node has less of the prompt than the plan takes it to have: the request waits for a prefill node.
    Lacks,
    /// The request is longer than the context of the node: one with a longer context may take it.
    TooLong,
    /// The node answered that it cannot, for another reason.
    Refused,
}

/// What a server, which is no node, serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Serves {
    /// Requests that it is given at once, of all models together.
    pub parallel: u32,
    /// The configured models that it has.
    pub models: Vec<String>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node told its status.
    NodeUp {
        /// Its name in the configuration.
        node: String,
        /// What it holds.
        status: Box<NodeStatus>,
    },
    /// A server told what it serves.
    ServerUp {
        /// Its name in the configuration.
        server: String,
        /// What it serves.
        serves: Serves,
    },
    /// A node or server cannot be used.
    NodeDown {
        /// Its name in the configuration.
        node: String,
        /// Why, for a person.
        reason: String,
        /// True if it has just gone, so that requests that only it can serve wait for it. What follows is another status, or
        /// this event again with `false`.
        may_return: bool,
    },
    /// A new request.
    Submit {
        /// Unique id.
        request: String,
        /// Name of the model.
        model: String,
        /// Where the prefill may run.
        route: Route,
        /// What its prompt begins with: a digest for each [`crate::limits::PREFIX_BLOCK`] bytes and all before
        /// them. Empty if it does not matter who has seen it.
        prefix: Vec<u64>,
        /// True for a turn of a conversation, which its decode node may prefill by itself.
        goes_on: bool,
    },
    /// Nobody waits for the request any more.
    Cancel {
        /// Its id.
        request: String,
    },
    /// The prefill node is done with the request, has failed, or was not needed.
    PrefillEnded {
        /// Its id.
        request: String,
        /// True if it has computed the prompt.
        computed: bool,
    },
    /// The request is answered.
    Finished {
        /// Its id.
        request: String,
        /// What a prompt that goes on from the answer begins with.
        prefix: Vec<u64>,
    },
    /// Two nodes do not compute the same: the model is not handed over between them until one of them has been down.
    PairRefused {
        /// Name of the prefill node.
        prefill: String,
        /// Name of the decode node.
        decode: String,
        /// Name of the model.
        model: String,
    },
    /// The decode node did not finish the request.
    DecodeFailed {
        /// Its id.
        request: String,
        /// The decode node of the plan that failed.
        node: String,
        /// Why.
        failure: Failure,
        /// Whether the request may start over; otherwise it has ended.
        retry: bool,
    },
}

/// Where a request runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Node that generates, or server that answers.
    pub decode: String,
    /// Node that prefills; `None` if the decode node does.
    pub prefill: Option<String>,
    /// The decode node prefills by itself if no more than this part of the prompt, in percent, is missing there. With a
    /// prefill node: in a conversation of which it has seen more than that one, else 0. Without: 100, or less if
    /// it would wait for a prefill node otherwise.
    pub alone_percent: u8,
    /// True if the prefill node holds another quantisation of the weights than the node that generates.
    pub mixed_quantisation: bool,
    /// Why these nodes, in one line.
    pub reason: String,
    /// What a person should know: nodes left out for a difference of contract, a fallback.
    pub notes: Vec<String>,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run the request like this.
    Start {
        /// Its id.
        request: String,
        /// Where.
        plan: Plan,
    },
    /// The request has ended without an answer.
    Reject {
        /// Its id.
        request: String,
        /// Why.
        reason: Rejection,
    },
    /// A model is used for the first time, or in a further quantisation: this is what its name stands for from now on.
    Pin {
        /// Its name.
        model: String,
        /// All its pins.
        pins: Vec<Pin>,
    },
    /// The request waits.
    Queued {
        /// Its id.
        request: String,
        /// Requests of the same model before it.
        before: usize,
    },
}

/// Why a request is not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The configuration does not name the model.
    #[error("the model `{model}` is not configured")]
    UnknownModel {
        /// The name that was asked for.
        model: String,
    },
    /// No node can generate now.
    #[error("nobody can answer with `{model}`: {}", reasons.join("; "))]
    NoDecodeNode {
        /// Name of the model.
        model: String,
        /// One reason per configured node.
        reasons: Vec<String>,
    },
    /// Too many requests wait for the model.
    #[error("{limit} requests wait for `{model}` already; send this one again later")]
    QueueFull {
        /// Name of the model.
        model: String,
        /// [`crate::limits::MAX_QUEUED`].
        limit: usize,
    },
    /// The request was started as often as allowed and failed each time.
    #[error("gave up on `{model}` after {attempts} attempts")]
    RetriesExhausted {
        /// Name of the model.
        model: String,
        /// How often it was started.
        attempts: usize,
    },
    /// A request with this id is waiting or running.
    #[error("a request with the id `{request}` is waiting or running already")]
    DuplicateRequest {
        /// The id.
        request: String,
    },
}
