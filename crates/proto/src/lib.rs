//! Control messages between coordinator and nodes.
