//! Tests of the public face of `tandem-handoff`: both ends of a handoff joined in memory, hostile
//! input at each of them, golden bytes, and the document that describes the bytes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod it {
    mod codec;
    mod codec_bounds;
    mod codec_hostile;
    mod contracts;
    mod damage;
    mod document;
    mod driver;
    mod findings;
    mod fuzz;
    mod golden;
    mod headers;
    mod hostile_segments;
    mod link;
    mod pages;
    mod permit;
    mod pipe;
    mod policy;
    mod receipt;
    mod resume;
    mod round_trip;
    mod segments;
    mod sender;
}
