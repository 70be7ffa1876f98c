//! Fixtures as files: deterministic, complete, small, made once.

use std::collections::HashSet;
use std::fs;
use std::thread;

use tandem_testkit::{
    Architecture, FixtureError, GENERATOR_VERSION, Size, Spec, TokenizerVariant, WeightType,
    ensure, write,
};
use xxhash_rust::xxh3::xxh3_64;

const MAX_BYTES: usize = 4 << 20;

/// Those with other caches, too.
fn every() -> Vec<Architecture> {
    [&Architecture::ALL[..], &Architecture::OTHER_CACHES].concat()
}

/// Every combination of the fields that makes a difference, with two seeds.
fn all_specs() -> Vec<Spec> {
    let mut specs = Vec::new();
    for architecture in every() {
        for seed in [1, 2] {
            for weights in [WeightType::F16, WeightType::Q8_0] {
                for tokenizer in [TokenizerVariant::Standard, TokenizerVariant::Shifted] {
                    let spec = Spec {
                        architecture,
                        seed,
                        weights,
                        tokenizer,
                        every_expert: false,
                        size: Size::Tiny,
                    };
                    if architecture.shape().experts.is_some() {
                        specs.push(Spec {
                            every_expert: true,
                            ..spec.clone()
                        });
                    }
                    specs.push(spec);
                }
            }
        }
    }
    specs
}

#[test]
fn file_names_carry_the_whole_spec() {
    let specs = all_specs();
    let real = specs.iter().map(|tiny| Spec {
        size: Size::Real,
        ..tiny.clone()
    });
    let all: Vec<Spec> = specs.iter().cloned().chain(real).collect();
    let names: HashSet<String> = all.iter().map(Spec::file_name).collect();
    assert_eq!(names.len(), all.len());
    let version = format!("-v{GENERATOR_VERSION}.gguf");
    assert!(names.iter().all(|n| n.ends_with(&version)));
}

#[test]
fn the_same_spec_gives_the_same_bytes_and_another_spec_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut seen = HashSet::new();
    for spec in all_specs() {
        write(&spec, &path).unwrap();
        let first = fs::read(&path).unwrap();
        write(&spec, &path).unwrap();
        assert!(first == fs::read(&path).unwrap(), "{spec:?}");
        assert!(
            (1 << 19..MAX_BYTES).contains(&first.len()),
            "{spec:?} {}",
            first.len()
        );
        assert!(seen.insert(first), "{spec:?}");
    }
}

/// The bytes of version 2, by their xxh3 hash, on every platform. If this fails after a change that is
/// meant to alter fixtures, raise `GENERATOR_VERSION` and take the new hashes from the message.
#[test]
fn bytes_are_those_of_this_generator_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let hashes = every().into_iter().map(|architecture| {
        [WeightType::F16, WeightType::Q8_0].map(|weights| {
            let spec = Spec {
                weights,
                ..Spec::new(architecture)
            };
            write(&spec, &path).unwrap();
            format!("{:016x}", xxh3_64(&fs::read(&path).unwrap()))
        })
    });
    let hashes: Vec<[String; 2]> = hashes.collect();
    let expected = [
        ["1ea3b474fde54931", "020190b72fdd655d"],
        ["ffa60a15c59ecfa6", "c2f25d6330e87957"],
        ["bff6f3ff02f43b0b", "2aafd8bceb7b7c2c"],
        ["77a0e088bf911618", "e7988e1408200eb2"],
        ["370d6ce8dbe61ecb", "874ba5460244fe1d"],
        ["2f5523125c20a23f", "08f5f6b1e7becd3f"],
        ["6926ecfabaa0b5fd", "98f0f1aa72efa70c"],
        ["c1dcd9f8ec81fd2e", "2631d84827481372"],
        ["a7b7df6c31e00a1d", "1224bc42e0c8b45c"],
    ];
    assert_eq!(hashes, expected);
}

#[test]
fn ensure_makes_a_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/on/demand");
    let spec = Spec::new(Architecture::Llama);
    let path = ensure(&dir, &spec).unwrap();
    fs::write(&path, "kept").unwrap();
    assert_eq!(ensure(&dir, &spec).unwrap(), path);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}

#[test]
fn ensure_may_be_called_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec::new(Architecture::Qwen3);
    let expected = dir.path().join("expected.gguf");
    write(&spec, &expected).unwrap();
    let expected = fs::read(&expected).unwrap();
    let shared = dir.path().join("shared");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let path = ensure(&shared, &spec).unwrap();
                assert!(fs::read(path).unwrap() == expected);
            });
        }
    });
    let left: Vec<_> = fs::read_dir(&shared).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_failure_names_the_path_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec::new(Architecture::Llama);
    let occupied = dir.path().join("occupied");
    fs::create_dir(&occupied).unwrap();
    let FixtureError::Io { action, path, .. } = write(&spec, &occupied).unwrap_err();
    assert_eq!((action, path), ("rename", occupied.clone()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let missing = dir.path().join("missing/model.gguf");
    let error = write(&spec, &missing).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}
