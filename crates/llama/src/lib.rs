//! llama.cpp behind the engine traits: the only unsafe code.
