//! Which node prefills and which decodes: pure decisions.
