//! KV contract, planes, frames and the handoff state machines. No sockets, no clocks, no engine.
