//! What makes a KV cache exchangeable, and how it travels.
//!
//! This crate is pure: no sockets, no clocks, no randomness, no engine. It holds
//!
//! - [`contract`]: everything that must be equal on both ends of a handoff;
//! - [`plane`]: neutral KV rows, `[token][kv_head][dim]`, little-endian f16;
//! - [`digest`]: the one way token sequences are hashed;
//! - [`page`]: the identity of 64 tokens of KV, and of all before them;
//! - [`codec`]: how planes become payload bytes (a closed enum with wire numbers);
//! - [`policy`]: which of them a handoff takes;
//! - [`frame`]: the 64-byte header, checksums, and the limits every length is checked against;
//! - [`message`]: the payloads of the control frames (hello, accept, refuse, commit, ...);
//! - [`segment`]: blocks cut and encoded for the wire;
//! - [`permit`]: who may open a connection: tickets and sessions;
//! - [`sender`] and [`receiver`]: the two ends of a handoff as state machines without I/O;
//! - [`receipt`]: whether both ends compute the same from the same KV.
//!
//! The byte tables are in `docs/wire-format.md`.

pub mod codec;
pub mod contract;
pub mod digest;
pub mod frame;
pub mod limits;
pub mod message;
pub mod page;
pub mod permit;
pub mod plane;
pub mod policy;
pub mod receipt;
pub mod receiver;
pub mod segment;
pub mod sender;
mod text;

pub use contract::{Contract, ElementType, LayerKind, LayerSpec, PlaneKind, Section};
pub use plane::{KvBlock, PerSection, Plane, Rows};
