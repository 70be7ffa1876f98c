//! The OpenAI API in front of the nodes: routes, streams, timelines.
