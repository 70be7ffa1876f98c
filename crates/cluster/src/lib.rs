//! Who may speak to whom: the authority of a cluster, the certificates that it gives its machines,
//! how a machine joins, and the connections between them.
//!
//! - [`Security`]: how a process connects and takes connections: TLS 1.3 with certificates on both
//!   sides, or plain TCP on loopback addresses;
//! - [`Link`]: such a connection; [`Gate`]: a listener that shakes hands with many peers at once;
//! - [`serve()`]: hyper's HTTP/1.1 server on such connections, with bounds;
//! - [`PeerId`]: who is at the other end;
//! - [`Authority`], [`Identity`]: who vouches, and what this machine is vouched for with;
//! - [`ClusterDir`]: where both are kept;
//! - [`invite`] and [`join`]: how a further machine gets its certificate.
//!
//! A certificate names no host: it says that its key belongs to a machine of the cluster, wherever
//! that is. So every one carries the same DNS name ([`NODE_NAME`]), and connections to an IP address
//! check that name.

mod authority;
mod certificate;
mod directory;
mod ending;
mod explain;
mod gate;
mod host;
mod identity;
pub mod invite;
pub mod join;
pub mod limits;
mod link;
mod log_throttle;
mod peer;
mod public;
mod security;
mod serve;
mod tls;
mod token;

pub use authority::{Authority, AuthorityError, Validity};
pub use certificate::{JOIN_NAME, NODE_NAME};
pub use directory::{ClusterDir, DirectoryError};
pub use ending::Ending;
pub use explain::explain;
pub use gate::Gate;
pub use host::{host_name, is_this_machine};
pub use identity::{Identity, IdentityError};
pub use link::{Link, ReadHalf, WriteHalf};
pub use peer::{PeerId, PeerIdError};
pub use public::{Public, PublicError};
pub use security::{LinkError, Security};
pub use serve::{Bounds, Transport, serve};
pub use token::{Token, TokenError};
