//! Which node prefills and which decodes: pure decisions.
//!
//! A [`Scheduler`] is a function of its state and the next [`Event`]; it answers with
//! [`Action`]s. It asks no clock, draws no random number and knows no socket, so the same events
//! always give the same actions. The service around it reports what happens and does what it says.
//!
//! Beside it, [`plan`] says what machines could do together, of the figures of [`profile`] and the formulas of [`cost`].
//!
//! Life of a request: `Submit` → (`Queued`) → `Start` → `PrefillEnded` → `Finished`. A request
//! ends exactly once: by `Reject`, or by the service telling `Finished`, `Cancel` or
//! `DecodeFailed` without a retry.

pub mod cost;
mod event;
pub mod limits;
mod pin;
mod placement;
pub mod plan;
mod prefix;
pub mod profile;
mod scheduler;
mod state;
mod view;

pub use event::{Action, Event, Failure, Plan, Rejection, Route, Serves};
pub use pin::{OtherModel, Pin};
pub use state::{ModelRoutes, Scheduler, Topology};
pub use view::{ModelLoad, NodeView, ServerView};
