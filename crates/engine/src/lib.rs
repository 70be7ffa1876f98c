//! Engine traits, sampling, constraints, chat templates, a deterministic fake and the conformance suite.
