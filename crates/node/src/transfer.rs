//! The socket shells of a handoff: [`send`] and [`receive`], its two ends on real connections, and [`wire`], frames to and
//! from a connection. The protocol itself is the crate `handoff`.

pub mod receive;
pub mod send;
pub mod wire;
