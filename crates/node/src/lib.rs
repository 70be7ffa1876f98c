//! Worker daemon: engine thread, slots, handoff pumps, control API.
