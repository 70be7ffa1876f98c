//! The OpenAI API in front of the nodes: routes, streams, timelines.
//!
//! [`run`] serves until told to stop. One task owns the scheduler; requests, pollers and the API
//! send it messages over a bounded channel. Each request is one task that holds the connections
//! to its nodes, so that dropping the answer drops them and with them the nodes' work.

mod alone;
mod answer;
mod answers;
mod api;
mod backend;
mod calls;
mod cluster;
mod config;
mod connect;
mod error;
mod guard;
pub mod limits;
mod lines;
mod overview;
mod pairs;
mod pins;
mod poison;
mod poll;
mod prefix;
mod refusal;
mod request;
mod serve;
mod service;
mod timeline;
mod tokenize;
mod totals;
mod translate;

pub use alone::{MAX_PROFILE_BYTES, machine_profile};
pub use calls::Calls;
pub use config::dialect::Dialect;
pub use config::pair::{PairConfig, PairKind};
pub use config::server::{PairEntry, Render, Secret, ServerConfig};
pub use config::{
    Config, CorsConfig, HandoffConfig, KeepAnswers, ModelConfig, NodeConfig, ParityAction,
};
pub use error::{CallError, ConfigError, CoordinatorError};
pub use limits::Limits;
pub use lines::Lines;
pub use overview::{
    ContractSummary, HealthReport, ModelReport, NodeList, NodeReport, QueueReport, ServedReport,
    ServerReport,
};
pub use pairs::PairReport;
pub use pins::{Pins, read_pins, write_pins};
pub use serve::{run, run_with_pages};
pub use tandem_sched::Pin;
