//! Named limits of the page store, beside the bytes that its configuration gives it.

use std::time::Duration;

/// Pages and snapshots that a store knows at once, in memory and on disk. The index of one takes
/// about half a kilobyte.
pub const MAX_ENTRIES: usize = 1 << 18;
/// Largest page or snapshot that is kept, in bytes of rows: nothing larger crosses the wire.
pub const MAX_OBJECT_BYTES: u64 = tandem_handoff::limits::MAX_WINDOW_BYTES;
/// Bytes that may wait to be written to disk, beside the memory of the configuration; a single
/// object may be larger. What does not fit is not kept.
pub const MAX_SPILL_BYTES: u64 = 256 << 20;
/// Pages and snapshots that may wait to be written to disk.
pub const MAX_SPILLS_WAITING: usize = 256;
/// Pins at once; beyond that nothing is promised.
pub const MAX_PINS: usize = 1024;
/// Memory that is counted for an entry beside its rows and tokens.
pub const ENTRY_OVERHEAD: u64 = 512;
/// Times that a load looks for an object whose file vanished while it was read (a better copy came).
pub const LOAD_ATTEMPTS: u32 = 3;
/// A store that closes waits this long for what its disk is doing.
pub const CLOSE: Duration = Duration::from_secs(5);
/// Until a file that cannot be deleted is tried again.
pub const DELETE_PAUSE: Duration = Duration::from_secs(1);
/// A failing disk is logged this often at most; each failure is counted.
pub const FAULT_LOG_PAUSE: Duration = Duration::from_secs(60);
